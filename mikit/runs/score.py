"""Explanations that a person brings: the same gates, the same splits, the same nulls as for those that a run writes."""

import csv
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mikit import paths
from mikit.errors import BadInput
from mikit.evidence.vocabulary import Vocabulary
from mikit.experiments.statistics import wilson
from mikit.explainers.sentences import DIRECTIONS, describe, read_output, read_rule
from mikit.files import value_hash, write_json
from mikit.gates import NO_TEXT, is_confirmed
from mikit.progress import tell, track
from mikit.runs.judging import Subject, judge
from mikit.runs.nulls import try_nulls
from mikit.runs.report import null_lines
from mikit.runs.run import Run
from mikit.runs.steps import intervene, observe
from mikit.runs.verdict import provenance_of
from mikit.settings import Params
from mikit.trace import Clause, Explanation, InputHypothesis, Null, OutputHypothesis, Proportion, Rule, Scored
from mikit.viz import visible

log = logging.getLogger(__name__)
COLUMNS = ("feature", "explanation", "output", "rule")
RESULTS = (
    "input_gate", "output_gate", "chain_gate", "confirmed", "coverage", "rejection", "recall", "precision",
    "output_score", "functional_score", "feature_kind", "neighbour_passes", "shuffled_passes", "reason",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One explanation as it was given."""

    feature: int
    explanation: str | None
    """What makes the feature fire, as a sentence."""
    output: str | None
    """What it does, as a sentence."""
    rule: str | None
    """What makes it fire, as JSON: `{"any_of": [{"tokens": [" at"]}]}`."""
    where: str
    """For messages."""
    others: Mapping[str, str] | None = None
    """Further columns, passed through."""


def read_rows(path: Path) -> list[Row]:
    """The explanations in a CSV file with a column `feature` and some of `explanation`, `output` and `rule`.

    Raises:
        BadInput: the file can't be read, lacks a column, or has a row without a feature or an explanation.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = reader.fieldnames or []
            rows = [(reader.line_num, row) for row in reader if any(_text(value) for value in row.values())]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{path} can't be read as CSV: {error}: valid: UTF-8 with columns {', '.join(COLUMNS)}"
        ) from None
    names = [str(name) for name in names]
    if "feature" not in names or not set(names) & set(COLUMNS[1:]):
        raise BadInput(f"{path}: columns {', '.join(names) or 'none'}: valid: feature, and explanation, output or rule")
    if len(set(names)) < len(names):
        raise BadInput(f"{path}: a column is given twice: {', '.join(names)}")
    if not rows:
        raise BadInput(f"{path} holds no explanation: valid: a row for each, below the names of the columns")
    return [_row(row, f"{path}, line {line}") for line, row in rows]


def rows_from_neuronpedia(params: Params) -> list[Row]:
    """Neuronpedia's own explanations of the params' feature, one row each.

    Raises:
        BadInput: it lists none, or there is no such feature.
    """
    from mikit.evidence.neuronpedia import feature_record, their_explanations

    record, _ = feature_record(params)
    texts = their_explanations(record)
    if not texts:
        raise BadInput(f"feature {params.feature} has no explanation at Neuronpedia: valid: --explanation TEXT")
    return [Row(params.feature, text, None, None, where="neuronpedia") for text in texts]


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _row(row: Mapping[str | None, Any], where: str) -> Row:
    if None in row or None in row.values():
        raise BadInput(
            f"{where}: {'more' if None in row else 'fewer'} values than columns: quote texts that hold commas"
        )
    index = _text(row["feature"])
    if not (index.isascii() and index.isdigit()):
        raise BadInput(f"{where}: feature = {index!r}: valid: the index of a latent")
    parts = {name: _text(row.get(name)) or None for name in COLUMNS[1:]}
    if not any(parts.values()):
        raise BadInput(f"{where}: neither explanation, output nor rule is given")
    others = {str(name): str(value) for name, value in row.items() if name not in COLUMNS}
    return Row(int(index), parts["explanation"], parts["output"], parts["rule"], where, others)


def explanation_of_row(row: Row, vocabulary: Vocabulary, judged: bool = False) -> Explanation:
    """What was given as hypotheses that can be tested: sentences are read, tokens are found in the vocabulary.

    Args:
        row: what was given.
        vocabulary: of the explained model.
        judged: whether there is somebody to judge what a sentence says that names no token; else it is refused.

    Raises:
        BadInput: the rule is none, a sentence says nothing that can be checked, or a token is not in the vocabulary.
    """
    try:
        return Explanation(input=_input(row, vocabulary, judged), output=_output(row, vocabulary, judged))
    except BadInput as error:
        raise BadInput(f"{row.where}: {error}") from None


