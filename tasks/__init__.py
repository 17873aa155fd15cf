"""Paths of the graders of `mikit.tasks`, for those who look for them here."""
