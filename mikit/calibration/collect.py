"""Many features, each tried once and kept: resumable, in as many processes as asked for."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from pydantic import ValidationError

from mikit.calibration.borrowed import try_explanations
from mikit.calibration.records import FeatureTrials
from mikit.files import write_json
from mikit.progress import track
from mikit.runs.run import Run
from mikit.settings import Params

Try = Callable[[Run], FeatureTrials]


def collect(params: Params, features: Sequence[int], folder: Path, workers: int = 1) -> list[FeatureTrials]:
    """The trials of each feature, read from `folder` where they are there, else made and written.

    Args:
        params: of every run; the feature is replaced.
        features: latents.
        folder: where `feature-F.json` lie.
        workers: processes; each takes its share of the cores.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [feature for feature in features if read(folder, feature) is None]
    if workers > 1 and len(missing) > 1:
        _in_processes(params, missing, folder, min(workers, len(missing)))
    else:
        for feature in track(missing, "calibrating", len(missing), lambda _: 1, "features"):
            make(params, feature, folder)
    found = [read(folder, feature) for feature in features]
    return [trials for trials in found if trials is not None]


def read(folder: Path, feature: int) -> FeatureTrials | None:
    """What was kept of a feature; None if there is nothing, or nothing valid."""
    try:
        return FeatureTrials.model_validate_json((folder / f"feature-{feature}.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def make(params: Params, feature: int, folder: Path) -> None:
    """Try a feature and write what came of it."""
    trials = try_explanations(Run(params.model_copy(update={"feature": feature})))
    write_json(folder / f"feature-{feature}.json", trials.model_dump(mode="json"))


def _in_processes(params: Params, features: Sequence[int], folder: Path, workers: int) -> None:
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_share, initargs=(threads,)) as pool:
        jobs = [pool.submit(make, params, feature, folder) for feature in features]
        for job in track(as_completed(jobs), "calibrating", len(jobs), lambda _: 1, "features"):
            job.result()


def _one_share(threads: int) -> None:
    """Torch's threads of one process among several."""
    import torch

    torch.set_num_threads(threads)
