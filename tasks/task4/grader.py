"""The grader of task 4: `mikit.tasks.task4.grade`."""

from mikit.tasks.task4 import grade

__all__ = ["grade"]
