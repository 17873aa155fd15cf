"""Choosing a target and a feature."""

from typing import Any

import ipywidgets

from mikit.errors import BadInput
from mikit.widgets.features import BANDS, Found, at_random, by_density, by_tokens, labels, typed_tokens
from mikit.widgets.parts import State, busy, column, html, note, row, told
from mikit.widgets.session import open_session

TARGETS: dict[str, dict[str, Any]] = {
    "planted": {"model": "planted", "layer": 0, "feature": 3},
    "smollm2-135m": {"model": "smollm2-135m", "layer": 12, "feature": 170},
}
"""Those that bring all they need, each with a feature worth a look."""
FROM_FILE = "params file"
ANY_BAND = "(any)"


class ChoosePanel:
    """Target by name or params file; feature by index, by tokens, by density, or at random."""

    def __init__(self, state: State) -> None:
        self._state, self._draws, self._filling = state, 0, False
        here = state.session.run.params.model
        names = [*TARGETS, *([] if here in TARGETS else [here]), FROM_FILE]
        self.target = ipywidgets.Dropdown(options=names, value=here, description="target")
        self.file = ipywidgets.Text(placeholder="params/demo.yaml", description="file", disabled=True)
        self.load = ipywidgets.Button(description="Load", tooltip="load this target, with its evidence")
        self.feature = ipywidgets.IntText(value=state.look.feature, description="feature")
        self.random = ipywidgets.Button(description="Random", tooltip="a feature that fires often enough to be judged")
        self.tokens = ipywidgets.Text(placeholder='apple, or " for"', description="fires on", continuous_update=False)
        self.band = ipywidgets.Dropdown(options=[ANY_BAND, *BANDS], description="density")
        layout = {"width": "36em", "max_width": "100%", "display": "none"}
        self.found = ipywidgets.Select(options=[], rows=5, description="found", layout=layout)
        self.note, self.about = note(), html()
        self.target.observe(self._on_target, "value")
        self.load.on_click(self._on_load)
        self.feature.observe(self._on_feature, "value")
        self.random.on_click(self._on_random)
        self.tokens.observe(self._on_tokens, "value")
        self.band.observe(self._on_band, "value")
        self.found.observe(self._on_found, "value")
        self.box = column(
            row(self.target, self.file, self.load),
            row(self.feature, self.random),
            row(self.tokens, self.band),
            self.found,
            self.note,
        )
        state.follow(self._follow)

    def _follow(self) -> None:
        self._filling = True
        self.feature.value = self._state.look.feature
        self._filling = False

    def _on_target(self, _change: Any) -> None:
        self.file.disabled = self.target.value != FROM_FILE

    def _on_load(self, _button: Any) -> None:
        with told(self.note), busy(self.load):
            name = self.target.value
            if name == FROM_FILE and not self.file.value.strip():
                raise BadInput("params file: none is named: valid: such as params/demo.yaml")
            if name == FROM_FILE:
                session = open_session(self.file.value.strip())
            elif name in TARGETS:
                session = open_session(**TARGETS[name])
            else:
                session = self._state.session
            self._state.load(session)
            self._fill([])

    def _on_feature(self, _change: Any) -> None:
        if not self._filling:
            self._show(self.feature.value)

    def _show(self, feature: int) -> None:
        with told(self.note):
            self._state.show(feature)

    def _on_random(self, _button: Any) -> None:
        with told(self.note):
            run = self._state.session.run
            self._draws += 1
            self._state.show(at_random(run.store, run.protocol.rare_windows, self._draws))

    def _on_tokens(self, _change: Any) -> None:
        run = self._state.session.run
        if self.tokens.value.strip():
            with told(self.note):
                self._fill(by_tokens(run.store, run.vocabulary, typed_tokens(self.tokens.value)))
                if not self.found.options:
                    raise BadInput("no feature fires on these tokens in the evidence: valid: other tokens")

    def _on_band(self, _change: Any) -> None:
        run = self._state.session.run
        if self.band.value != ANY_BAND:
            with told(self.note):
                self._fill(by_density(run.store, self.band.value, run.params.seed))
                if not self.found.options:
                    raise BadInput(f"no feature has a density of {self.band.value}: valid: another band")

    def _fill(self, found: list[Found]) -> None:
        """List features; none is chosen until somebody does."""
        self._filling = True
        self.found.options = labels(found)
        self.found.value = None
        self.found.layout.display = None if found else "none"
        self._filling = False

    def _on_found(self, _change: Any) -> None:
        if not self._filling and self.found.value is not None:
            self._show(self.found.value)
