"""The grader of task 1: `mikit.tasks.task1.grade`."""

from mikit.tasks.task1 import grade

__all__ = ["grade"]
