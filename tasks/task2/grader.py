"""The grader of task 2: `mikit.tasks.task2.grade`."""

from mikit.tasks.task2 import grade

__all__ = ["grade"]
