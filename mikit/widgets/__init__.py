"""The feature explorer: choose a feature, see where it fires, type text, steer, explain and score, compare, save.

What it computes are plain functions that need no Jupyter; the panels are ipywidgets around them, imported last.
"""

from typing import TYPE_CHECKING, Any

from mikit.widgets.frontend import has_front_end

if TYPE_CHECKING:
    from mikit.widgets.session import Session

__all__ = ["explorer", "has_front_end", "open_session"]


def open_session(params_file: str = "", **params: Any) -> "Session":
    """A target with its evidence, and a feature to begin with; what takes long shows its progress in a notebook.

    Args:
        params_file: a YAML file as `mikit run --params` takes it, in place of the parameters.
        **params: as in `mikit.settings.Params`.

    Raises:
        mikit.errors.BadInput: an unknown name, an invalid value, or no such target or feature.
    """
    from mikit.widgets.session import open_session
    from mikit.widgets.shown import in_the_cell

    with in_the_cell():
        return open_session(params_file, **params)


def explorer(session: "Session", text: str = "", prompt: str = "", explanation: str = "", output: str = "") -> Any:
    """The panels, as one ipywidget to display.

    Args:
        session: what `open_session` gave.
        text: in the panel that reads text; the strongest window if not given.
        prompt: in the panel that steers; a neutral prompt if not given.
        explanation: in the panel that scores.
        output: in the same.

    Raises:
        mikit.errors.BadInput: ipywidgets is not installed.
    """
    from mikit.errors import BadInput

    try:
        from mikit.widgets.panels import Explorer, First
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "ipywidgets":
            raise
        raise BadInput("the explorer's panels need ipywidgets: pip install 'mikit[lab]'") from None
    panels = Explorer(session, First(text, prompt, explanation, output))
    panels.draw()
    return panels.box
