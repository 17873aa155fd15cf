"""Runs, or the rounds of one, side by side: what was said, how it was tested, what came of it, what it cost.

from mikit.runs import compare
sides = compare.read_runs(["layer-0/feature-3/first", "layer-0/feature-3/second"])
print(compare.differences(sides))
compare.plot(sides).savefig("compared.png")
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.figure import Figure
from pydantic import ValidationError

from mikit import paths, viz
from mikit.errors import BadInput
from mikit.gates import judge_gates
from mikit.llm.ledger import total
from mikit.runs.freshness import STEPS
from mikit.runs.report import headline, input_score, output_score
from mikit.settings import Protocol
from mikit.trace import (
    Chain,
    Estimate,
    Gates,
    InputEval,
    InputExperiment,
    InputExperiments,
    InputHypotheses,
    InputHypothesis,
    InputScore,
    Intervention,
    Observation,
    OutputEval,
    OutputHypotheses,
    OutputHypothesis,
    OutputScore,
    Proportion,
    Record,
    Round,
    Split,
    StepFile,
    TokenCost,
    Trace,
)
from mikit.viz.tables import number, table, verdict
from mikit.viz.windows import Html

R = TypeVar("R", bound=Record)
Metrics = dict[str, Proportion | Estimate]

NAMES = ("activation coverage", "boundary rejection", "recall", "output score", "checks passed")
"""What is compared; the checks are a share of five."""


@dataclass(frozen=True)
class Side:
    """One of the things that are compared."""

    name: str
    """Unlike that of every other."""
    split: Split
    """What its metrics were measured on: `confirm` for a run, `select` for a round."""
    outcome: str
    """What came of it, in a few words."""
    inputs: tuple[InputHypothesis, ...]
    outputs: tuple[OutputHypothesis, ...]
    best: tuple[str | None, str | None]
    """The input and the output hypothesis that were chosen."""
    experiments: tuple[InputExperiment, ...]
    metrics: Metrics
    """By name, of those of `NAMES` that were measured."""
    gates: Gates
    cost: TokenCost
    seconds: float
    """Of work."""
    params: Mapping[str, Any]
    """By dotted name."""


# --- reading ---


def read_runs(folders: Sequence[str | Path]) -> list[Side]:
    """Finished runs, as they ended.

    Args:
        folders: of the runs, or their `trace.json`; a path that is not absolute starts at the outputs folder, or else
            at the current one.

    Raises:
        BadInput: there is nothing to compare, or a folder holds no valid trace.
    """
    if not folders:
        raise BadInput(f"no run to compare: valid: folders of finished runs, {paths.outputs()}/layer-L/feature-F/RUN")
    found = [folder_of(each) for each in folders]
    traces = [_trace(folder) for folder in found]
    return [_of_trace(name, trace) for name, trace in zip(_names(found), traces, strict=True)]


def read_rounds(folder: str | Path) -> list[Side]:
    """A run as it was before refinement, then as it was after each round: all on `select`.

    Args:
        folder: of the run, as for `read_runs`.

    Raises:
        BadInput: it holds no run whose first eight steps are done, or a file of a round is torn.
    """
    path = folder_of(folder)
    files: list[dict[int, StepFile]] = [_files(path)]
    sides = [_of_files("before refinement", path, files[0], files[0], "")]
    while (place := path / "rounds" / str(len(files))).joinpath("round.json").is_file():
        record = _valid(Round, place / "round.json")
        if record.started_from >= len(files):
            raise BadInput(f"{place / 'round.json'} starts from a round that is not there: run mikit refine again")
        own = _files(place)
        files.append(files[record.started_from] | own if record.changes else files[record.started_from])
        outcome = f"{record.component}: {'better' if record.better else 'no gain'}; {record.diagnosis}"
        sides.append(_of_files(f"round {record.number}", path, files[-1], own, outcome))
    return sides


def folder_of(path: str | Path) -> Path:
    """The folder that somebody names, or whose trace he names.

    Raises:
        BadInput: it can't be the name of one.
    """
    try:
        given = Path(path).expanduser()
        inside = paths.outputs() / given
        found = inside if inside.exists() else given.resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{str(path)[:80]!r} is no folder ({error}): valid: the folder of a run") from None
    return found.parent if found.name == "trace.json" else found


def _trace(folder: Path) -> Trace:
    return _valid(Trace, folder / "trace.json")


def _valid(model: type[R], path: Path) -> R:
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        valid = f"the folder of a finished run, {paths.outputs()}/layer-L/feature-F/RUN"
        raise BadInput(f"{path.parent} holds no valid {path.name}: valid: {valid}") from None


def _files(folder: Path) -> dict[int, StepFile]:
    found = [step for step in STEPS[:-1] if (folder / f"step{step}.json").is_file()]
    return {step: _valid(StepFile, folder / f"step{step}.json") for step in found}


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest endings of the paths that tell them apart; one that is named twice has a number."""
    absolute = [folder.resolve() for folder in folders]
    depth = next(
        (n for n in range(1, 4) if len({path.parts[-n:] for path in absolute}) == len(set(absolute))),
        max(len(path.parts) for path in absolute),
    )
    names = ["/".join(path.parts[-depth:]) for path in absolute]
    seen: Counter[str] = Counter()
    for i, name in enumerate(names):
        seen[name] += 1
        names[i] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names


