"""The grader of task 3: `mikit.tasks.task3.grade`."""

from mikit.tasks.task3 import grade

__all__ = ["grade"]
