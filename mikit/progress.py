"""Progress of long work: a bar on a terminal, a log line now and then elsewhere, and to whoever listens."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

log = logging.getLogger(__name__)
T = TypeVar("T")
LOG_SECONDS = 15.0
Listener = Callable[[str, float, float], None]
"""Is told what is being done, how much of it is done, and of how much; of 0 where nobody knows."""
_listeners: list[Listener] = []


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Tell a listener, such as a notebook's display, of all progress while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(what: str, done: float = 0, total: float = 0) -> None:
    """Tell whoever listens what is being done."""
    for listener in tuple(_listeners):
        listener(what, done, total)


def track(
    items: Iterable[T], what: str, total: float, size: Callable[[T], float] = lambda _item: 1, unit: str = "items"
) -> Iterator[T]:
    """Yield the items while showing how much of `total` is done and how quickly, in `unit` per second.

    Args:
        items: the work; an item counts as done when the next one is asked for.
        what: the work's name.
        total: the sum of the sizes.
        size: how much an item counts.
        unit: what is counted.
    """
    console = Console(file=sys.stderr)
    started = last = time.monotonic()
    done = 0.0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=total, rate="")
        tell(what, 0, total)
        for item in items:
            yield item
            done += size(item)
            now = time.monotonic()
            rate = f"{done / max(now - started, 1e-9):,.0f} {unit}/s"
            bar.update(task, completed=done, rate=rate)
            tell(f"{what}, {rate}", done, total)
            if not console.is_terminal and now - last > LOG_SECONDS:
                log.info("%s: %d of %d %s, %s", what, done, total, unit, rate)
                last = now
