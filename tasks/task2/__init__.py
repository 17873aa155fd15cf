"""Task 2."""
