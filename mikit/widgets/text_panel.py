"""Type any text, and see the feature's activation at each token as you type."""

from typing import Any

import ipywidgets

from mikit.widgets.parts import State, column, html, note, told
from mikit.widgets.reading import read_text, reading_html


class TextPanel:
    """A text area whose every change is answered.

    A front end keeps one message of a widget on its way: what is typed until the kernel has answered it is sent as one
    further message with the text as it then is. So the latest text wins, no answer is computed for a text that nobody
    sees any more, and no timer is needed.
    """

    def __init__(self, state: State, text: str = "") -> None:
        self._state = state
        self.text = ipywidgets.Textarea(
            value=text, placeholder="type a text", rows=4, continuous_update=True, layout={"width": "auto"}
        )
        self.answer, self.note = html(), note()
        self.text.observe(self._on_text, "value")
        self.box = column(self.text, self.answer, self.note)

    def render(self) -> None:
        """Read the text with the feature that is looked at."""
        self._on_text(None)

    def _on_text(self, _change: Any) -> None:
        with told(self.note, self.answer):
            look = self._state.look
            reading = read_text(look.run.target, look.feature, self.text.value)
            self.answer.value = reading_html(reading, look.observation.tau, look.observation.ref)
