"""Errors that reach people: one line each, and the exit status that the command line gives them."""


class MikitError(Exception):
    """A failure that one line explains; the command line prints it and exits with `exit_status`."""

    exit_status = 1
    step: int | None = None
    """The pipeline's step that failed, where one did."""
    cause: str = ""
    """Its cause alone, where the message says more."""


class BadInput(MikitError):
    """Something given by the user is wrong: the message says what, where, and what would be valid."""

    exit_status = 2


class StepFailed(MikitError):
    """A pipeline step failed; the message names the step, the notebook and how to resume."""


class KernelLost(StepFailed):
    """The kernel of a step died or hung: the step may go well in a new one."""


class RunIsBusy(MikitError):
    """Another process holds the run."""


class Stopped(MikitError):
    """Work was asked to stop, and did so between two steps."""

    exit_status = 130


def one_of(what: str, given: object, valid: list[str]) -> BadInput:
    """A `BadInput` for a name that is not among the valid ones, with the nearest of them first."""
    import difflib

    near = difflib.get_close_matches(str(given), valid, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return BadInput(f"unknown {what} {given!r}: {hint}valid: {', '.join(valid)}")
