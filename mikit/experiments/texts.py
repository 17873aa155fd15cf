"""Step 3: the texts that a hypothesis is tested on. No activation is in reach here.

Positives and `authored` near misses are written from the hypothesis alone. The other near misses are windows of the
split that the hypothesis predicts silent: `corpus` holds a trigger token, `neighbour` holds a token near to one,
`random` holds anything. An empty stratum is reported, never filled up.
"""

import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from jaxtyping import Int

from mikit.evidence.vocabulary import Vocabulary
from mikit.evidence.windows import WindowTable
from mikit.experiments.near_tokens import nearest_tokens
from mikit.experiments.setting import Setting
from mikit.explainers.base import AuthorFailed
from mikit.explainers.rules import constrains_token, trigger_texts
from mikit.trace import SPLITS, STRATA, InputExperiment, InputHypothesis, Observation, Rule, Split, Stratum, TextCase

MOST_CARRIERS = 2000
"""Windows that a writer is given."""
TRIES = 20
"""Windows judged for each that is wanted, before a stratum is left short."""
TRIES_OF_A_JUDGE = 4
"""The same where each has to be read by a judge."""
OF_ONE_TEXT = 0.5
"""Share of equal tokens from which a text of the same length is an edited window."""


@dataclass(frozen=True)
class Draw:
    """Windows of a split in random order, and what was taken of them."""

    windows: Int[np.ndarray, " window"]
    taken: set[tuple[int, ...]] = field(default_factory=set)
    """The texts of the experiment so far."""
    documents: set[str] = field(default_factory=set)
    """Theirs."""
    judged: Counter[bool] = field(default_factory=Counter)
    """Windows that were judged, by whether that failed."""


def design_experiment(
    setting: Setting,
    hypothesis: InputHypothesis,
    split: Split,
    n: int,
    trigger_ids: Sequence[int] = (),
) -> InputExperiment:
    """The texts of one hypothesis on one split.

    Args:
        setting: evidence, whose windows are drawn from and whose activations are not looked at, writer and seed.
        hypothesis: what is tested.
        split: whose documents are used.
        n: positives wanted, and near misses wanted in each stratum.
        trigger_ids: tokens that the hypothesis speaks of, where it has no rule to tell: see `peak_tokens`.
    """
    seed = [setting.seed, SPLITS.index(split), zlib.crc32(hypothesis.text.encode())]
    draw = _draw(setting.drawn_from.table, split, seed)
    triggers = rule_tokens(hypothesis.rule, setting.vocabulary) if hypothesis.rule else list(trigger_ids)
    note = None
    try:
        cases = _written(setting, hypothesis, n, draw, seed)
    except AuthorFailed as failure:
        cases, note = [], str(failure)
    for case in cases:
        _note(draw, case)
    for stratum, windows in _candidates(setting, draw, triggers):
        for window in islice(_silent(setting, hypothesis, windows, n, draw), n):
            case = _window_case(setting, window, stratum)
            _note(draw, case)
            cases.append(case)
    return InputExperiment(
        hypothesis=hypothesis.id,
        split=split,
        cases=cases,
        shortfall=_shortfall(cases, n),
        judgements=draw.judged.total(),
        failed_judgements=draw.judged[True],
        note=note,
    )


def _note(draw: Draw, case: TextCase) -> None:
    draw.taken.add(tuple(case.ids))
    if case.document is not None:
        draw.documents.add(case.document)


def rule_tokens(rule: Rule, vocabulary: Vocabulary) -> list[int]:
    """Ids of the tokens that a rule speaks of: those that can satisfy a clause or, if no clause says which, its cues."""
    if any(constrains_token(clause) for clause in rule.any_of):
        texts = frozenset(trigger_texts(rule, vocabulary.texts))
    else:
        texts = frozenset(token for clause in rule.any_of for token in clause.after or ())
    return [i for i, text in enumerate(vocabulary.texts) if text in texts and i not in vocabulary.special_ids]


def peak_tokens(observation: Observation) -> list[int]:
    """Ids of the tokens on which the feature peaks in the firing windows shown, the most common first."""
    firing = [window for window in observation.windows if window.peak >= observation.tau > 0]
    return [i for i, _ in Counter(window.ids[window.peak_index] for window in firing).most_common()]


