"""Task 3."""
