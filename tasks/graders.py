"""The router of the graders: `mikit.tasks.grade_task`."""

from mikit.tasks import grade_task

__all__ = ["grade_task"]
