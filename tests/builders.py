"""Builders of valid records, realistic by default: `observation(ref=0.0, tau=0.0)` differs in what the test is about.

The story is a feature that fires on fruit after an article and promotes words for eating.
"""

import random
from typing import Any

from mikit.settings import Params
from mikit.trace import (
    CHECKS,
    Chain,
    Check,
    Clause,
    Completion,
    Control,
    Dose,
    Estimate,
    FinalMetrics,
    Gates,
    InputEval,
    InputExperiment,
    InputHypothesis,
    InputRound,
    InputScore,
    Interpretations,
    Intervention,
    LensToken,
    Meta,
    Null,
    Observation,
    OutputEval,
    OutputHypothesis,
    OutputRound,
    OutputScore,
    Proportion,
    Provenance,
    Rule,
    ScoredCase,
    TextCase,
    TokenCost,
    Trace,
    Window,
)


def spaced(words: str) -> list[str]:
    """Words as tokens with a leading space."""
    return [f" {word}" for word in words.split()]


FRUIT = spaced("pear plum fig apple quince cherry")
EATING = spaced("ripe sweet juice peel core pie eaten taste jam orchard basket tree bitter slice stew cider bite seed")
OTHERS = spaced(
    "rail engine station north crown court ledger glass copper valley letter sermon bridge winter soldier clock"
)
FILLER = spaced("said that it was in a long year of the war and she had not seen him since they left town by train")
REF, TAU = 8.0, 2.0


def lens(words: list[str], highest: float, sign: int = 1) -> list[LensToken]:
    """Tokens with falling values."""
    return [LensToken(id=i, token=word, value=sign * round(highest * 0.9**i, 3)) for i, word in enumerate(words)]


def share(successes: int, n: int) -> Proportion:
    """A proportion with an interval that is only roughly right."""
    if not n:
        return Proportion(value=None, low=None, high=None, n=0)
    value, half = successes / n, 1 / n**0.5
    return Proportion(value=value, low=max(0.0, value - half), high=min(1.0, value + half / 2), n=n)


def window(kind: str = "top", peak: float = 7.5, seed: int = 0, **overrides: Any) -> Window:
    rng = random.Random(f"{kind}{seed}")
    tokens = rng.choices(FILLER, k=24)
    at = rng.randrange(3, 22)
    if kind != "silent_random":
        tokens[at - 1 : at + 1] = [" the" if peak else " green", rng.choice(FRUIT)]
    activations = [0.0] * len(tokens)
    activations[at] = peak
    activations[at + 1] = round(peak * 0.2, 2)
    values: dict[str, Any] = {
        "kind": kind,
        "document": f"article-{seed:03d}",
        "split": "explain",
        "start": 32 * seed,
        "ids": list(range(len(tokens))),
        "tokens": tokens,
        "activations": activations,
        "peak": peak,
        "peak_index": at,
    }
    return Window(**(values | overrides))


def windows() -> list[Window]:
    top = [window("top", round(11.8 * 0.985**i, 2), i) for i in range(32)]
    quantile = [window("quantile", round(9.0 * (1 - i / 64) ** 1.7 + 0.1, 2), i) for i in range(64)]
    trigger = [window("silent_trigger", 0.0 if i % 3 else 0.9, i) for i in range(48)]
    return [*top, *quantile, *trigger, *(window("silent_random", 0.0, i) for i in range(48))]


def observation(**overrides: Any) -> Observation:
    values: dict[str, Any] = {
        "source": "corpus",
        "corpus": "embedded",
        "tokens_read": 49_152,
        "feature_kind": "normal",
        "ref": REF,
        "tau": TAU,
        "density": 0.0042,
        "firing_windows": 97,
        "n_windows": 1_566,
        "bos_activation": 0.0,
        "windows": windows(),
        "promoted": lens(EATING, 4.1),
        "suppressed": lens(OTHERS, 3.2, -1),
        "neighbours": [17, 4, 90, 33],
        "neighbour_cosines": [0.61, 0.4, 0.33, 0.21],
    }
    return Observation(**(values | overrides))


def input_hypothesis(identity: str = "H1", **overrides: Any) -> InputHypothesis:
    text = 'Fires on " pear", " plum" or 4 more directly after " the".'
    rule = Rule(any_of=[Clause(tokens=FRUIT, after=[" the"])])
    return InputHypothesis(**({"id": identity, "text": text, "rule": rule} | overrides))


def text_of(words: list[str]) -> str:
    return "".join(words).strip()


