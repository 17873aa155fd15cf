"""Task 4."""
