"""The exercises of the lessons by task and name: what a value is checked against."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mikit.tasks import probes
from mikit.tasks.addition import P
from mikit.tasks.models import Transformer

POINTS = 1024
SAMPLED = 7
"""Task 3 tries every seventh sum where all would take a while."""


@dataclass(frozen=True)
class Exercise:
    """What is asked for."""

    expected: Callable[[Any, Tensor], Float[Tensor, "..."]]
    """Of the model and the inputs of the lab."""
    axes: tuple[str, ...]
    """What the dimensions are."""


def _share_right(model: Transformer, x: Tensor) -> Float[Tensor, ""]:
    answers = (x[:, 0] + x[:, 1]) % P
    return probes.right(model, model.embed.weight[:P], x, answers).double().mean()


EXERCISES: Mapping[str, Mapping[str, Exercise]] = {
    "task1": {
        "weight": Exercise(lambda model, _: probes.effective_weight(model), ("outputs", "inputs")),
        "sensitivity": Exercise(probes.sensitivity, ("inputs",)),
    },
    "task2": {
        "contributions": Exercise(probes.contributions, ("points", "units")),
        "ablation_loss": Exercise(probes.ablation_loss, ("units",)),
        "interaction": Exercise(lambda model, _: probes.interaction(model), ("units",)),
    },
    "task3": {
        "accuracy": Exercise(_share_right, ()),
        "power": Exercise(lambda model, _: probes.power(model.embed.weight[:P]), ("frequencies",)),
        "accuracy_without": Exercise(lambda model, _: probes.accuracy_without(model, SAMPLED), ("frequencies",)),
    },
    "task4": {
        "contributions": Exercise(probes.contributions, ("points", "units")),
        "slope": Exercise(lambda model, _: probes.slope(model), ("units",)),
        "spread": Exercise(lambda model, _: probes.spread(model), ("units",)),
    },
}


def inputs(task_id: str, config: Mapping[str, Any]) -> Tensor:
    """The inputs that a lesson works with: all sums for task 3, else `POINTS` rows from -1 to 1, the same for every seed."""
    if task_id == "task3":
        return probes.sums()[0]
    width = config.get("inputs", 3)
    return torch.rand(POINTS, width, generator=torch.Generator().manual_seed(0)) * 2 - 1
