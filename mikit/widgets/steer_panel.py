"""Steer the feature, and see what the next token does."""

from typing import Any

import ipywidgets
from markupsafe import Markup

from mikit.viz import plot_next_tokens, visible
from mikit.viz.windows import Html
from mikit.widgets.parts import State, busy, column, figure_html, html, note, row, told
from mikit.widgets.steering import POSITIONS, Steering, Written, next_tokens, steering, write_on

STRONGEST = 4.0
"""Multiples of ref at the ends of the slider."""


class SteerPanel:
    """Prompt, dose and positions; the next token follows the slider, continuations are written on demand."""

    def __init__(self, state: State, prompt: str) -> None:
        self._state = state
        self.prompt = ipywidgets.Text(value=prompt, description="prompt", layout={"width": "auto"})
        self.dose = ipywidgets.FloatSlider(
            value=1.0, min=-STRONGEST, max=STRONGEST, step=0.25, description="dose, x ref", style={"description_width": "initial"},
            layout={"width": "28em", "max_width": "100%"},
        )  # fmt: skip
        self.position = ipywidgets.Dropdown(options=POSITIONS, description="added at")
        self.write = ipywidgets.Button(description="Continue the text", layout={"width": "12em"})
        self.note, self.figure, self.written = note(), html(), html()
        for widget in (self.prompt, self.dose, self.position):
            widget.observe(self._on_change, "value")
        self.write.on_click(self._on_write)
        self.box = column(self.prompt, row(self.dose, self.position, self.write), self.note, self.figure, self.written)

    def given(self) -> Steering:
        """What the controls say.

        Raises:
            BadInput: the prompt is empty, or the feature has no scale.
        """
        look = self._state.look
        return steering(
            look.run.target, look.feature, look.observation.ref, self.prompt.value, self.dose.value,
            self.position.value, look.run.params.seed,
        )  # fmt: skip

    def render(self) -> None:
        """Steer the feature that is looked at."""
        self._on_change(None)

    def _on_change(self, _change: Any) -> None:
        # continuations of another dose or prompt would be misread
        self.written.value = ""
        with told(self.note, self.figure):
            given = self.given()
            self.figure.value = figure_html(plot_next_tokens(next_tokens(given), given.how), "next token")

    def _on_write(self, _button: Any) -> None:
        with told(self.note, self.written), busy(self.write):
            given = self.given()
            self.written.value = written_html(write_on(given), given.how)


def written_html(written: Written, how: str) -> Html:
    """The continuations side by side, each behind the prompt."""
    cells = [
        Markup(
            '<div style="flex:1 1 16em;min-width:0"><b>{}</b><div style="{}"><span style="opacity:.65">{}</span>{}</div></div>'
        ).format(name, "white-space:pre-wrap;overflow-wrap:anywhere", visible(written.prompt), visible(text))
        for name, text in (
            ("unchanged", written.unchanged),
            (f"steered: {how}", written.steered),
            ("a random direction of that norm", written.random),
        )
    ]
    return Html(Markup('<div style="display:flex;flex-wrap:wrap;gap:1.5em">{}</div>').format(Markup("").join(cells)))
