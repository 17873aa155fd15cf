"""One run of one feature: its parameters, its folder, and what the steps share, each loaded when first needed."""

import contextlib
import copy
import dataclasses
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache, update_wrapper
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast
from zlib import crc32

from pydantic import ValidationError

from mikit import paths
from mikit.evidence import open_evidence
from mikit.evidence.prompts import neutral_prompts
from mikit.evidence.store import EvidenceStore
from mikit.evidence.vocabulary import Vocabulary, vocabulary_of
from mikit.experiments.setting import Setting
from mikit.explainers import get_explainer
from mikit.explainers.base import Explainer, Tokenization
from mikit.progress import working
from mikit.runs.directory import RunDirectory
from mikit.settings import Params, Protocol, make_params
from mikit.targets import Options, Target, load_target
from mikit.targets.options import options_of
from mikit.targets.preflight import require_fit
from mikit.targets.remote import served_target
from mikit.targets.state import fingerprint
from mikit.trace import SPLITS, Record, Split, TokenCost, Trace

if TYPE_CHECKING:
    from mikit.llm import Client
    from mikit.llm.ledger import Ledger

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Record)
_loaded: list["weakref.ref[Target]"] = []
_as_loaded: "weakref.WeakKeyDictionary[Target, tuple[Any, ...]]" = weakref.WeakKeyDictionary()
_vocabularies: "weakref.WeakKeyDictionary[Target, Vocabulary]" = weakref.WeakKeyDictionary()
"""The one that was used last with each target."""
_neutral: "weakref.WeakKeyDictionary[Target, Mapping[Split, Sequence[Sequence[int]]]]" = weakref.WeakKeyDictionary()
STEP_NAMES = (
    "where the feature fires",
    "what makes it fire",
    "texts that would prove it wrong",
    "input scores",
    "intervention",
    "what it does",
    "output scores",
    "causal checks",
    "the verdict",
)
"""What each step does, as its progress is named."""


@lru_cache(maxsize=2)
def _target(name: str, layer: int, options: Options) -> Target:
    """One process keeps the targets that it loaded last, checked: a warm kernel loads none twice.

    Where the environment names a model host, that one loads and checks, and this process holds a stand-in.
    """
    if address := paths.model_host():
        target = served_target(address, name, layer, options)
    else:
        target = load_target(name, layer, options)
        require_fit(target)
    _loaded.append(weakref.ref(target))
    _as_loaded[target] = fingerprint(target)
    return target


def _vocabulary(target: Target, store: EvidenceStore) -> Vocabulary:
    before = _vocabularies.get(target)
    if before is None or before.counts is not store.token_counts:
        _vocabularies[target] = before = vocabulary_of(target, store.token_counts)
    return before


def _prompts(target: Target) -> Mapping[Split, Sequence[Sequence[int]]]:
    if target not in _neutral:
        texts = {split: tuple(map(tuple, neutral_prompts(target, split))) for split in SPLITS}
        _neutral[target] = MappingProxyType(texts)
    return _neutral[target]


def loaded_targets() -> list[Target]:
    """The targets that this process keeps."""
    return [target for each in _loaded if (target := each()) is not None]


def as_loaded(target: Target) -> tuple[Any, ...]:
    """The fingerprint that a kept target had when it was loaded."""
    return _as_loaded[target]


class Recorded(NamedTuple):
    """The row that a notebook ends with."""

    step: int
    path: str
    seconds: float


@dataclasses.dataclass
class _Done:
    result: Record
    seconds: float
    started_at: str
    purposes: dict[str, TokenCost]


