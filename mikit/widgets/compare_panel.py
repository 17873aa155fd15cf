"""The feature beside another one."""

from typing import Any

import ipywidgets
from markupsafe import Markup

from mikit.viz import plot_logit_lens, plot_overlap
from mikit.widgets.comparing import overlap, windows_beside
from mikit.widgets.parts import State, column, figure_html, html, note, row, say, told
from mikit.widgets.session import Look


class ComparePanel:
    """Windows, logit lenses, decoder cosine and co-activation of two features."""

    def __init__(self, state: State) -> None:
        self._state, self._asked = state, False
        self.other = ipywidgets.IntText(description="beside")
        self.nearest = ipywidgets.Button(description="The nearest", tooltip="the live feature of the nearest direction")
        self.note, self.figure, self.windows, self.lenses = note(), html(), html(), html()
        self.other.observe(self._on_other, "value")
        self.nearest.on_click(self._on_nearest)
        self.box = column(row(self.other, self.nearest), self.note, self.figure, self.windows, self.lenses)

    def render(self) -> None:
        """Compare the feature that is looked at: with the one that was asked for, else with the nearest."""
        if self._asked and self.other.value != self._state.look.feature:
            self._draw()
        else:
            self._on_nearest(None)

    def _on_nearest(self, _button: Any) -> None:
        neighbours = self._state.look.observation.neighbours
        if not neighbours:
            say(self.note, "no other feature fires often enough to be near: type an index")
        elif self.other.value == neighbours[0]:
            self._draw()
        else:
            self.other.value = neighbours[0]
            self._asked = False

    def _on_other(self, _change: Any) -> None:
        self._asked = True
        self._draw()

    def _draw(self) -> None:
        with told(self.note, self.figure, self.windows, self.lenses):
            look = self._state.look
            other = self._state.session.look(self.other.value)
            self.figure.value = figure_html(plot_overlap(overlap(look, other)), "two features")
            self.windows.value = windows_beside(look, other)
            self.lenses.value = lens_html(look) + lens_html(other)


def lens_html(look: Look) -> Markup:
    """The logit lens of a feature under its name."""
    figure = figure_html(plot_logit_lens(look.observation), f"logit lens of {look.feature}")
    return Markup("<div style='margin-top:.8em'><b>Feature {}</b></div>{}").format(look.feature, figure)
