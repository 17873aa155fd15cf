"""Many features, one after another in warm kernels: resumable, and a failure of one is its own.

One process drives the kernels of this machine from a thread each, or hands features to a Dask scheduler's workers. The
manifest says how far it is; what proves that a feature is done is its trace.
"""

import contextlib
import logging
import os
import signal
import socket
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mikit import paths
from mikit.errors import BadInput, Stopped
from mikit.files import value_hash
from mikit.progress import working
from mikit.runs import work
from mikit.runs.directory import RunDirectory
from mikit.runs.engine import PREFLIGHT
from mikit.runs.freshness import sources_hash
from mikit.runs.manifest import Entry, Ledger, Manifest, folder_of, held, read_manifest
from mikit.runs.sweep_progress import Display, display, failure_line
from mikit.runs.sweep_spec import SweepSpec, pool_of
from mikit.settings import Params
from mikit.trace import Trace

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5
IN_FLIGHT_WITH_LLM = 4
"""Features in flight for each worker if a language model is asked: a feature waits for it most of its time."""
RECENT = 50
"""Traces that an estimate looks at."""

Key = tuple[int, int]
"""Layer and feature."""


@dataclass(frozen=True)
class Sweep:
    """What to run."""

    params: Params
    """Of every run; layer and feature are replaced."""
    spec: SweepSpec
    notebooks: Path | None = None
    """Folder of the nine notebooks, that of the pipeline if not given."""
    preflight: str = PREFLIGHT

    @property
    def folder(self) -> Path:
        """Where its manifest, logs and report lie."""
        return folder_of(self.spec.name)

    @property
    def identity(self) -> str:
        """Hash of what decides which features these are and what their runs find."""
        told = self.spec.model_dump(mode="json", include={"layers", "features"})
        params = self.params.model_dump(mode="json", exclude={"layer", "feature"})
        return value_hash([told, params, sources_hash(self.params)])

    def params_of(self, key: Key) -> Params:
        """Of one run."""
        return self.params.model_copy(update={"layer": key[0], "feature": key[1]})

    @property
    def in_flight(self) -> int:
        """Features at a time."""
        if self.spec.in_flight is not None:
            return self.spec.in_flight
        return self.spec.workers * (IN_FLIGHT_WITH_LLM if self.params.explainer == "llm" else 1)

    @property
    def hosts(self) -> int:
        """Model hosts that the kernels of this machine share; 0 where each kernel loads the model itself."""
        wanted = self.in_flight > self.spec.workers if self.spec.model_host is None else self.spec.model_host
        # Windows has no such sockets in Python
        return self.spec.workers if wanted and hasattr(socket, "AF_UNIX") else 0

    def job(self, key: Key, wait: bool = False) -> dict[str, Any]:
        """One run as work for a worker."""
        share = max(1, (os.cpu_count() or 1) // self.spec.workers)
        threads = os.environ.get("OMP_NUM_THREADS") or str(share)
        params = self.params_of(key).model_dump(mode="json")
        if self.spec.llm_concurrency is not None:
            params["llm_concurrency"] = max(1, self.spec.llm_concurrency // self.in_flight)
        return work.job_of(
            params,
            work.threads(threads),
            self.folder,
            hosts=self.hosts,
            repeats=self.spec.repeats,
            cell_seconds=self.spec.cell_seconds,
            growth_mib=self.spec.growth_mib,
            notebooks=self.notebooks,
            preflight=self.preflight,
            wait=wait,
        )


@dataclass(frozen=True)
class Result:
    """How a sweep ended."""

    entries: list[Entry]
    folder: Path
    is_stopped: bool
    """Whether it was asked to stop before the end."""

    @property
    def failed(self) -> list[Entry]:
        """What failed."""
        return [entry for entry in self.entries if entry.state == "failed"]


def run_sweep(sweep: Sweep, *, retry_failed: bool = False, scheduler: str | None = None) -> Result:
    """Run what is not done of a sweep.

    Args:
        sweep: what to run.
        retry_failed: also run again what failed before.
        scheduler: address of a Dask scheduler, such as `tcp://host:8786`; `local` starts one here; None needs no Dask.

    Raises:
        BadInput: a feature, the target or the corpus; a manifest of this name is of other features or parameters.
        MikitError: another process runs this sweep.
    """
    lock = held(sweep.folder)
    stop = sweep.folder / ".stop"
    stop.unlink(missing_ok=True)
    try:
        with _workers(sweep, scheduler) as pool, _stopping(stop):
            ledger = _ledger(sweep, pool)
            _look(sweep, ledger)
            todo = [e for e in ledger if e.state == "pending" or (retry_failed and e.state == "failed")]
            before = sum(entry.state == "done" for entry in ledger)
            with display(before + len(todo), before) as shown:
                is_stopped = _run_all(sweep, ledger, pool, [(e.layer, e.feature) for e in todo], shown, stop)
        return Result(list(ledger), sweep.folder, is_stopped)
    finally:
        stop.unlink(missing_ok=True)
        lock.release()


def _ledger(sweep: Sweep, pool: Executor) -> Ledger:
    """The manifest of before, or a new one with the features that were chosen."""
    found = read_manifest(sweep.folder)
    if found is not None and found.identity != sweep.identity:
        raise BadInput(
            f"{sweep.folder / 'manifest.json'} is of other features, parameters or files: "
            "valid: the same ones, another name, or none there (delete it: finished runs are kept)"
        )
    if found is None:
        keys = choose_features(sweep, pool)
        found = Manifest(
            name=sweep.spec.name,
            identity=sweep.identity,
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            params=sweep.params.model_dump(mode="json", exclude={"layer", "feature"}),
            spec=sweep.spec.model_dump(mode="json"),
            entries=[_entry(sweep, key) for key in keys],
        )
    ledger = Ledger(found, sweep.folder)
    ledger.write()
    return ledger


def _entry(sweep: Sweep, key: Key) -> Entry:
    folder = RunDirectory(sweep.params_of(key)).path.relative_to(paths.outputs()).as_posix()
    return Entry(layer=key[0], feature=key[1], folder=folder)


def choose_features(sweep: Sweep, pool: Executor) -> list[Key]:
    """Layer and feature of everything that a sweep takes, by layer: loads each target, and makes its evidence."""
    keys: list[Key] = []
    for layer in dict.fromkeys(sweep.spec.layers):
        job = sweep.job((layer, 0)) | {"features": sweep.spec.features.model_dump(mode="json")}
        with working(f"loading layer {layer} and choosing features; the first time a corpus is read"):
            keys += [(layer, feature) for feature in pool.submit(work.prepare, job).result()]
    return keys


def _look(sweep: Sweep, ledger: Ledger) -> None:
    """Have the manifest agree with the files: what has its trace is done, and what has lost it is not."""
    for entry in list(ledger):
        key = entry.layer, entry.feature
        directory = RunDirectory(sweep.params_of(key))
        has_trace = directory.trace_path.exists() and (
            directory.read_trace() is not None if entry.state == "done" else directory.finished()
        )
        if has_trace and entry.state != "done":
            ledger.note(key, state="done", step=None, cause=None)
        elif not has_trace and entry.state == "done":
            ledger.note(key, state="pending")


def _run_all(sweep: Sweep, ledger: Ledger, pool: Executor, todo: Sequence[Key], shown: Display, stop: Path) -> bool:
    """Run features until all have ended; whether it was stopped before."""
    running: dict[Future[dict[str, Any]], Key] = {pool.submit(work.run_feature, sweep.job(key)): key for key in todo}
    busy: list[Key] = []
    is_stopped = False
    try:
        while running or busy:
            if not running:
                # held by another process: wait for each, now that nothing else is left
                running, busy = {pool.submit(work.run_feature, sweep.job(key, wait=True)): key for key in busy}, []
            done, _ = wait(running, POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                key = running.pop(future)
                state = _note(ledger, key, future, shown)
                is_stopped |= state == "stopped"
                busy += [key] * (state == "busy")
            if stop.exists():
                is_stopped, busy = True, []
                for future in [future for future in running if future.cancel()]:
                    running.pop(future)
    except BaseException:
        # or a worker would take its killed kernel for a lost one, and start another
        stop.touch()
        for future in running:
            future.cancel()
        work.kill_all()
        raise
    return is_stopped


def _note(ledger: Ledger, key: Key, future: Future[dict[str, Any]], shown: Display) -> str:
    """Write down how a feature ended."""
    try:
        outcome = future.result()
    except Exception as error:
        # a worker that was lost again and again
        outcome = {"state": "failed", "seconds": None, "step": None, "cause": f"{type(error).__name__}: {error}"}
    if outcome["state"] in ("done", "failed"):
        news = {name: outcome[name] for name in ("state", "seconds", "step", "cause")}
        shown.ended(ledger.note(key, attempts=ledger[key].attempts + 1, **news))
    return outcome["state"]


# --- workers ---


@contextlib.contextmanager
def _workers(sweep: Sweep, scheduler: str | None) -> Iterator[Executor]:
    """Who runs features: threads of this process, each with a kernel of its own, or the workers of a scheduler."""
    if scheduler is not None:
        from mikit.runs.cluster import connected

        with connected(scheduler, sweep.spec.workers, -(-sweep.in_flight // sweep.spec.workers)) as pool:
            yield pool
        return
    pool = ThreadPoolExecutor(sweep.in_flight, thread_name_prefix="sweep")
    try:
        yield pool
    except BaseException:
        (sweep.folder / ".stop").touch()
        work.kill_all()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        work.close_all()


@contextlib.contextmanager
def _stopping(stop: Path) -> Iterator[None]:
    """Let the first interrupt ask for a stop after the steps that are running, and the second stop at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(_signal: int, _frame: object) -> None:
        if stop.exists():
            raise KeyboardInterrupt
        stop.touch()
        log.info("stopping after the steps that are running; interrupt once more to stop now")

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# --- before and after ---


@dataclass(frozen=True)
class Estimate:
    """What a sweep will take, by runs of the same model and layers that are done."""

    features: int | None
    """None where only the evidence can tell."""
    runs: int
    """That it rests on."""
    seconds: float | None
    """With all workers."""
    tokens: float | None
    usd: float | None
    """None where no price is known."""

    def lines(self) -> list[str]:
        """For a terminal."""
        count = (
            "a number of features that the evidence will tell" if self.features is None else f"{self.features} features"
        )
        if not self.runs:
            return [f"{count}; how long is not known before one feature of this model and layer is done"]
        time = "time not known" if self.seconds is None else f"about {self.seconds / 60:,.1f} minutes"
        usd = "price not known" if self.usd is None else f"{self.usd:,.2f} USD"
        tokens = "no tokens of an LLM" if not self.tokens else f"about {self.tokens:,.0f} tokens of an LLM, {usd}"
        return [
            f"{count}: {time}, {tokens}",
            f"by the median of {self.runs} runs of this model and layer that are done",
        ]


def estimate(sweep: Sweep) -> Estimate:
    """What a sweep will take; nothing is loaded, so features that only the evidence can tell are counted by their sample."""
    features = sweep.spec.features
    counts = [None if (pool := pool_of(features, layer)) is None else len(pool) for layer in sweep.spec.layers]
    known = None if any(n is None for n in counts) else sum(n or 0 for n in counts)
    if features.sample:
        known = sum(min(features.sample, features.sample if n is None else n) for n in counts)
    elif features.density:
        known = None
    metas = [trace.meta for layer in sweep.spec.layers for trace in _recent(sweep.params.model, layer)]
    if not metas:
        return Estimate(known, 0, None, None, None)
    n = known or 0
    prices = [meta.token_cost.usd for meta in metas if meta.token_cost.usd is not None]
    return Estimate(
        features=known,
        runs=len(metas),
        seconds=statistics.median(meta.seconds for meta in metas) * n / sweep.in_flight if known else None,
        tokens=statistics.median(meta.token_cost.total_tokens for meta in metas) * n if known else None,
        usd=statistics.median(prices) * n if prices and known else None,
    )


def _recent(model: str, layer: int) -> list[Trace]:
    """The latest traces of a model's layer."""
    found = sorted(
        (paths.outputs() / f"layer-{layer}").glob("feature-*/*/trace.json"),
        key=lambda p: p.stat().st_mtime,
        reverse=True,
    )
    traces = []
    for path in found[:RECENT]:
        with contextlib.suppress(OSError, ValidationError):
            trace = Trace.model_validate_json(path.read_bytes())
            if trace.provenance.params.get("model") == model and trace.meta.status == "complete":
                traces.append(trace)
    return traces


def summary(result: Result) -> list[str]:
    """How a sweep ended, in lines."""
    states: Mapping[str, int] = {
        state: sum(entry.state == state for entry in result.entries) for state in ("done", "failed", "pending")
    }
    lines = [f"{len(result.entries)} features: " + ", ".join(f"{n} {state}" for state, n in states.items() if n)]
    lines += [f"  {failure_line(entry)}" for entry in result.failed[:10]]
    if len(result.failed) > 10:
        lines.append(f"  and {len(result.failed) - 10} more, in {result.folder / 'manifest.json'}")
    if result.failed:
        lines.append("what failed stays so until --retry-failed")
    return lines


def require_all(result: Result) -> None:
    """Raise `Stopped` for a sweep that was stopped."""
    if result.is_stopped:
        left = sum(entry.state == "pending" for entry in result.entries)
        raise Stopped(f"stopped with {left} features left; what is done is kept: the same command goes on from there")
