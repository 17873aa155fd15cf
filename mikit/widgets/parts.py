"""What all panels are made of: a line that says what went wrong, progress, and figures in the theme of their page."""

import contextlib
import logging
from collections.abc import Callable, Iterator

import ipywidgets
from markupsafe import Markup
from matplotlib.figure import Figure

from mikit.errors import MikitError
from mikit.progress import heard_by
from mikit.viz import inline_svg, style, visible
from mikit.viz.windows import Html
from mikit.widgets.session import Look, Session
from mikit.widgets.shown import to

log = logging.getLogger(__name__)

WIDE = ipywidgets.Layout(width="auto")
PAGE_INK = "var(--jp-ui-font-color0,#20242c)"
THEME = (
    f"--ink:{PAGE_INK};--muted:var(--jp-ui-font-color2,#6a7180);--rule:var(--jp-border-color2,#d9dde4);"
    "--paper:var(--jp-layout-color0,#ffffff);max-width:56em;"
    # towards the ink: darker on a light page, lighter on a dark one, and the same hue
    + ";".join(
        f"{name}:color-mix(in srgb,{color} 70%,{PAGE_INK})"
        for name, color in (
            ("--pass", style.VERDICTS["pass"]),
            ("--fail", style.VERDICTS["fail"]),
            ("--feature", style.FEATURE),
            ("--second", style.SECOND),
            ("--third", style.THIRD),
        )
    )
)
"""The variables that figures are drawn in, as JupyterLab and Notebook 7 theme them; elsewhere as on white paper."""


class State:
    """What all panels look at: a target and one of its features."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.look: Look = session.look(session.run.feature)
        self._followers: list[Callable[[], None]] = []

    def follow(self, changed: Callable[[], None]) -> None:
        """Call a function whenever another feature or target is looked at."""
        self._followers.append(changed)

    def show(self, feature: int) -> None:
        """Look at another feature.

        Raises:
            BadInput: there is no such latent; then nothing changes.
        """
        self.look = self.session.look(feature)
        self._tell()

    def load(self, session: Session) -> None:
        """Look at another target."""
        look = session.look(session.run.feature)
        self.session, self.look = session, look
        self._tell()

    def _tell(self) -> None:
        for changed in self._followers:
            changed()


def html() -> ipywidgets.HTML:
    """A place for escaped HTML."""
    return ipywidgets.HTML(layout=WIDE)


def note() -> ipywidgets.HTML:
    """A place for one line: progress, or what is wrong. Screen readers say it when it changes."""
    return ipywidgets.HTML(layout=ipywidgets.Layout(width="auto", min_height="1.6em"))


def say(place: ipywidgets.HTML, text: str) -> None:
    """Write a line of plain text."""
    place.value = Markup('<span role="status">{}</span>').format(visible(text))


def _warn(place: ipywidgets.HTML, text: str) -> None:
    color = style.VERDICTS["fail"]
    frame = f"border-left:4px solid {color};padding-left:.5em;overflow-wrap:anywhere"
    place.value = Markup('<span role="alert" style="{}"><b>✗</b> {}</span>').format(frame, visible(text))


@contextlib.contextmanager
def told(place: ipywidgets.HTML, *results: ipywidgets.HTML) -> Iterator[None]:
    """While the block runs its progress is a line in this place; afterwards what was wrong with the input, if anything.

    Args:
        place: for the line.
        results: what is emptied where the input was wrong: it would be read as the answer to it.
    """

    def show(progress: Html) -> None:
        place.value = progress

    place.value = ""
    try:
        with heard_by(to(show)):
            yield
    except Exception as error:
        said = str(error)
        if not isinstance(error, MikitError):
            # whoever clicks sees one line; whoever mends it finds the traceback in the log
            log.warning("a panel failed", exc_info=True)
            said = f"this did not work: {type(error).__name__}: {error}"
        for result in results:
            result.value = ""
        _warn(place, said)
    else:
        place.value = ""


@contextlib.contextmanager
def busy(*buttons: ipywidgets.Widget) -> Iterator[None]:
    """Widgets that can't be used while the block runs."""
    for button in buttons:
        button.disabled = True
    try:
        yield
    finally:
        for button in buttons:
            button.disabled = False


def figure_html(figure: Figure, label: str) -> Html:
    """A figure that scales with its panel and follows the theme of the page."""
    return Html(Markup('<div style="{}">{}</div>').format(THEME, inline_svg(figure, label)))


def row(*children: ipywidgets.Widget) -> ipywidgets.Box:
    """Widgets beside one another, wrapped where the page is narrow."""
    return ipywidgets.Box(list(children), layout=ipywidgets.Layout(display="flex", flex_flow="row wrap", width="auto"))


def column(*children: ipywidgets.Widget) -> ipywidgets.VBox:
    """Widgets below one another."""
    return ipywidgets.VBox(list(children), layout=ipywidgets.Layout(width="auto", padding="0 0 .5em"))
