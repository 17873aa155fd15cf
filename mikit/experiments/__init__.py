"""Experiments on a feature: what makes it fire, what it does, and whether the one is why the other happens."""