class Run:
    """What the nine steps work on.

    Raises:
        BadInput: when the target is loaded, if there is no such target, layer or feature.
    """

    def __init__(self, params: Params) -> None:
        self.directory = RunDirectory(params)
        self.params = self.directory.params
        self._done: dict[int, _Done] = {}

    @property
    def protocol(self) -> Protocol:
        """What was decided before any hypothesis."""
        return self.params.protocol

    @property
    def feature(self) -> int:
        """Index of the latent that is explained."""
        return self.params.feature

    @cached_property
    def target(self) -> Target:
        """The language model and its SAE."""
        target = _target(self.params.model, self.params.layer, options_of(self.params))
        target.check_feature(self.feature)
        return target

    @cached_property
    def store(self) -> EvidenceStore:
        """Where every latent of the SAE fires in the corpus: read from disk, or made."""
        return open_evidence(self.target, self.params)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The target's tokens with their counts in the corpus."""
        return _vocabulary(self.target, self.store)

    @cached_property
    def explainer(self) -> Explainer:
        """Who writes and judges."""
        tokens = Tokenization(self.target.ids_of, self.target.text_of)
        return get_explainer(self.params.explainer, self.params, lambda: self.client, tokens)

    @cached_property
    def client(self) -> "Client":
        """What asks language models, with the run's ledger."""
        from mikit.llm import open_client

        return open_client(self.params, self.directory.ledger_path)

    @property
    def ledger(self) -> "Ledger | None":
        """What the run's language models cost so far; None where none is asked."""
        return self.client.ledger if self.params.explainer == "llm" else None

    @property
    def tries_nulls(self) -> bool:
        """Whether explanations that must not pass are tried: with a language model on every tenth feature, if nobody says."""
        if self.params.nulls is not None:
            return self.params.nulls
        return self.params.explainer != "llm" or crc32(f"{self.params.seed}/{self.feature}".encode()) % 10 == 0

    @cached_property
    def prompts(self) -> Mapping[Split, Sequence[Sequence[int]]]:
        """Neutral prompts by split, as content ids."""
        return _prompts(self.target)

    @cached_property
    def setting(self) -> Setting:
        """What all experiments share."""
        return Setting(
            target=self.target,
            store=self.store,
            vocabulary=self.vocabulary,
            explainer=self.explainer,
            prompts=self.prompts,
            protocol=self.protocol,
            seed=self.params.seed,
            batch=self.params.batch,
        )

    def of_feature(self, feature: int) -> "Run":
        """A run with the same parameters on another feature; what is loaded is shared.

        Raises:
            BadInput: there is no such latent.
        """
        self.target.check_feature(feature)
        other = Run(self.params.model_copy(update={"feature": feature}))
        # an explainer that asks a language model writes into the ledger of its own run
        shared = ("target", "store", "vocabulary", "prompts") + (
            ("explainer", "setting") if self.params.explainer != "llm" else ()
        )
        other.__dict__.update({name: self.__dict__[name] for name in shared if name in self.__dict__})
        return other

    @contextlib.contextmanager
    def accounted(self, step: int) -> Iterator[dict[str, TokenCost]]:
        """Count what language models cost under this step; a step that it runs on the way is counted under its own."""
        purposes: dict[str, TokenCost] = {}
        if (ledger := self.ledger) is None:
            yield purposes
            return
        before, name = ledger.step, f"{self.directory.ledger_prefix}step{step}"
        ledger.begin(name)
        try:
            yield purposes
            purposes.update(ledger.used.get(name, {}))
        finally:
            ledger.resume(before)

    def timed(self, step: int, work: Callable[[], R]) -> R:
        """Do a step's work: it is timed and accounted for, and what it finds is kept for `record`."""
        started_at, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        with self.accounted(step) as purposes, working(f"step {step} of 9, {STEP_NAMES[step - 1]}", logs=False):
            result = work()
        self._done[step] = _Done(result, time.monotonic() - start, started_at, dict(purposes))
        return result

    def perform(self, step: "Step[R]", work: Callable[[], R]) -> R:
        """Do other work in a step's place, and record it as the step's."""
        result = self.timed(step.number, work)
        self.record(step.number)
        return result

    def at(self, directory: RunDirectory) -> "Run":
        """The same run with its files elsewhere; what is loaded is shared."""
        other = copy.copy(self)
        other.directory, other._done = directory, {}
        return other

    def need(self, step: "Step[R]") -> R:
        """What an earlier step found: from this process or a fresh file, else by running the step and recording it."""
        number = step.number
        if number in self._done:
            return cast(R, self._done[number].result)
        file = self.directory.read(number)
        if file and number not in self.directory.stale():
            try:
                return step.returns.model_validate(file.outputs)
            except ValidationError:
                # valid JSON, but edited, or written by another version
                log.warning(
                    "%s does not hold what step %d finds; making it again", self.directory.step_path(number), number
                )
        result = step(self)
        self.record(number)
        return result

    def record(self, step: int) -> Recorded:
        """Write the file of a step that this process ran, and the trace after the last step; their presence means done."""
        done = self._done[step]
        file = self.directory.write(
            step,
            outputs=done.result.model_dump(mode="json"),
            inputs={"evidence": self.store.hash},
            seconds=done.seconds,
            started_at=done.started_at,
            purposes=done.purposes,
        )
        if isinstance(done.result, Trace):
            self.directory.write_trace(done.result)
        return Recorded(step, str(self.directory.step_path(step)), round(file.seconds, 2))


@dataclasses.dataclass
class Step(Generic[R]):
    """One of the nine steps: called with a run, it does its work, is timed, and what it finds is kept for `Run.record`."""

    work: Callable[[Run], R]
    number: int
    returns: type[R]

    def __post_init__(self) -> None:
        update_wrapper(self, self.work)

    def __call__(self, run: Run) -> R:
        """Do the step's work on a run."""
        return run.timed(self.number, lambda: self.work(run))


def step(number: int, returns: type[R]) -> Callable[[Callable[[Run], R]], Step[R]]:
    """Make a function of a run one of the nine steps."""
    return lambda work: Step(work, number, returns)


def open_run(**values: Any) -> Run:
    """A run by its parameters, given by name as in `mikit.settings.Params`; nothing is loaded yet.

    Raises:
        BadInput: an unknown name or an invalid value.
    """
    return Run(make_params(values))
