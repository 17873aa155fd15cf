"""What a person sees of a sweep: a bar on a terminal, a line a feature elsewhere."""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from mikit.progress import LOG_SECONDS
from mikit.runs.manifest import Entry
from mikit.viz import visible

log = logging.getLogger(__name__)


@dataclass
class Display:
    """Counts what ends, and shows it."""

    total: int
    before: int
    """Done by an earlier command."""
    bar: Progress
    task: TaskID
    done: int = 0
    failed: int = 0
    started: float = field(default_factory=time.monotonic)
    last: float = 0.0

    def ended(self, entry: Entry) -> None:
        """Show that a feature is done or has failed; a failure always has a line."""
        self.done += entry.state == "done"
        self.failed += entry.state == "failed"
        ended = self.done + self.failed
        rest = (self.total - self.before - ended) * (time.monotonic() - self.started) / max(ended, 1)
        self.bar.update(
            self.task, completed=self.before + ended, failed=f"{self.failed} failed", rest=f"about {_span(rest)} left"
        )
        count = f"{self.before + ended} of {self.total}"
        if entry.state == "failed":
            log.info("%s: %s", count, failure_line(entry))
        elif not self.bar.disable:
            pass
        elif self.done == 1 or time.monotonic() - self.last > LOG_SECONDS or self.before + ended == self.total:
            self.last = time.monotonic()
            log.info(
                "%s: layer %d, feature %d in %.1f s, about %s left",
                count, entry.layer, entry.feature, entry.seconds or 0.0, _span(rest),
            )  # fmt: skip


@contextlib.contextmanager
def display(total: int, before: int) -> Iterator[Display]:
    """Show the progress of a sweep while the block runs.

    Args:
        total: features.
        before: those that an earlier command finished.
    """
    console = Console(file=sys.stderr)
    columns = (
        TextColumn("features"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rest]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("features", total=total, completed=before, failed="0 failed", rest="")
        yield Display(total, before, bar, task)


def failure_line(entry: Entry) -> str:
    """Which feature failed, in which step, and why."""
    where = f"step {entry.step}" if entry.step else "before its first step"
    return visible(f"layer {entry.layer}, feature {entry.feature} failed, {where}: {entry.cause}")


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
