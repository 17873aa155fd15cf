"""The folder of one run: its step files, its executed notebooks, its trace, and the lock that one process holds."""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mikit import paths
from mikit.errors import BadInput, RunIsBusy
from mikit.files import write_json, write_text
from mikit.llm.ledger import total
from mikit.runs.freshness import (
    BUDGET,
    ROUNDS,
    STEPS,
    budget_of,
    inputs_of,
    is_fresh,
    params_hash,
    rounds_hash,
    sources_hash,
    stale_steps,
)
from mikit.settings import Params
from mikit.settings_sources import resolved
from mikit.trace import StepFile, TokenCost, Trace

log = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)


class RunDirectory:
    """`outputs/layer-L/feature-F/RUN/`. Making one touches nothing on disk."""

    def __init__(self, params: Params) -> None:
        self.params = params = resolved(params, os.environ)
        self.path = paths.outputs() / f"layer-{params.layer}" / f"feature-{params.feature}" / params.run

    @property
    def trace_path(self) -> Path:
        """Where the trace lies; its presence means that the run is done."""
        return self.path / "trace.json"

    @property
    def report_path(self) -> Path:
        """Where the report lies."""
        return self.path / "report.html"

    @property
    def ledger_path(self) -> Path:
        """Where what was spent on language models is written down."""
        return self.path / "llm-ledger.jsonl"

    ledger_prefix = ""
    """What stands before a step's name in the ledger."""

    def step_path(self, step: int) -> Path:
        """Where a step's file lies."""
        return self.path / f"step{step}.json"

    @cached_property
    def params_hash(self) -> str:
        """Hash of the parameters."""
        return params_hash(self.params)

    @cached_property
    def _sources(self) -> str:
        return sources_hash(self.params)

    @property
    def outside(self) -> dict[str, str]:
        """Hashes of what the run reads and does not write, and of its rounds of refinement."""
        return {"sources": self._sources, BUDGET: budget_of(self.params), ROUNDS: rounds_hash(self.path / "rounds")}

    # --- step files and trace ---

    def read(self, step: int) -> StepFile | None:
        """A step's file, fresh or not. One that is torn or does not fit the schema counts as absent, and is logged."""
        return _read(StepFile, self.step_path(step))

    def files(self) -> dict[int, StepFile]:
        """All step files that can be read."""
        return {step: file for step in STEPS if (file := self.read(step))}

    def read_trace(self) -> Trace | None:
        """The trace, if there is a valid one."""
        return _read(Trace, self.trace_path)

    def write(
        self,
        step: int,
        outputs: Mapping[str, Any],
        inputs: Mapping[str, str],
        seconds: float,
        started_at: str,
        purposes: Mapping[str, TokenCost] | None = None,
    ) -> StepFile:
        """Write a step's file, atomically.

        Args:
            step: 1 to 9.
            outputs: what it found, as JSON values.
            inputs: hashes of what it read besides step files and `outside`, which are added here: the evidence.
            seconds: how long it took.
            started_at: ISO 8601, UTC.
            purposes: what its LLM calls cost, by purpose.
        """
        cost = total(purposes or {})
        read = self.outside | inputs_of(step, self.files()) | dict(inputs)
        if not cost.over_budget:
            # a budget that was not reached changed nothing
            read.pop(BUDGET)
        if step != STEPS[-1]:
            read.pop(ROUNDS)
        file = StepFile(
            step=step,
            inputs=read,
            params_hash=self.params_hash,
            params=self.params.model_dump(mode="json"),
            outputs=dict(outputs),
            ledger=cost,
            purposes=dict(purposes or {}),
            seconds=seconds,
            started_at=started_at,
        )
        write_json(self.step_path(step), file.model_dump(mode="json"))
        return file

    def write_trace(self, trace: Trace) -> None:
        """Write the trace, atomically: the last thing a run does."""
        write_json(self.trace_path, trace.model_dump(mode="json"))

    def is_fresh(self, step: int, outside: Mapping[str, str] | None = None) -> bool:
        """Whether a step's file says what running it again would, provided that the steps it reads are fresh.

        Args:
            step: 1 to 9.
            outside: more hashes, by name in a step file's `inputs`, such as `evidence` where it is known.
        """
        return is_fresh(step, self.files(), self.params_hash, self.outside | dict(outside or {}))

    def stale(self) -> tuple[int, ...]:
        """The steps to run again."""
        return stale_steps(self.files(), self.params_hash, self.outside)

    def finished(self) -> bool:
        """Whether there is a valid trace and nothing to run again."""
        return not self.stale() and self.read_trace() is not None

    # --- lock ---

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run; the operating system lets go of it when the process ends, however it ends.

        Raises:
            RunIsBusy: another process holds it; the line names that process.
            BadInput: the folder can't be written.
        """
        from filelock import FileLock, Timeout

        holder = self.path / ".lock-holder"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock", timeout=0)
            lock.acquire()
            write_text(holder, str(os.getpid()))
        except Timeout:
            pid = holder.read_text() if holder.exists() else "unknown"
            raise RunIsBusy(
                f"process {pid} is working on {self.path}: wait for it, stop it, or give this run another --run name"
            ) from None
        except OSError as error:
            raise BadInput(
                f"{self.path} can't be written ({error.strerror}): make it writable, or name another folder in MIKIT_OUTPUTS"
            ) from None
        try:
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()


def _read(model: type[M], path: Path) -> M | None:
    try:
        return model.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        log.warning("%s is not a valid %s and counts as absent: %s", path, model.__name__, str(error).splitlines()[0])
        return None
