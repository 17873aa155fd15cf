"""Write an explanation, and have it judged on the spot."""

from typing import Any

import ipywidgets

from mikit.trace import Scored
from mikit.viz import plot_scored
from mikit.widgets.parts import State, busy, column, figure_html, html, note, told
from mikit.widgets.scoring import score_typed, scored_html


class ScorePanel:
    """A sentence for each end, and the verdict of `mikit score`."""

    def __init__(self, state: State, explanation: str = "", output: str = "") -> None:
        self._state = state
        self.scored: Scored | None = None
        wide = {"width": "auto"}
        self.explanation = ipywidgets.Text(
            value=explanation, placeholder='fires on "apple" or "pear" after "the"', description="input", layout=wide
        )
        self.output = ipywidgets.Text(
            value=output, placeholder='promotes "red", "blue"', description="output", layout=wide
        )
        self.score = ipywidgets.Button(description="Score", button_style="primary")
        self.note, self.figure, self.verdict = note(), html(), html()
        self.score.on_click(self._on_score)
        self.box = column(self.explanation, self.output, self.score, self.note, self.figure, self.verdict)

    def render(self) -> None:
        """Forget the verdict on another feature."""
        if self.scored and self.scored.feature != self._state.look.feature:
            self.scored, self.figure.value, self.verdict.value = None, "", ""

    def _on_score(self, _button: Any) -> None:
        with told(self.note, self.figure, self.verdict), busy(self.score):
            scored = score_typed(self._state.look.run, self.explanation.value, self.output.value)
            self.scored = scored
            self.figure.value = figure_html(plot_scored(scored), "gates")
            self.verdict.value = scored_html(scored)