def _of_trace(name: str, trace: Trace) -> Side:
    inputs, outputs = trace.input_round, trace.output_round
    pair = trace.chain.best_pair if trace.chain else None
    return Side(
        name=name,
        split="confirm",
        outcome=headline(trace.meta),
        inputs=tuple(inputs.hypotheses) if inputs else (),
        outputs=tuple(outputs.hypotheses) if outputs else (),
        best=pair or (inputs.eval.chosen if inputs else None, outputs.eval.chosen if outputs else None),
        experiments=tuple(inputs.experiments) if inputs else (),
        metrics=_metrics(input_score(trace), output_score(trace), trace.chain),
        gates=trace.meta.gate_pass,
        cost=trace.meta.token_cost,
        seconds=trace.meta.seconds,
        params=_flat(trace.provenance.params),
    )


def _of_files(name: str, run: Path, files: Mapping[int, StepFile], own: Mapping[int, StepFile], outcome: str) -> Side:
    """A state of a run; `own` are the files that were made for it, whose cost it is."""
    if lacking := [step for step in STEPS[:-1] if step not in files]:
        raise BadInput(f"{run} holds no step{lacking[0]}.json: valid: a run whose first eight steps are done")
    kinds: dict[int, type[Record]] = {
        1: Observation, 2: InputHypotheses, 3: InputExperiments, 4: InputEval,
        5: Intervention, 6: OutputHypotheses, 7: OutputEval, 8: Chain,
    }  # fmt: skip
    try:
        found: dict[int, Any] = {step: kind.model_validate(files[step].outputs) for step, kind in kinds.items()}
    except ValidationError as error:
        raise BadInput(
            f"{run}: a step's file does not hold what the step finds ({error.title}): run it again"
        ) from None
    params = files[1].params
    inputs, outputs, chain = found[4], found[7], found[8]
    scored = next((each for each in inputs.per_hypothesis if each.hypothesis == inputs.chosen), None)
    moved = next((each for each in outputs.per_hypothesis if each.hypothesis == outputs.chosen), None)
    protocol = Protocol.model_validate(params.get("protocol", {}))
    gates = judge_gates(found[1], scored, moved, chain, found[5], protocol)
    return Side(
        name=name,
        split="select",
        outcome=outcome or ("all gates pass" if gates.all_pass else "not all gates pass"),
        inputs=tuple(found[2].hypotheses),
        outputs=tuple(found[6].hypotheses),
        best=(inputs.chosen, outputs.chosen),
        experiments=tuple(found[3].experiments),
        metrics=_metrics(scored, moved, chain),
        gates=gates,
        cost=total({str(step): file.ledger for step, file in own.items()}),
        seconds=sum(file.seconds for file in own.values()),
        params=_flat(params),
    )


def _metrics(scored: InputScore | None, moved: OutputScore | None, chain: Chain | None) -> Metrics:
    found: Metrics = {}
    if scored:
        found |= {
            "activation coverage": scored.coverage,
            "boundary rejection": scored.rejection,
            "recall": scored.recall,
        }
    if moved:
        found["output score"] = moved.score
    if chain and chain.functional_score is not None:
        found["checks passed"] = Proportion(value=chain.functional_score / 5, low=None, high=None, n=5)
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


# --- showing ---