def _input(row: Row, vocabulary: Vocabulary, judged: bool) -> InputHypothesis | None:
    if row.rule is not None:
        rule = _rule(row.rule)
    elif row.explanation is None:
        return None
    elif judged:
        return InputHypothesis(id="H1", text=" ".join(row.explanation.split()), rule=None)
    else:
        rule = read_rule(row.explanation)
    known = Rule(any_of=[_known(clause, vocabulary) for clause in rule.any_of])
    return InputHypothesis(id="H1", text=row.explanation or describe(known), rule=known)


def _rule(text: str) -> Rule:
    example = '{"any_of": [{"tokens": [" at"], "after": [" look"], "within": 3}]}'
    try:
        return Rule.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"rule: {where + ': ' if where else ''}{first['msg']}: valid: {example}") from None


def _output(row: Row, vocabulary: Vocabulary, judged: bool) -> OutputHypothesis | None:
    if row.output is None:
        return None
    if judged:
        lowers = re.search(DIRECTIONS["suppresses"], row.output, re.IGNORECASE)
        words = " ".join(row.output.split())
        return OutputHypothesis(id="O1", text=words, direction="suppresses" if lowers else "promotes", kind="text")
    given = read_output(row.output)
    if given.kind == "list":
        tokens = known_tokens(given.tokens, vocabulary)
        if len(tokens) > 50:
            raise BadInput(f"output: {len(tokens)} tokens: valid: 50 at most")
        return given.model_copy(update={"tokens": tokens})
    assert given.rule is not None
    return given.model_copy(update={"rule": _known(given.rule, vocabulary)})


def _known(clause: Clause, vocabulary: Vocabulary) -> Clause:
    """The clause with tokens as the vocabulary spells them."""
    parts = {"tokens": clause.tokens, "after": clause.after}
    return clause.model_copy(update={name: known_tokens(part, vocabulary) for name, part in parts.items() if part})


def known_tokens(texts: Iterable[str], vocabulary: Vocabulary) -> list[str]:
    """Each text as a token: itself if it is one, else with a space before it, as words of a running text have.

    Raises:
        BadInput: it is no token either way.
    """
    found = []
    for text in texts:
        spelled = next((each for each in (text, f" {text}") if each in vocabulary.id_of), None)
        if spelled is None:
            raise BadInput(
                f"{json.dumps(text, ensure_ascii=False)} is no token of this model: {_near(text, vocabulary)}"
            )
        found.append(spelled)
    return list(dict.fromkeys(found))


def _near(text: str, vocabulary: Vocabulary) -> str:
    """Tokens that begin alike, the most frequent first."""
    start = text.strip()[:3].lower()
    alike = [token for token in vocabulary.id_of if start and token.strip().lower().startswith(start)]
    alike.sort(key=lambda token: -int(vocabulary.counts[vocabulary.id_of[token]]))
    shown = ", ".join(json.dumps(token, ensure_ascii=False) for token in alike[:5])
    return f"near it: {shown}" if shown else "valid: a whole token, spaces included"


def score_rows(params: Params, rows: Sequence[Row]) -> Iterator[tuple[Row, Scored]]:
    """Score explanations one after the other; those that were scored before, with the same parameters, are read.

    Every row is checked before the first is scored.

    Raises:
        BadInput: there is no such target or feature, or an explanation can't be tested.
    """
    runs = [Run(params.model_copy(update={"feature": row.feature})) for row in rows]
    explanations = []
    for run, row in zip(runs, rows, strict=True):
        try:
            run.target  # noqa: B018  a bad index ends here, before anything is read
        except BadInput as error:
            raise BadInput(f"{row.where}: {error}") from None
        explanations.append(explanation_of_row(row, run.vocabulary, run.params.explainer == "llm"))
    for run, row, explanation in track(
        zip(runs, rows, explanations, strict=True), "scoring", len(rows), unit="explanations"
    ):
        yield row, score(run, explanation)


def score(run: Run, explanation: Explanation) -> Scored:
    """One explanation of the run's feature, scored on `confirm`, and kept in `scores/` beside the feature's runs."""
    path = score_path(run, explanation)
    with run.directory.lock():
        if (kept := _kept(path)) is not None:
            return kept
        tell("1 of 4: looking where the feature fires", 0, 4)
        observation = run.need(observe)
        tell("2 of 4: steering the feature and its controls", 1, 4)
        subject = Subject(run.setting, run.feature, observation, run.need(intervene))
        tell("3 of 4: scoring both ends, and five causal checks", 2, 4)
        judged = judge(subject, explanation.input, explanation.output, "confirm")
        silent = observation.feature_kind in NO_TEXT
        tell("4 of 4: trying explanations that must not pass", 3, 4)
        scored = Scored(
            feature=run.feature,
            feature_kind=observation.feature_kind,
            explanation=explanation,
            gates=judged.gates,
            confirmed=is_confirmed(judged.gates, judged.input_score, judged.output_score),
            input_score=judged.input_score,
            output_score=judged.output_score,
            chain=judged.chain,
            nulls={} if silent or not run.tries_nulls else try_nulls(subject, explanation.input),
            provenance=provenance_of(run, {}),
        )
        write_json(path, scored.model_dump(mode="json"))
        return scored


