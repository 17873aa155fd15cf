"""Task 2, causal ablation: the hidden units that compute the product in y = x1·x2 + x3.

A unit counts if what it adds to y holds an interaction of x1 and x2: with v the unit's contribution at x3 = 0,
|v(1, 1) - v(1, -1) - v(-1, 1) + v(-1, -1)| / 4 is at least 0.01. Those planted have 0.025 or more, all others 0.005 or less.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from mikit.tasks import arithmetic
from mikit.tasks.draws import Draws
from mikit.tasks.grading import grade_of
from mikit.tasks.instance import Specimen, Task


def generate(difficulty: str, draws: Draws) -> tuple[Specimen, frozenset[int]]:
    """What a solver sees, and the units that carry the product."""
    return arithmetic.generate(difficulty, draws, arithmetic.PRODUCT)


def domain(config: Mapping[str, Any]) -> range:
    """All hidden units."""
    return range(config["units"])


def describe(config: Mapping[str, Any]) -> str:
    """The network in a sentence."""
    name = {"square": "squares its input", "relu": "is a ReLU"}[config["activation"]]
    front = "`model.mix`, Linear(3, 3), then " if config["mix"] else ""
    return (
        f"{front}`model.hidden`, Linear(3, {config['units']}), an activation that {name}, and `model.readout`, "
        f"Linear({config['units']}, 1); `model.activations(x)` gives the hidden units after the activation"
    )


TASK = Task(
    id="task2",
    level=2,
    name="causal ablation",
    rank="medium",
    objective="Find the hidden units that compute the product in y = x1·x2 + x3.",
    things="hidden units",
    domain=domain,
    describe=describe,
    generate=generate,
)
grade = partial(grade_of, "task2")
