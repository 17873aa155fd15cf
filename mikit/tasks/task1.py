"""Task 1, dead neuron detection: inputs of a linear layer that no output depends on.

The truth is exact: every weight of a dead input is zero, where the layer is stored as two matrices those of their product.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from mikit.tasks.draws import Draws
from mikit.tasks.grading import grade_of
from mikit.tasks.instance import Specimen, Task


@dataclass(frozen=True)
class Plan:
    """Sizes and decoys of a difficulty."""

    inputs: int
    outputs: int
    dead: tuple[int, int]
    """Fewest and most dead inputs."""
    sparse: int = 0
    """Inputs that one output alone depends on."""
    faint: int = 0
    """Inputs whose weights are near zero, all of them, and none of them zero."""
    faintness: float = 0.0
    """How large those are; others are about 1."""
    width: int = 0
    """Size of the layer between the two matrices; 0 where there is one matrix."""


PLANS = {
    "classic": Plan(10, 1, dead=(3, 3)),
    "easy": Plan(24, 4, dead=(3, 6), sparse=5, faint=4, faintness=2**-6),
    "medium": Plan(48, 8, dead=(4, 8), sparse=8, faint=8, faintness=2**-9),
    "hard": Plan(64, 12, dead=(5, 9), faint=12, faintness=2**-8, width=16),
}


def generate(difficulty: str, draws: Draws) -> tuple[Specimen, frozenset[int]]:
    """What a solver sees, and the dead inputs."""
    plan = PLANS[difficulty]
    order = draws.stream("order").shuffled(range(plan.inputs))
    dead = order[: draws.stream("count").integer(*plan.dead)]
    faint = order[len(dead) : len(dead) + plan.faint]
    sparse = order[len(dead) + plan.faint : len(dead) + plan.faint + plan.sparse]
    make = _two_matrices if plan.width else _one_matrix
    weights = make(plan, draws, dead, faint, sparse)
    weights["layer.bias"] = draws.stream("bias").integers(-64, 64, (plan.outputs,)) / 64
    config = {"inputs": plan.inputs, "outputs": plan.outputs, "width": plan.width}
    as_float32 = {name: w.astype(np.float32) for name, w in weights.items()}
    return Specimen("linear", config, as_float32), frozenset(dead)


def _magnitudes(draws: Draws, shape: tuple[int, ...]) -> Float[np.ndarray, "..."]:
    """Numbers of either sign from 1/4 to 2 in magnitude."""
    return (2 * draws.integers(0, 1, shape) - 1) * draws.integers(16, 128, shape) / 64


def _one_matrix(
    plan: Plan, draws: Draws, dead: list[int], faint: list[int], sparse: list[int]
) -> dict[str, Float[np.ndarray, "..."]]:
    matrix = _magnitudes(draws.stream("matrix"), (plan.outputs, plan.inputs))
    matrix[:, faint] *= plan.faintness
    chosen = draws.stream("sparse")
    for column in sparse:
        kept = chosen.integer(0, plan.outputs - 1)
        matrix[:, column] *= np.arange(plan.outputs) == kept
    matrix[:, dead] = 0
    return {"layer.weight": matrix}


def _two_matrices(
    plan: Plan, draws: Draws, dead: list[int], faint: list[int], _sparse: list[int]
) -> dict[str, Float[np.ndarray, "..."]]:
    """A layer as a product: a dead input writes to the inner layer, but only where the outer matrix does not look.

    The outer matrix is (B, BM), so it maps (-Mn, n) to zero whatever n is. All are small whole numbers divided by a
    power of two, so that the product is zero to the last bit.
    """
    rank, spare = plan.outputs, plan.width - plan.outputs
    base = draws.stream("base").integers(-8, 8, (rank, rank))
    # a diagonal that outweighs its row and column keeps the matrix invertible
    base[np.arange(rank), np.arange(rank)] = 8 * rank * (2 * draws.stream("diagonal").integers(0, 1, (rank,)) - 1)
    mixing = draws.stream("mixing").integers(-1, 1, (rank, spare))
    order = draws.stream("inner").shuffled(range(plan.width))
    outer = np.concatenate([base, base @ mixing], axis=1)[:, order] / 64
    inner = _magnitudes(draws.stream("matrix"), (plan.width, plan.inputs))
    unseen = draws.stream("unseen").integers(1, 3, (spare, plan.inputs)) * (
        2 * draws.stream("signs").integers(0, 1, (spare, plan.inputs)) - 1
    )
    hidden = np.concatenate([-(mixing @ unseen), unseen], axis=0)[order] / 4
    inner[:, dead] = hidden[:, dead]
    inner[:, faint] = hidden[:, faint] + inner[:, faint] * plan.faintness
    return {"inner.weight": inner, "layer.weight": outer}


def _domain(config: Mapping[str, Any]) -> range:
    return range(config["inputs"])


def _describe(config: Mapping[str, Any]) -> str:
    if config["width"]:
        return (
            f"`model.inner` is Linear({config['inputs']}, {config['width']}) without a bias and `model.layer` is "
            f"Linear({config['width']}, {config['outputs']}): one linear map, stored as two matrices"
        )
    return f"`model.layer` is Linear({config['inputs']}, {config['outputs']})"


TASK = Task(
    id="task1",
    level=1,
    name="dead neuron detection",
    rank="easy",
    objective="Find the inputs of a linear layer whose weights are all zero.",
    things="inputs",
    domain=_domain,
    describe=_describe,
    generate=generate,
)
grade = partial(grade_of, "task1")
