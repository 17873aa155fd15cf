"""How far the verdicts can be trusted: gates tried on explanations that are known to be right or wrong.

On the planted model the truth is known. On another model the explanation that was written for a feature is compared
with explanations written for other features, which must not pass, and with a random direction's. `calibrate_planted`
and `calibrate_borrowed` keep what they find in `outputs/calibration/`, a file a feature.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mikit.calibration.records import FeatureTrials, PlantedTrials
    from mikit.settings import Params


def calibrate_borrowed(
    params: "Params", n: int, skip: int = 0, exclude: Collection[int] = (), workers: int = 1
) -> "list[FeatureTrials]":
    """Random live features of a target under their own explanation and under others'.

    Args:
        params: of the runs; the feature is replaced.
        n: features.
        skip: features that come before them in the same random order: those that choices were made on.
        exclude: never drawn.
        workers: processes.
    """
    from mikit.calibration.borrowed import draw_features, try_explanations
    from mikit.calibration.collect import collect, folder_of
    from mikit.calibration.records import FeatureTrials
    from mikit.runs.run import Run

    store = Run(params).store
    features = draw_features(store, params.protocol.rare_windows, n, skip, exclude, params.seed)
    jobs = {f"feature-{feature}": params.model_copy(update={"feature": feature}) for feature in features}
    return collect(try_explanations, jobs, FeatureTrials, folder_of(params), f"{params.model}: calibrating", workers)


def calibrate_planted(
    params: "Params", seeds: int, features: int | None = None, derangements: int = 4, workers: int = 1
) -> "tuple[list[PlantedTrials], list[PlantedTrials]]":
    """Declared features of the planted model, and wrong explanations of them, over seeds of the model.

    Args:
        params: of the runs; model, feature and seeds are replaced.
        seeds: from 0.
        features: the first so many of those declared; all if None.
        derangements: a seed.
        workers: processes.

    Returns:
        What was found of each feature, and what the gates said of explanations that are wrong.
    """
    from mikit.calibration.collect import collect, folder_of
    from mikit.calibration.planted import declared, explain_planted, try_wrong, wrong_jobs
    from mikit.calibration.records import PlantedTrials

    found, wrong = [], []
    for seed in range(seeds):
        planted = params.model_copy(update={"model": "planted", "layer": 0, "planted_seed": seed, "seed": seed})
        known = declared(seed)[:features]
        jobs = {f"feature-{t.index}": planted.model_copy(update={"feature": t.index}) for t in known}
        folder, name = folder_of(planted), f"planted, seed {seed}"
        here = collect(explain_planted, jobs, PlantedTrials, folder, f"{name}: explaining", workers)
        lent = wrong_jobs(planted, here, derangements)
        wrong += collect(try_wrong, lent, PlantedTrials, folder, f"{name}: wrong explanations", workers)
        found += here
    return found, wrong
