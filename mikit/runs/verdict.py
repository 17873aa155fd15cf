"""From what the steps found to the verdict: the chain, the confirmation on unseen texts and prompts, and the trace."""

import dataclasses
import importlib.metadata
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import mikit
from mikit.evidence.prompts import PROMPTS_A_SPLIT, prompts_hash
from mikit.evidence.unseen import unseen_evidence
from mikit.experiments.setting import Setting
from mikit.gates import NO_TEXT, is_confirmed
from mikit.llm.ledger import total
from mikit.runs.found import Found
from mikit.runs.judging import Judged, Subject, judge, unjudged
from mikit.runs.nulls import try_nulls
from mikit.runs.run import Run
from mikit.trace import (
    Estimate,
    FinalMetrics,
    InputRound,
    Interpretations,
    Meta,
    Null,
    OutputRound,
    Proportion,
    Provenance,
    Round,
    Status,
    StepFile,
    TokenCost,
    Trace,
)

LIBRARIES = ("torch", "transformers", "numpy", "scipy", "safetensors", "pydantic", "papermill")


@dataclass(frozen=True)
class Refinement:
    """What came before a verdict."""

    rounds: Sequence[Round] = ()
    batch: int = 1
    """Which draw of `confirm` this is."""


def trace_of(run: Run, found: Found, refinement: Refinement) -> Trace:
    """Score the chosen pair once on `confirm`, judge it, try the nulls, and put everything together."""
    start = time.monotonic()
    observation = found.observation
    silent = observation.feature_kind in NO_TEXT
    setting, why_not = (run.setting, None) if refinement.batch == 1 or silent else _unseen(run, refinement.batch)
    subject = Subject(setting, run.feature, observation, found.intervention)
    judged = (
        unjudged(subject, why_not) if why_not else judge(subject, found.input_choice, found.output_choice, "confirm")
    )
    nulls = try_nulls(subject, found.input_choice) if run.tries_nulls and not silent and not why_not else {}
    seconds = time.monotonic() - start
    return _assemble(run, found, "dead" if silent else "complete", judged, nulls, seconds, refinement)


def _unseen(run: Run, batch: int) -> tuple[Setting, str | None]:
    """What a further draw of `confirm` is made from: texts, positions and prompts of documents that no verdict saw.

    Returns:
        The setting, and why no draw can be made if too few documents are left.
    """
    found = unseen_evidence(run.target, run.params, run.store, batch)
    prompts = {**run.prompts, "confirm": found.prompts}
    setting = dataclasses.replace(run.setting, unseen=found.store, prompts=prompts)
    needed = run.protocol.n_confirm
    if len(found.prompts) == PROMPTS_A_SPLIT and found.documents >= needed:
        return setting, None
    return setting, (
        f"For verdict {batch} {needed} documents of `confirm` are needed that none before could see, besides those of "
        f"{PROMPTS_A_SPLIT} prompts, and {found.documents} are left: a larger corpus has more."
    )


def _files(run: Run, rounds: Sequence[Round]) -> dict[str, StepFile]:
    """The files of the steps before the last, of the run and of its rounds."""
    files = {f"step{step}": file for step, file in run.directory.files().items() if step < 9}
    for each in rounds:
        for step in each.steps_rerun:
            path = run.directory.path / "rounds" / str(each.number) / f"step{step}.json"
            files[f"round{each.number} step{step}"] = StepFile.model_validate_json(path.read_bytes())
    return files


def ledger_of(run: Run, files: Mapping[str, StepFile]) -> dict[str, dict[str, TokenCost]]:
    """What language models cost, by step and purpose: of the steps' files, and of the last step, which has none yet."""
    ledger = {name: file.purposes for name, file in files.items()}
    if run.ledger is not None:
        ledger["step9"] = dict(run.ledger.used.get("step9", {}))
    return {step: purposes for step, purposes in ledger.items() if purposes}


