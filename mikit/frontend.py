"""Whether somebody sits before this kernel and sees what a cell shows while it runs."""

from typing import Any


def is_watched() -> bool:
    """Whether the cell that runs was sent by a front end, such as JupyterLab, Notebook 7 or VS Code.

    A front end draws a cell's output in a place of the page, so its request to execute carries the id of the cell in the
    message's metadata (`cellId`). nbclient, on which papermill, nbmake, `jupyter execute` and nbconvert stand, sends
    none. Environment variables don't tell: a kernel that papermill starts from a notebook's terminal inherits those of
    JupyterLab. False too without a kernel.
    """
    return bool(_request().get("metadata", {}).get("cellId"))


def _request() -> dict[str, Any]:
    """The message that this kernel is answering; empty where there is no kernel."""
    try:
        from IPython.core.getipython import get_ipython
    except ModuleNotFoundError:
        return {}
    kernel = getattr(get_ipython(), "kernel", None)
    return (kernel.get_parent() or {}) if kernel is not None else {}