def scored_cases(n: int = 30, seed: int = 1) -> list[ScoredCase]:
    rng = random.Random(seed)
    cases = []
    for stratum in (None, "authored", "corpus", "neighbour", "random"):
        for i in range(n):
            right = rng.random() < 0.93
            high, low = abs(rng.gauss(6.5, 1.6)) + TAU, rng.choice([0.0, 0.0, rng.random() * 1.6])
            activation = round(high if right == (stratum is None) else low, 2)
            words = [*rng.choices(FILLER, k=9), " the" if stratum is None else " green", rng.choice(FRUIT)]
            cases.append(
                ScoredCase(
                    role="near_miss" if stratum else "positive",
                    stratum=stratum,
                    text=text_of(words),
                    document=f"article-{i:03d}" if stratum in ("corpus", "neighbour", "random") else None,
                    activation=activation,
                    fires=activation >= TAU,
                    peak_index=10,
                )
            )
    return cases


def input_score(identity: str = "H1", split: str = "select", n: int = 10, **overrides: Any) -> InputScore:
    cases = scored_cases(n)
    silent = {
        stratum: [not case.fires for case in cases if case.stratum == stratum]
        for stratum in ("authored", "corpus", "neighbour", "random")
    }
    fired = [case.fires for case in cases if case.role == "positive"]
    gated = [flag for stratum, flags in silent.items() if stratum != "random" for flag in flags]
    values: dict[str, Any] = {
        "hypothesis": identity,
        "split": split,
        "coverage": share(sum(fired), len(fired)),
        "coverage_of_texts": share(sum(fired), len(fired)),
        "rejection": share(sum(gated), len(gated)),
        "strata": {stratum: share(sum(flags), len(flags)) for stratum, flags in silent.items()},
        "coverage_above_zero": share(len(fired), len(fired)),
        "rejection_above_zero": share(sum(gated) * 2 // 3, len(gated)),
        "grey_share": 0.18,
        "auroc": 0.964,
        "recall": share(41, 48),
        "precision": share(41, 52),
        "balanced_accuracy": 0.87,
        "specificity": share(19, 20),
        "cases": cases,
    }
    return InputScore(**(values | overrides))


def input_experiment(identity: str = "H1", **overrides: Any) -> InputExperiment:
    cases = [
        TextCase(role="positive", stratum=None, ids=[1, 2], text="the pear", document=None),
        TextCase(role="near_miss", stratum="authored", ids=[3, 2], text="green pear", document=None),
    ]
    return InputExperiment(**({"hypothesis": identity, "split": "select", "cases": cases} | overrides))


def input_round(**overrides: Any) -> InputRound:
    second = input_hypothesis("H2", text='Fires on " pear".', rule=Rule(any_of=[Clause(tokens=[" pear"])]))
    weaker = input_score("H2", coverage=share(6, 10), rejection=share(14, 30), recall=share(15, 48))
    values: dict[str, Any] = {
        "observation": observation(),
        "hypotheses": [input_hypothesis(), second],
        "experiments": [input_experiment(), input_experiment("H2")],
        "eval": InputEval(
            per_hypothesis=[input_score(), weaker], chosen="H1", confirm=input_score(split="confirm", n=30)
        ),
    }
    return InputRound(**(values | overrides))


def controls() -> list[Control]:
    names: dict[Any, str] = {"near": "near", "random_live": "live", "random_direction": "random"}
    kinds = [(kind, i) for kind in names for i in range(1, 5)]
    return [
        Control(
            name=f"{names[kind]} {i}",
            kind=kind,
            latent=None if kind == "random_direction" else 10 + i,
            cosine=round(0.5 - 0.08 * i, 2) if kind == "near" else 0.02,
            kl=round(0.16 + 0.027 * (i * 5 % 7), 3),
            promoted=lens(OTHERS, 0.8),
            suppressed=lens(OTHERS, -0.8),
        )
        for kind, i in kinds
    ]


def intervention(**overrides: Any) -> Intervention:
    values: dict[str, Any] = {
        "position": "last_token",
        "doses": [Dose(dose=d, kl=kl) for d, kl in ((0.5, 0.021), (1.0, 0.083), (2.0, 0.27), (4.0, 0.91))],
        "scoring_dose": 2.0,
        "null": False,
        "null_reason": None,
        "random_kl": 0.21,
        "promoted": lens(EATING, 1.9),
        "suppressed": lens(OTHERS, 1.1, -1),
        "teacher_forced": [0.11, 0.08, 0.05, 0.04, 0.03, 0.03, 0.02, 0.02],
        "completions": [
            Completion(
                prompt="Early that morning",
                clean=" the train left the station",
                steered=" the ripe juice ran",
                dose=2.0,
            ),
            Completion(
                prompt="Nobody could say why", clean=" the court had\nrefused", steered=" a sweet taste", dose=2.0
            ),
            Completion(prompt="In the end they", clean=" went north again", steered=" ate the pie", dose=2.0),
        ],
        "controls": controls(),
        "n_prompts": 16,
    }
    return Intervention(**(values | overrides))


def output_hypothesis(identity: str = "O1", **overrides: Any) -> OutputHypothesis:
    values: dict[str, Any] = {
        "id": identity,
        "text": f"Promotes {len(EATING)} tokens, such as {','.join(EATING[:4])}.",
        "direction": "promotes",
        "kind": "list",
        "tokens": EATING,
    }
    return OutputHypothesis(**(values | overrides))


def output_score(identity: str = "O1", split: str = "select", **overrides: Any) -> OutputScore:
    targets, distractors = lens(EATING, 1.7), lens(OTHERS, 0.3)
    values: dict[str, Any] = {
        "hypothesis": identity,
        "split": split,
        "score": Estimate(value=0.7, low=0.52, high=0.84, n=16),
        "true_positive_rate": 0.75,
        "false_positive_rate": 0.05,
        "targets": targets,
        "distractors": distractors,
        "hits": [token.token for token in targets[:15]],
        "false_alarms": [distractors[3].token],
    }
    return OutputScore(**(values | overrides))


def output_round(**overrides: Any) -> OutputRound:
    values: dict[str, Any] = {
        "interventions": [intervention()],
        "hypotheses": [output_hypothesis()],
        "eval": OutputEval(per_hypothesis=[output_score()], chosen="O1", confirm=output_score(split="confirm")),
    }
    return OutputRound(**(values | overrides))


def check(name: str = "necessity", **overrides: Any) -> Check:
    beside = {"feature": 0.62} | {control.name: round(0.05 + 0.021 * i, 3) for i, control in enumerate(controls())}
    bars = {"0.5": 0.11, "1": 0.24, "2": 0.6, "4": 1.2} if name == "dose_response" else beside
    values: dict[str, Any] = {
        "name": name,
        "verdict": "pass",
        "effect": 0.62,
        "interval": (0.41, 0.8),
        "n": 16,
        "reason": "the contrast is 0.62 nats, above that of all 12 controls (largest 0.28)",
        "bars": bars,
    }
    return Check(**(values | overrides))


def chain(**overrides: Any) -> Chain:
    undecided = {"verdict": "undecided", "effect": None, "interval": None, "n": 5, "bars": {}}
    undecided["reason"] = "the feature fires at 5 positions of `confirm`, and 8 are needed"
    values: dict[str, Any] = {
        "split": "confirm",
        "best_pair": ("H1", "O1"),
        "checks": [check(name, **(undecided if name == "selectivity" else {})) for name in CHECKS],
        "functional_score": 4,
        "plausibility": None,
        "explanation": "The feature fires on fruit directly after an article; there it promotes words for eating.",
    }
    return Chain(**(values | overrides))


def null(name: str, **overrides: Any) -> Null:
    values: dict[str, Any] = {
        "name": name,
        "latent": 17,
        "explanation": 'Fires on " north" or " rail". Promotes 20 tokens, such as engine and station.',
        "coverage": share(4, 30),
        "rejection": share(85, 90),
        "output_score": 0.05,
        "functional_score": 1,
        "gates": {"input": "fail", "output": "fail", "chain": "fail"},
    }
    return Null(**(values | overrides))


def nulls() -> dict[str, Null]:
    note = "a random direction of the feature's norm with the tokens that it promotes itself"
    own = {"latent": None, "output_score": 0.55, "functional_score": 4, "note": note}
    own["gates"] = {"input": "fail", "output": "pass", "chain": "pass"}
    return {
        "neighbour": null("neighbour"),
        "shuffled": null("shuffled", latent=55, coverage=share(0, 30)),
        "random_reference": null("random_reference", **own),
    }


def gates(**overrides: Any) -> Gates:
    reasons = {
        "input": "93 % of positives fire (gate 80 %) and 92 % of near misses stay silent (gate 80 %)",
        "output": "the score is 0.70 (gate 0.5)",
        "chain": "4 of 5 checks pass (gate 4), necessity among them",
    }
    return Gates(**({"input": "pass", "output": "pass", "chain": "pass", "reasons": reasons} | overrides))


def meta(**overrides: Any) -> Meta:
    scored, moved = input_score(split="confirm", n=30), output_score(split="confirm")
    values: dict[str, Any] = {
        "layer_id": 0,
        "feature_id": 3,
        "run": "example",
        "status": "complete",
        "feature_kind": "normal",
        "started_at": "2025-01-31T09:30:00+00:00",
        "seconds": 41.7,
        "interpretations": Interpretations(
            input=input_hypothesis().text, output=output_hypothesis().text, chain=chain().explanation
        ),
        "final_metrics": FinalMetrics(
            activation_coverage=scored.coverage.value,
            boundary_rejection=scored.rejection.value,
            output_score=moved.score.value,
            functional_score=4,
        ),
        "intervals": {
            "activation_coverage": scored.coverage,
            "boundary_rejection": scored.rejection,
            "output_score": moved.score,
        },
        "gate_pass": gates(),
        "confirmed": True,
        "recall": scored.recall.value,
        "grey_share": scored.grey_share,
        "scoring_dose": 2.0,
        "confirm_batches": 1,
        "nulls": nulls(),
        "token_cost": TokenCost(),
        "rounds": 0,
    }
    return Meta(**(values | overrides))


def provenance(**overrides: Any) -> Provenance:
    values: dict[str, Any] = {
        "model_id": "planted",
        "model_hash": "5f1c0b7a9d3e2468",
        "sae_id": "planted directions",
        "sae_hash": "0a1b2c3d4e5f6789",
        "layer": 0,
        "feature": 3,
        "hook_point": "model.layers.0",
        "tokenizer_hash": "89abcdef01234567",
        "bos_id": 0,
        "dtype": "float32",
        "device": "cpu",
        "corpus": "planted",
        "corpus_hash": "fedcba9876543210",
        "prompts_hash": "1122334455667788",
        "versions": {"mikit": "0.1.0", "torch": "2.9.0", "python": "3.11.2"},
        "params": Params(run="example").model_dump(mode="json"),
        "seed": 0,
        "explainer": "statistical",
        "step_seconds": {f"step{i}": 1.5 * i for i in range(1, 10)},
    }
    return Provenance(**(values | overrides))


def trace(**overrides: Any) -> Trace:
    values: dict[str, Any] = {
        "meta": meta(),
        "input_round": input_round(),
        "output_round": output_round(),
        "chain": chain(),
        "provenance": provenance(),
    }
    return Trace(**(values | overrides))


def dead_trace() -> Trace:
    """A feature that never fires: nothing was scored."""
    reasons = dict.fromkeys(("input", "output", "chain"), "no content token fires")
    row = meta(
        status="dead",
        feature_kind="dead",
        interpretations=Interpretations(input=None, output=None, chain=None),
        final_metrics=FinalMetrics(
            activation_coverage=None, boundary_rejection=None, output_score=None, functional_score=None
        ),
        intervals={},
        gate_pass=gates(input="none", output="none", chain="none", reasons=reasons),
        confirmed=False,
        recall=None,
        grey_share=None,
        scoring_dose=None,
        confirm_batches=0,
        nulls={},
    )
    return trace(meta=row, input_round=None, output_round=None, chain=None)


def unfit_trace() -> Trace:
    """A feature that fires, whose explanation fails the input gate, and whose direction moves nothing."""
    reasons = {
        "input": "13 % of positives fire (gate 80 %)",
        "output": "the intervention moves nothing: KL 0.0004 nats",
        "chain": "there is no effect to check",
    }
    scored = input_score(split="confirm", n=30, coverage=share(4, 30))
    row = meta(
        gate_pass=gates(input="fail", output="none", chain="none", reasons=reasons),
        interpretations=Interpretations(input=input_hypothesis().text, output=None, chain="No chain."),
        final_metrics=FinalMetrics(
            activation_coverage=4 / 30,
            boundary_rejection=scored.rejection.value,
            output_score=None,
            functional_score=None,
        ),
        intervals={"activation_coverage": scored.coverage, "boundary_rejection": scored.rejection},
        confirmed=False,
        scoring_dose=None,
    )
    silent = intervention(
        doses=[Dose(dose=d, kl=0.0002 * d) for d in (0.5, 1.0, 2.0, 4.0)],
        null=True,
        null_reason="KL 0.0004 nats at the scoring dose",
        completions=[],
        promoted=[],
        suppressed=[],
        controls=[],
    )
    none = Chain(split="confirm", best_pair=None, checks=[], functional_score=None, explanation="No chain.")
    inputs = input_round(eval=InputEval(per_hypothesis=[input_score()], chosen="H1", confirm=scored))
    outputs = output_round(interventions=[silent], hypotheses=[], eval=OutputEval(per_hypothesis=[], chosen=None))
    return trace(meta=row, input_round=inputs, output_round=outputs, chain=none)
