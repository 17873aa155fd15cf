"""Task 1."""
