"""Solvers: one by task that finds the answer in the network alone, and cheap ones that must fail.

Those that find it know the task's text and the model, nothing of seeds and truths.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mikit.tasks import probes
from mikit.tasks.addition import P
from mikit.tasks.catalogue import valid_task
from mikit.tasks.grading import corrected
from mikit.tasks.instance import Instance, Specimen

NEGLIGIBLE = 1e-6
"""Weights below this share of the largest are zero."""
INTERACTION, SLOPE = 0.01, 0.02
"""From here on a unit counts; see the texts of tasks 2 and 4."""
LEAK = 0.1
"""A unit reads x3 alone if x1 and x2 change it by less than this share of what x3 does."""
NEEDED = 0.5
"""A frequency is needed if accuracy falls below this without it."""
STRIDE = 31
"""One sum in 31 is enough to see whether accuracy holds."""


def _where(mask: Tensor) -> list[int]:
    return [int(i) for i in torch.where(mask)[0]]


def dead_inputs(model: Any) -> list[int]:
    """Task 1: inputs whose column of the effective weight is zero."""
    largest = probes.effective_weight(model).abs().amax(0)
    return _where(largest < NEGLIGIBLE * largest.max())


def product_units(model: Any) -> list[int]:
    """Task 2: units that add an interaction of x1 and x2."""
    return _where(probes.interaction(model).abs() >= INTERACTION)


def needed_frequencies(model: Any) -> list[int]:
    """Task 3: frequencies without which the network no longer adds."""
    return [f + 1 for f in _where(probes.accuracy_without(model, STRIDE) < NEEDED)]


def bypass_units(model: Any) -> list[int]:
    """Task 4: units that rise or fall with x3, and with nothing else."""
    slope = probes.slope(model).abs()
    return _where((slope >= SLOPE) & (probes.spread(model) < LEAK * slope))


REFERENCE: Mapping[str, Callable[[nn.Module], list[int]]] = {
    "task1": dead_inputs,
    "task2": product_units,
    "task3": needed_frequencies,
    "task4": bypass_units,
}


def solve(task_id: str, model: nn.Module) -> list[int]:
    """The answer, from the network alone.

    Raises:
        BadInput: an unknown task.
    """
    return REFERENCE[valid_task(task_id).id](model)


# Cheap: what somebody might submit who did not look, or hardly.


def everything(domain: range) -> list[int]:
    """All there is."""
    return list(domain)


def constant(domain: range, size: int) -> list[int]:
    """The same for every seed: the first `size` numbers."""
    return list(domain)[:size]


def at_random(domain: range, size: int, seed: int) -> list[int]:
    """`size` numbers that a seed determines."""
    return random.Random(seed).sample(list(domain), size)


def largest_norms(specimen: Specimen, domain: range, size: int) -> dict[str, list[int]]:
    """The `size` things whose weights are largest, by what is taken for their weights."""
    weights = {name: torch.from_numpy(w.copy()) for name, w in specimen.weights.items()}
    if specimen.architecture == "linear":
        norms = {"weights": weights.get("inner.weight", weights["layer.weight"]).norm(dim=0)}
    elif specimen.architecture == "transformer":
        # the embedding rows that the answer's numbers would name
        norms = {"rows": weights["embed.weight"].norm(dim=1)[domain[0] : domain[-1] + 1]}
    else:
        read, written = weights["hidden.weight"].norm(dim=1), weights["readout.weight"][0].abs()
        norms = {"read": read, "written": written, "product": read * written}
    return {name: [domain[int(i)] for i in norm.topk(size).indices] for name, norm in norms.items()}


def memorised(others: Sequence[Instance]) -> list[int]:
    """The one answer that scores best on other instances: the numbers most often true, as many as pay."""
    domain = others[0].domain
    counts = Counter(number for other in others for number in other.truth)
    ranked = sorted(domain, key=lambda number: (-counts[number], number))
    answers = [frozenset(ranked[:size]) for size in range(1, len(ranked))]
    best = max(answers, key=lambda answer: sum(corrected(answer, other.truth, len(domain)) for other in others))
    return sorted(best)


def first_look(task_id: str, model: Any, size: int) -> dict[str, list[int]]:
    """The `size` things that the usual first look would name; it may do on easy instances, and misleads on others."""
    if task_id == "task1":
        stored = model.inner.weight if hasattr(model, "inner") else model.layer.weight
        return {"smallest stored weights": _where_smallest(stored.norm(dim=0), size)}
    if task_id == "task3":
        power = probes.power(model.embed.weight[:P])
        return {"loudest frequencies": [f + 1 for f in _where_smallest(-power, size)]}
    x = torch.rand(512, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    return {"largest ablation loss": _where_smallest(-probes.ablation_loss(model, x), size)}


def _where_smallest(values: Tensor, size: int) -> list[int]:
    return [int(i) for i in values.topk(size, largest=False).indices]
