"""Task 4, additive bypass attribution: the hidden units that carry x3 directly in y = x1·x2 + x3.

A unit counts if what it adds to y rises or falls with x3 on the whole, and does not depend on x1 and x2: with v the unit's
contribution, |v(0, 0, 1) - v(0, 0, -1)| / 2 is at least 0.02. Those planted have 0.1 or more. Units that read x3 alone and are not
planted have 0.01 or less.
"""

from functools import partial

from mikit.tasks import arithmetic
from mikit.tasks.draws import Draws
from mikit.tasks.grading import grade_of
from mikit.tasks.instance import Specimen, Task
from mikit.tasks.task2 import describe, domain


def generate(difficulty: str, draws: Draws) -> tuple[Specimen, frozenset[int]]:
    """What a solver sees, and the units that carry x3."""
    return arithmetic.generate(difficulty, draws, arithmetic.BYPASS)


TASK = Task(
    id="task4",
    level=4,
    name="additive bypass attribution",
    rank="medium",
    objective="Find the hidden units that carry x3 directly to the output in y = x1·x2 + x3.",
    things="hidden units",
    domain=domain,
    describe=describe,
    generate=generate,
)
grade = partial(grade_of, "task4")
