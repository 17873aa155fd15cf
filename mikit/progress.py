"""Progress of long work: on a terminal, below a notebook's cell, in the log now and then elsewhere, and to whoever listens."""

import contextlib
import html
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mikit.frontend import is_watched

log = logging.getLogger(__name__)
T = TypeVar("T")
LOG_SECONDS = 15.0
CELL_SECONDS = 0.2
"""Between two changes of what a cell shows: each is a message."""
Listener = Callable[[str, float, float], None]
"""Is told what is being done, how much of it is done, and of how much; of 0 where nobody knows."""
_listeners: list[Listener] = []
_bars: list[Progress] = []
"""The one that this process shows on its terminal, if it does."""


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


@contextlib.contextmanager
def working(what: str, logs: bool = True) -> Iterator[None]:
    """Show what is being done while the block runs, where nobody knows how long it takes.

    Args:
        what: the work's name.
        logs: whether the log says how long it took, off a terminal and after more than some seconds.
    """
    started = time.monotonic()
    with _shown(what, None):
        yield
    seconds = time.monotonic() - started
    if logs and seconds > LOG_SECONDS and not Console(file=sys.stderr).is_terminal:
        log.info("%s: %.0f s", what, seconds)


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
    is_terminal = Console(file=sys.stderr).is_terminal
    started = last = time.monotonic()
    done = 0.0
    with _shown(what, total) as show:
        for item in items:
            yield item
            done += size(item)
            now = time.monotonic()
            rate = f"{done / max(now - started, 1e-9):,.0f} {unit}/s"
            show(done, rate)
            if not is_terminal and now - last > LOG_SECONDS:
                log.info("%s: %d of %d %s, %s", what, done, total, unit, rate)
                last = now


@contextlib.contextmanager
def _shown(what: str, total: float | None) -> Iterator[Callable[[float, str], None]]:
    """Show a piece of work wherever it can be seen; what is given says how much is done, and how quickly."""
    with _on_terminal() as bar, _in_cell() as cell:
        task = bar.add_task(what, total=total, rate="")
        tell(what, 0, total or 0)
        cell.show(what, 0, total or 0)

        def show(done: float, rate: str) -> None:
            bar.update(task, completed=done, rate=rate)
            tell(f"{what}, {rate}", done, total or 0)
            cell.show(f"{what}, {rate}", done, total or 0)

        try:
            yield show
        finally:
            bar.remove_task(task)


@contextlib.contextmanager
def _on_terminal() -> Iterator[Progress]:
    """The display of this process on its terminal: work inside other work is a further line of it."""
    if _bars:
        yield _bars[0]
        return
    console = Console(file=sys.stderr)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        _bars.append(bar)
        try:
            yield bar
        finally:
            _bars.remove(bar)


class _Cell:
    """A line below the cell that runs, gone when the work is done."""

    def __init__(self, place: Any = None) -> None:
        self._place, self._last = place, 0.0

    def show(self, what: str, done: float, total: float) -> None:
        """Change the line, the first of it at once and more of it now and then."""
        now = time.monotonic()
        if self._place is None or (done and now - self._last < CELL_SECONDS):
            return
        self._last = now
        bar = f'<progress value="{done:g}" max="{total:g}" style="vertical-align:middle"></progress> ' if total else ""
        self.put(f"<span>{bar}{html.escape(what)} …</span>", f"{what} …")

    def put(self, page: str, text: str) -> None:
        """Show this, as HTML or as text."""
        self._place.update({"text/html": page, "text/plain": text}, raw=True)


@contextlib.contextmanager
def _in_cell() -> Iterator[_Cell]:
    """A line below the cell that runs, where somebody sees it and nobody else shows it; an executed notebook keeps none."""
    if _listeners or not is_watched():
        yield _Cell()
        return
    from IPython.display import display

    cell = _Cell(display({"text/plain": ""}, raw=True, display_id=True))
    try:
        yield cell
    finally:
        cell.put("", "")
