"""Many trials, each made once and kept: resumable, in as many processes as asked for."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from mikit import paths
from mikit.files import value_hash, write_json
from mikit.progress import track
from mikit.settings import Params
from mikit.trace import Record

R = TypeVar("R", bound=Record)
J = TypeVar("J")
SCHEME = 1
"""Counts changes of the method after which trials of before no longer count."""


def collect(
    make: Callable[[J], R], jobs: Mapping[str, J], schema: type[R], folder: Path, what: str, workers: int = 1
) -> list[R]:
    """The record of each job, read from `folder` where it is there, else made and written.

    Args:
        make: makes the record of a job; a function of a module, since other processes call it.
        jobs: by name of their file, without `.json`.
        schema: of the records.
        folder: where the files lie.
        what: the work's name, for the progress bar.
        workers: processes; each takes its share of the cores.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in jobs if read(schema, folder / f"{name}.json") is None]
    if workers > 1 and len(missing) > 1:
        threads = max(1, (os.cpu_count() or 1) // workers)
        context = get_context("spawn")
        with ProcessPoolExecutor(
            min(workers, len(missing)), mp_context=context, initializer=_one_share, initargs=(threads,)
        ) as pool:
            running = [pool.submit(_make, make, jobs[name], folder / f"{name}.json") for name in missing]
            try:
                for done in track(as_completed(running), what, len(running), unit="features"):
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    else:
        for name in track(missing, what, len(missing), unit="features"):
            _make(make, jobs[name], folder / f"{name}.json")
    found = [read(schema, folder / f"{name}.json") for name in jobs]
    return [record for record in found if record is not None]


def folder_of(params: Params) -> Path:
    """Where the trials of a calibration lie: apart for other parameters, whatever the feature."""
    key = value_hash([params.model_dump(mode="json", exclude={"feature", "batch"}), SCHEME])
    return paths.outputs() / "calibration" / f"{params.model.replace('/', '-')}-{key}"


def read(schema: type[R], path: Path) -> R | None:
    """What was kept; None if there is nothing, or nothing valid."""
    try:
        return schema.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _make(make: Callable[[J], R], job: J, path: Path) -> None:
    write_json(path, make(job).model_dump(mode="json"))


def _one_share(threads: int) -> None:
    """Torch's threads of one process among several."""
    import torch

    torch.set_num_threads(threads)
