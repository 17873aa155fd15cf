"""One run of one feature: its parameters, its folder, and what the steps share, each loaded when first needed."""

import dataclasses
import logging
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property, lru_cache, wraps
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from mikit.evidence import open_evidence
from mikit.evidence.prompts import neutral_prompts
from mikit.evidence.store import EvidenceStore
from mikit.evidence.vocabulary import Vocabulary, vocabulary_of
from mikit.experiments.setting import Setting
from mikit.explainers import get_explainer
from mikit.explainers.base import Explainer
from mikit.runs.directory import RunDirectory
from mikit.settings import Params, Protocol, make_params
from mikit.targets import Options, Target, load_target
from mikit.targets.options import options_of
from mikit.targets.preflight import require_fit
from mikit.trace import SPLITS, Record, Split, Trace

log = logging.getLogger(__name__)
R = TypeVar("R", bound=Record)
_loaded: list["weakref.ref[Target]"] = []


@lru_cache(maxsize=2)
def _target(name: str, layer: int, options: Options) -> Target:
    """One process keeps the targets that it loaded last, checked: a warm kernel loads none twice."""
    target = load_target(name, layer, options)
    require_fit(target)
    _loaded.append(weakref.ref(target))
    return target


def loaded_targets() -> list[Target]:
    """The targets that this process keeps."""
    return [target for each in _loaded if (target := each()) is not None]


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


class Run:
    """What the nine steps work on.

    Raises:
        BadInput: when the target is loaded, if there is no such target, layer or feature.
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        self.directory = RunDirectory(params)
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
        return vocabulary_of(self.target, self.store.token_counts)

    @cached_property
    def explainer(self) -> Explainer:
        """Who writes and judges."""
        return get_explainer(self.params.explainer)

    @cached_property
    def prompts(self) -> dict[Split, list[list[int]]]:
        """Neutral prompts by split, as content ids."""
        return {split: neutral_prompts(self.target, split) for split in SPLITS}

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

    def need(self, function: Callable[["Run"], R]) -> R:
        """What an earlier step found: from this process or a fresh file, else by running the step and recording it."""
        step: int = function.number  # type: ignore[attr-defined]
        if step in self._done:
            return self._done[step].result  # type: ignore[return-value]
        file = self.directory.read(step)
        if file and step not in self.directory.stale():
            try:
                return function.returns.model_validate(file.outputs)  # type: ignore[attr-defined]
            except ValidationError:
                # valid JSON, but edited, or written by another version
                log.warning(
                    "%s does not hold what step %d finds; making it again", self.directory.step_path(step), step
                )
        result = function(self)
        self.record(step)
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
        )
        if isinstance(done.result, Trace):
            self.directory.write_trace(done.result)
        return Recorded(step, str(self.directory.step_path(step)), round(file.seconds, 2))


def step(number: int, returns: type[Record]) -> Callable[[Callable[[Run], R]], Callable[[Run], R]]:
    """Make a function of a run one of the nine steps: it is timed, and what it finds is kept for `Run.record`."""

    def wrap(function: Callable[[Run], R]) -> Callable[[Run], R]:
        @wraps(function)
        def timed(run: Run) -> R:
            started_at, start = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
            result = function(run)
            run._done[number] = _Done(result, time.monotonic() - start, started_at)
            return result

        timed.number = number  # type: ignore[attr-defined]
        timed.returns = returns  # type: ignore[attr-defined]
        return timed

    return wrap


def open_run(**values: Any) -> Run:
    """A run by its parameters, given by name as in `mikit.settings.Params`; nothing is loaded yet.

    Raises:
        BadInput: an unknown name or an invalid value.
    """
    return Run(make_params(values))
