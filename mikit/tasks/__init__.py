"""Four planted circuits: networks in which something is there to be found, and graders that know what.

from mikit.tasks import Lab
lab = Lab("task3", seed=7)
lab.model, lab.submit([3, 14, 15])

Names are loaded when they are used: a process that only runs a network imports `mikit.tasks.models`, and with it nothing that
could make a truth.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mikit.tasks.catalogue import SPLITS, TASKS, generate, make, valid_task
    from mikit.tasks.grading import Grade, Reason, Rejection, parse
    from mikit.tasks.grading import grade as grade_task
    from mikit.tasks.instance import DIFFICULTIES, Instance, Specimen, Task
    from mikit.tasks.lab import Lab

_HOMES = {
    "DIFFICULTIES": "instance",
    "Grade": "grading",
    "Instance": "instance",
    "Lab": "lab",
    "Reason": "grading",
    "Rejection": "grading",
    "SPLITS": "catalogue",
    "Specimen": "instance",
    "TASKS": "catalogue",
    "Task": "instance",
    "generate": "catalogue",
    "grade_task": "grading",
    "make": "catalogue",
    "parse": "grading",
    "valid_task": "catalogue",
}
__all__ = [
    "DIFFICULTIES",
    "SPLITS",
    "TASKS",
    "Grade",
    "Instance",
    "Lab",
    "Reason",
    "Rejection",
    "Specimen",
    "Task",
    "generate",
    "grade_task",
    "make",
    "parse",
    "valid_task",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOMES[name]}")
    return module.grade if name == "grade_task" else getattr(module, name)