def _draw(table: WindowTable, split: Split, seed: Sequence[int]) -> Draw:
    """The windows that may be used, in random order, documents taking turns.

    A window at the end of a document is shorter, and holds any given token less often, so that its length would tell
    what was written into it from what was found: short windows are left out, unless most windows are short.
    """
    allowed = np.flatnonzero(table.in_split(split))
    whole = allowed[table.lengths[allowed] == table.ids.shape[1]]
    windows = np.random.default_rng(seed).permutation(whole if len(whole) >= len(allowed) / 2 else allowed)
    return Draw(in_turns(windows, table.document[windows].tolist()))


def in_turns(windows: Int[np.ndarray, " window"], groups: Iterable[Hashable]) -> Int[np.ndarray, " window"]:
    """One window of each group before a second of any: few texts share a document; the order is kept otherwise."""
    seen: Counter[Hashable] = Counter()
    turns = []
    for group in groups:
        turns.append(seen[group])
        seen[group] += 1
    return windows[np.argsort(turns, kind="stable")]


def _written(setting: Setting, hypothesis: InputHypothesis, n: int, draw: Draw, seed: Sequence[int]) -> list[TextCase]:
    """What the writer makes of the hypothesis, without repeats, each with the document of the window it was made from."""
    table, carriers = setting.drawn_from.table, draw.windows[:MOST_CARRIERS]
    texts = [table.text(window) for window in carriers]
    author_seed = int(np.random.default_rng(seed).integers(2**31))
    written = setting.explainer.author(hypothesis, n, n, texts, setting.vocabulary, author_seed)
    distinct: dict[tuple[int, ...], TextCase] = {}
    for case in written:
        distinct.setdefault(tuple(case.ids), case)
    return [
        case.model_copy(update={"document": case.document or origin_of(case.ids, table, carriers)})
        for ids, case in distinct.items()
        if ids
    ]


def origin_of(ids: Sequence[int], table: WindowTable, windows: Int[np.ndarray, " window"]) -> str | None:
    """The document of the window that a text is, or is an edit of; None for a text that was written afresh."""
    alike = windows[table.lengths[windows] == len(ids)]
    if not len(alike):
        return None
    same = (table.ids[alike, : len(ids)] == np.asarray(ids)).mean(axis=1)
    best = int(same.argmax())
    return table.document_of(alike[best]) if same[best] >= OF_ONE_TEXT else None


def _candidates(
    setting: Setting, draw: Draw, triggers: Sequence[int]
) -> Iterator[tuple[Stratum, Int[np.ndarray, " window"]]]:
    """The windows that each stratum is drawn from, in the order in which they are tried."""
    table = setting.drawn_from.table
    ids = table.ids[draw.windows]
    yield "corpus", draw.windows[np.isin(ids, list(triggers)).any(axis=1)]
    present = np.setdiff1d(ids, [-1, *setting.vocabulary.special_ids])
    nearest = nearest_tokens(setting.target, setting.vocabulary, triggers, present)
    held = np.full(len(ids), -1)
    for token in reversed(nearest):
        held[(ids == token).any(axis=1)] = token
    # every near token gets its turn, or the most frequent would be all that is tested
    yield "neighbour", in_turns(draw.windows[held >= 0], held[held >= 0].tolist())
    yield "random", draw.windows


def _silent(
    setting: Setting, hypothesis: InputHypothesis, windows: Int[np.ndarray, " window"], n: int, draw: Draw
) -> Iterator[int]:
    """Windows that the hypothesis predicts silent and whose text is new, those of unused documents first."""
    table = setting.drawn_from.table
    fresh = [window for window in windows.tolist() if tuple(table.text(window)) not in draw.taken]
    used = [table.document_of(window) in draw.documents for window in fresh]
    tries = TRIES if hypothesis.rule else TRIES_OF_A_JUDGE
    ordered = [fresh[i] for i in np.argsort(used, kind="stable")][: tries * n]
    for start in range(0, len(ordered), n):
        part = ordered[start : start + n]
        tokens = [[setting.vocabulary.texts[i] for i in table.text(window)] for window in part]
        answers = setting.explainer.predicts(hypothesis, tokens)
        draw.judged.update(answer is None for answer in answers)
        yield from (window for window, answer in zip(part, answers, strict=True) if answer is False)


def _window_case(setting: Setting, window: int, stratum: Stratum) -> TextCase:
    table = setting.drawn_from.table
    ids = table.text(window)
    return TextCase(
        role="near_miss", stratum=stratum, ids=ids, text=setting.target.text_of(ids), document=table.document_of(window)
    )


def _shortfall(cases: Sequence[TextCase], n: int) -> dict[str, int]:
    counts: Counter[str] = Counter(case.stratum or "positive" for case in cases)
    return {group: n - counts[group] for group in ("positive", *STRATA) if counts[group] < n}
