"""The explorer: choosing above, a tab for each thing to do below."""

from dataclasses import dataclass
from typing import Any

import ipywidgets

from mikit.widgets.choose_panel import ChoosePanel
from mikit.widgets.compare_panel import ComparePanel
from mikit.widgets.fires_panel import FiresPanel
from mikit.widgets.parts import State, column
from mikit.widgets.save_panel import SavePanel
from mikit.widgets.score_panel import ScorePanel
from mikit.widgets.session import Look, Session
from mikit.widgets.steer_panel import SteerPanel
from mikit.widgets.text_panel import TextPanel

TITLES = ("Where it fires", "Type a text", "Steer", "Explain and score", "Compare", "Save")


@dataclass(frozen=True)
class First:
    """What stands in the panels to begin with; what is empty is filled by the target, or is left empty."""

    text: str = ""
    prompt: str = ""
    explanation: str = ""
    output: str = ""


class Explorer:
    """All panels on one state. A tab is drawn when it is opened: another feature redraws only what is seen."""

    def __init__(self, session: Session, first: First | None = None) -> None:
        self.state = state = State(session)
        first = first or First()
        own = first_texts(state.look)
        self.choose, self.fires = ChoosePanel(state), FiresPanel(state)
        self.text, self.steer = TextPanel(state, first.text or own.text), SteerPanel(state, first.prompt or own.prompt)
        self.score, self.compare = ScorePanel(state, first.explanation, first.output), ComparePanel(state)
        self.save = SavePanel(state, self.steer, self.score)
        self._renders = (self.fires, self.text, self.steer, self.score, self.compare)
        self._stale = set(range(len(self._renders)))
        panels = (*self._renders, self.save)
        self.tabs = ipywidgets.Tab([panel.box for panel in panels], titles=TITLES)
        self.tabs.observe(self._on_tab, "selected_index")
        state.follow(self._on_state)
        self.box = column(self.choose.box, self.tabs)

    def draw(self) -> None:
        """Draw the open tab, if it is not as it should be."""
        index = self.tabs.selected_index or 0
        if index in self._stale:
            self._stale.discard(index)
            self._renders[index].render()

    def _on_state(self) -> None:
        self._stale = set(range(len(self._renders)))
        self.draw()

    def _on_tab(self, _change: Any) -> None:
        self.draw()


def first_texts(look: Look) -> First:
    """A prompt and a text in the language of the target: a neutral prompt, and the strongest window."""
    target, windows = look.run.target, look.observation.windows
    prompt = target.text_of(look.run.prompts["explain"][0]).strip()
    return First(text=target.text_of(windows[0].ids).strip() if windows else prompt, prompt=prompt)