def score_path(run: Run, explanation: Explanation) -> Path:
    """Where a score lies: its name follows from the explanation, the parameters and the evidence."""
    key = value_hash(
        [explanation.model_dump(mode="json"), run.directory.params_hash, run.store.hash, run.directory.outside]
    )
    return run.directory.path.parent / "scores" / f"{key}.json"


def _kept(path: Path) -> Scored | None:
    try:
        return Scored.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        log.warning("%s is no valid score; making it again", path)
        return None


def summary(model: str, scored: Scored) -> list[str]:
    """The verdict in a few lines for a terminal, which no token of a corpus may steer."""
    layer = scored.provenance.layer
    lines = [f"{model}, layer {layer}, feature {scored.feature}: {scored.feature_kind}"]
    said = {"input": scored.explanation.input, "output": scored.explanation.output, "chain": scored.explanation.output}
    for end, given in said.items():
        if given is not None:
            lines.append(f"  {end:<6} {getattr(scored.gates, end):<9} {'' if end == 'chain' else given.text}".rstrip())
            lines += [f"  {'':<16} {reason}" for name, reason in scored.gates.reasons.items() if name == end]
    if (output := scored.explanation.output) and output.kind == "list" and scored.output_score:
        n = len(scored.output_score.targets)
        if len(output.tokens) < n / 2:
            lines.append(f"  {'':<16} {n} tokens are looked at: a list of {len(output.tokens)} finds few of them.")
    if scored.input_score and scored.input_score.recall.value is not None:
        lines.append(f"  recall {scored.input_score.recall.value:.2f} of the windows that fire")
    if scored.explanation.input and scored.explanation.output:
        lines.append(f"  {'confirmed' if scored.confirmed else 'not confirmed'}")
    return [visible(line) for line in [*lines, *null_lines(scored.nulls)]]


def passes(scored: Scored) -> bool:
    """Whether every gate passes that the explanation speaks of."""
    tried = {
        "input": scored.explanation.input is not None,
        "output": scored.explanation.output is not None,
        "chain": scored.explanation.output is not None,
    }
    return all(getattr(scored.gates, end) == "pass" for end, is_tried in tried.items() if is_tried)


def table_row(row: Row, scored: Scored) -> dict[str, Any]:
    """A row of the table of results: what was given, then what was found."""
    inputs, gates = scored.input_score, scored.gates
    missed = [reason for end, reason in gates.reasons.items() if getattr(gates, end) != "pass"]
    found = (
        gates.input, gates.output, gates.chain, scored.confirmed,
        _value(inputs.coverage if inputs else None), _value(inputs.rejection if inputs else None),
        _value(inputs.recall if inputs else None), _value(inputs.precision if inputs else None),
        round(scored.output_score.score.value, 3) if scored.output_score else None, scored.chain.functional_score,
        scored.feature_kind, _passes(scored.nulls, "neighbour"), _passes(scored.nulls, "shuffled"), " ".join(missed),
    )  # fmt: skip
    given = {"feature": row.feature, "explanation": row.explanation, "output": row.output, "rule": row.rule}
    return given | dict(row.others or {}) | dict(zip(RESULTS, found, strict=True))


def _value(share: Proportion | None) -> float | None:
    return round(share.value, 3) if share and share.value is not None else None


def _passes(nulls: Mapping[str, Null], name: str) -> bool | None:
    return all_pass(nulls[name]) if name in nulls else None


def all_pass(null: Null) -> bool:
    """Whether an explanation that must not pass passes all gates."""
    return set(null.gates.values()) == {"pass"}


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write results as CSV; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
    from mikit.files import atomic_path

    names = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows([{name: _harmless(value) for name, value in row.items()} for row in rows])


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value


def expected_false_passes(nulls: Iterable[Mapping[str, Null]], n: int) -> str | None:
    """How many of `n` explanations would pass all gates though they are another feature's, by the nearest features' rate.

    Returns:
        A sentence with the expected number and its 95 % interval; None where no null was tried.
    """
    return expected_false_passes_of([all_pass(each["neighbour"]) for each in nulls if "neighbour" in each], n)


def expected_false_passes_of(passed: Sequence[bool], n: int) -> str | None:
    """The same from whether each nearest feature's explanation passed."""
    if not passed:
        return None
    rate = wilson(sum(passed), len(passed))
    assert rate.value is not None
    assert rate.low is not None
    assert rate.high is not None
    return (
        f"the nearest feature's explanation passes all gates in {sum(passed)} of {len(passed)}: {rate.value * n:.1f} "
        f"false passes are expected among {n} (95 % interval {rate.low * n:.1f} to {rate.high * n:.1f})"
    )


def default_table(path: Path) -> Path:
    """Where the results of a CSV file go."""
    return paths.outputs() / "scores" / f"{path.stem}.csv"
