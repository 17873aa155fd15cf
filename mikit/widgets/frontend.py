"""Whether somebody sits before this kernel who can see and move widgets."""

import importlib.util

from mikit.frontend import is_watched


def has_front_end() -> bool:
    """Whether the cell that runs was sent by a front end, as `mikit.frontend` tells, and ipywidgets is installed."""
    return importlib.util.find_spec("ipywidgets") is not None and is_watched()
