"""Keep what is seen: figures as PNG, and the parameters that run it again."""

import shlex
from typing import Any

import ipywidgets
from matplotlib.figure import Figure

from mikit.viz import plot_logit_lens, plot_next_tokens, plot_scored
from mikit.widgets.parts import State, busy, column, note, row, say, told
from mikit.widgets.saving import folder_of, save_figures, save_params
from mikit.widgets.score_panel import ScorePanel
from mikit.widgets.steer_panel import SteerPanel
from mikit.widgets.steering import next_tokens


class SavePanel:
    """Two buttons, and where it went."""

    def __init__(self, state: State, steer: SteerPanel, score: ScorePanel) -> None:
        self._state, self._steer, self._score = state, steer, score
        self.png = ipywidgets.Button(description="Figures as PNG", layout={"width": "14em"})
        self.params = ipywidgets.Button(description="Params file", layout={"width": "14em"})
        self.note, self.done = note(), note()
        self.png.on_click(self._on_png)
        self.params.on_click(self._on_params)
        self.box = column(row(self.png, self.params), self.note, self.done)

    def figures(self) -> dict[str, Figure]:
        """What there is to save, as the panels show it now."""
        look, steered = self._state.look, self._steer
        found = {"activations": look.histogram(), "logit-lens": plot_logit_lens(look.observation)}
        if look.observation.ref > 0 and look.run.target.ids_of(steered.prompt.value):
            given = steered.given()
            found["next-token"] = plot_next_tokens(next_tokens(given), given.how)
        if self._score.scored and self._score.scored.feature == look.feature:
            found["gates"] = plot_scored(self._score.scored)
        return found

    def _on_png(self, _button: Any) -> None:
        with told(self.note, self.done), busy(self.png):
            paths = save_figures(self.figures(), folder_of(self._state.look.run))
            say(self.done, f"Written to {paths[0].parent}: {', '.join(path.name for path in paths)}")

    def _on_params(self, _button: Any) -> None:
        with told(self.note, self.done), busy(self.params):
            path = save_params(self._state.look.run, folder_of(self._state.look.run))
            say(self.done, f"To run the nine steps on it: mikit run --params {shlex.quote(str(path))}")
