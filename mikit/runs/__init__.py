"""Runs: the nine steps on one feature, in this process, in a notebook, or through papermill."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mikit.runs.run import Run
    from mikit.trace import Trace


def open_run(**params: Any) -> "Run":
    """A run by its parameters, as in `mikit.settings.Params`; nothing is loaded yet.

    Raises:
        mikit.errors.BadInput: an unknown name or an invalid value.
    """
    from mikit.runs.run import open_run

    return open_run(**params)


def explain(**params: Any) -> "Trace":
    """The nine steps in this process, those that are fresh read from their files; the trace is written last."""
    from mikit.runs import steps

    run = open_run(**params)
    run.target  # noqa: B018  a bad name or index ends here, before a folder is made
    with run.directory.lock():
        trace = run.need(steps.conclude)
        if run.directory.read_trace() is None:
            run.directory.write_trace(trace)
        return trace