def _assemble(
    run: Run,
    found: Found,
    status: Status,
    judged: Judged,
    nulls: dict[str, Null],
    own_seconds: float,
    refinement: Refinement,
) -> Trace:
    silent = status == "dead"
    input_score, output_score, chain, gates = judged.input_score, judged.output_score, judged.chain, judged.gates
    files = _files(run, refinement.rounds)
    ledger = ledger_of(run, files)
    cost = total({f"{step} {name}": each for step, purposes in ledger.items() for name, each in purposes.items()})
    if cost.over_budget:
        status = "budget"
    seconds = {name: file.seconds for name, file in files.items()} | {"step9": own_seconds}
    intervals: dict[str, Estimate | Proportion] = {}
    if input_score:
        intervals |= {"activation_coverage": input_score.coverage, "boundary_rejection": input_score.rejection}
    if output_score:
        intervals["output_score"] = output_score.score
    return Trace(
        meta=Meta(
            layer_id=run.params.layer,
            feature_id=run.feature,
            run=run.params.run,
            status=status,
            feature_kind=found.observation.feature_kind,
            started_at=min(file.started_at for file in files.values()),
            seconds=sum(seconds.values()),
            interpretations=Interpretations(
                input=found.input_choice.text if found.input_choice else None,
                output=found.output_choice.text if found.output_choice else None,
                chain=chain.explanation if chain else None,
            ),
            final_metrics=FinalMetrics(
                activation_coverage=input_score.coverage.value if input_score else None,
                boundary_rejection=input_score.rejection.value if input_score else None,
                output_score=output_score.score.value if output_score else None,
                functional_score=chain.functional_score if chain else None,
            ),
            intervals=intervals,
            gate_pass=gates,
            confirmed=is_confirmed(gates, input_score, output_score, refinement.batch),
            recall=input_score.recall.value if input_score else None,
            grey_share=input_score.grey_share if input_score else None,
            scoring_dose=None if found.intervention.null else found.intervention.scoring_dose,
            confirm_batches=0 if silent else refinement.batch,
            nulls=nulls,
            token_cost=cost,
            rounds=len(refinement.rounds),
        ),
        input_round=InputRound(
            observation=found.observation,
            hypotheses=found.input_hypotheses.hypotheses,
            experiments=found.experiments.experiments,
            eval=found.input_eval.model_copy(update={"confirm": input_score}),
        ),
        output_round=OutputRound(
            interventions=[found.intervention],
            hypotheses=found.output_hypotheses.hypotheses,
            eval=found.output_eval.model_copy(update={"confirm": output_score}),
        ),
        chain=chain,
        rounds=list(refinement.rounds),
        provenance=provenance_of(run, seconds, ledger),
    )


def provenance_of(
    run: Run, step_seconds: dict[str, float], ledger: dict[str, dict[str, TokenCost]] | None = None
) -> Provenance:
    """What was run on what."""
    target, explainer = run.target, run.explainer
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES} | {"mikit": mikit.__version__}
    return Provenance(
        model_id=target.model_id,
        model_hash=target.model_hash,
        sae_id=target.sae.id,
        sae_hash=target.sae.hash,
        layer=target.layer,
        feature=run.feature,
        hook_point=target.hook_point,
        tokenizer_hash=target.tokenizer_hash,
        bos_id=target.bos_id,
        dtype=str(target.model.dtype).removeprefix("torch."),
        device=target.computes_on,
        corpus=run.store.corpus_name,
        corpus_hash=run.store.corpus_hash,
        prompts_hash=prompts_hash(target),
        versions=versions | {"python": platform.python_version()},
        params=run.params.model_dump(mode="json"),
        seed=run.params.seed,
        explainer=explainer.name,
        llm=dict(getattr(explainer, "models", {})),
        prompt_hashes=getattr(explainer, "prompt_hashes", {}),
        ledger=ledger or {},
        step_seconds=step_seconds,
    )