def differences(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """The parameters in which the sides differ, each with its value on every side; None where one has none."""
    names = dict.fromkeys(name for side in sides for name in side.params)
    values = {name: [side.params.get(name) for side in sides] for name in names}
    return {name: each for name, each in values.items() if len({json.dumps(value) for value in each}) > 1}


def differences_table(sides: Sequence[Side]) -> Html:
    """`differences` as a table."""
    rows = [[name, *map(_text, values)] for name, values in differences(sides).items()]
    return table(["parameter", *_heads(sides)], rows, "What differs in the parameters")


def gates_table(sides: Sequence[Side]) -> Html:
    """The verdict of each gate, with its reason, and what came of it all."""
    rows: list[list[Any]] = [["outcome", *(side.outcome for side in sides)], ["measured on", *(s.split for s in sides)]]
    for end in ("input", "output", "chain"):
        rows.append([f"{end} gate", *(verdict(getattr(side.gates, end)) for side in sides)])
        rows.append([f"why ({end})", *(side.gates.reasons.get(end) for side in sides)])
    return table(["", *_heads(sides)], rows, "Gates")


def hypotheses_table(sides: Sequence[Side]) -> Html:
    """Every hypothesis of each side; the chosen ones are marked."""
    rows = [
        ["when it fires", *(_hypotheses(side.inputs, side.best[0]) for side in sides)],
        ["what it does", *(_hypotheses(side.outputs, side.best[1]) for side in sides)],
    ]
    return table(["", *_heads(sides)], rows, "Hypotheses; an arrow marks the chosen one")


def experiments_table(sides: Sequence[Side]) -> Html:
    """How many texts each input hypothesis was tested on, by group, and how many could not be found."""
    rows = [
        [side.name, each.hypothesis, each.split, _counts(each), _shortfall(each) or each.note]
        for side in sides
        for each in side.experiments
    ]
    return table(["of", "hypothesis", "split", "texts", "not found"], rows, "Experiments", "none was designed")


def metrics_table(sides: Sequence[Side]) -> Html:
    """Each metric with its 95 % interval and n."""
    rows = [[name, *(_interval(side.metrics.get(name)) for side in sides)] for name in NAMES]
    return table(["", *_heads(sides)], rows, "Metrics, with 95 % intervals")


def cost_table(sides: Sequence[Side]) -> Html:
    """Work, tokens and money; a price that is not known is said to be so."""
    rows: list[list[Any]] = [
        ["work, s", *(number(side.seconds, 1) for side in sides)],
        ["language model calls", *(str(side.cost.calls) for side in sides)],
        ["tokens", *(f"{side.cost.total_tokens:,}" for side in sides)],
        ["US dollars", *(_money(side.cost) for side in sides)],
    ]
    return table(["", *_heads(sides)], rows, "Cost")


def plot(sides: Sequence[Side]) -> Figure:
    """The metrics side by side, with their intervals and the gates of the first side."""
    protocol = _protocol(sides[0])
    gates = {
        "activation coverage": protocol.gate_coverage,
        "boundary rejection": protocol.gate_rejection,
        "output score": protocol.gate_output,
        "checks passed": protocol.gate_functional / 5,
    }
    passing = [side.name for side in sides if side.gates.all_pass]
    title = f"All gates pass for {len(passing)} of {len(sides)}: {', '.join(passing) or 'none'}"
    return viz.plot_compared(
        title, {name: {side.name: side.metrics.get(name) for side in sides} for name in NAMES}, gates
    )


def plot_cost(sides: Sequence[Side]) -> Figure:
    """Work and tokens side by side."""
    return viz.plot_costs(
        "What each took",
        {side.name: side.seconds for side in sides},
        {side.name: side.cost.total_tokens for side in sides},
    )


def _protocol(side: Side) -> Protocol:
    given = {name.removeprefix("protocol."): v for name, v in side.params.items() if name.startswith("protocol.")}
    return Protocol.model_validate(given)


def _heads(sides: Sequence[Side]) -> list[str]:
    return [side.name for side in sides]


def _hypotheses(found: Sequence[InputHypothesis | OutputHypothesis], best: str | None) -> Html | None:
    lines = [f"{'→' if each.id == best else ' '} {each.id}: {each.text}" for each in found]
    return viz.lines_html(lines) if lines else None


def _counts(experiment: InputExperiment) -> str:
    groups = Counter(case.stratum or "positive" for case in experiment.cases)
    return ", ".join(f"{n} {group}" for group, n in groups.items()) or "none"


def _shortfall(experiment: InputExperiment) -> str:
    return ", ".join(f"{n} {group}" for group, n in experiment.shortfall.items() if n)


def _interval(found: Proportion | Estimate | None) -> str | None:
    if found is None or found.value is None:
        return None
    shown = "" if found.low is None or found.high is None else f" [{found.low:.2f}, {found.high:.2f}]"
    return f"{found.value:.2f}{shown}, n {found.n}"


def _money(cost: TokenCost) -> str:
    if not cost.calls:
        return "0 (no language model was asked)"
    return "unknown (no price is known)" if cost.usd is None else f"{cost.usd:.4f}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
