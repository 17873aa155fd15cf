"""Progress as a notebook shows it: one line that changes, gone when the work is done."""

import contextlib
import time
from collections.abc import Callable, Iterator

from markupsafe import Markup

from mikit.progress import Listener, heard_by
from mikit.viz import visible
from mikit.viz.windows import Html
from mikit.widgets.frontend import has_front_end

SECONDS = 0.1
"""Between two changes of one line of progress: more can't be read, and each is a message."""


def progress_html(what: str, done: float, total: float) -> Html:
    """A bar, where it is known how much there is, and what is being done."""
    bar = Markup('<progress value="{:g}" max="{:g}" style="vertical-align:middle"></progress> ').format(done, total)
    return Html(Markup("<span>{}{} …</span>").format(bar if total else "", visible(what)))


def to(show: Callable[[Html], None]) -> Listener:
    """A listener that shows what it hears, the first of each stage at once and more of it now and then."""
    last, stage = 0.0, ""

    def hear(what: str, done: float, total: float) -> None:
        nonlocal last, stage
        # the rate behind the comma changes all the time
        now, name = time.monotonic(), what.partition(",")[0]
        if name == stage and now - last < SECONDS:
            return
        last, stage = now, name
        show(progress_html(what, done, total))

    return hear


@contextlib.contextmanager
def in_the_cell() -> Iterator[None]:
    """Show progress below the cell that runs, where a front end is there; an executed notebook keeps none of it."""
    if not has_front_end():
        yield
        return
    from IPython.display import HTML, display

    place = display(HTML(""), display_id=True)
    with heard_by(to(lambda html: place.update(HTML(html)))):
        try:
            yield
        finally:
            place.update(HTML(""))
