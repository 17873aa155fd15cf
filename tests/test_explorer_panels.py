"""The explorer's panels, driven as a front end drives them: values are set, buttons are clicked, what is shown is read."""

from pathlib import Path

import ipywidgets
import numpy as np
import pytest
from test_explorer import QUICK, Elements
from test_report import ATTACKS

from mikit import widgets
from mikit.widgets import open_session
from mikit.widgets.panels import Explorer, First

ELEMENTS = {
    "a", "b", "bdi", "circle", "clippath", "defs", "div", "g", "i", "p", "path", "progress", "rect", "span", "style",
    "svg", "table", "td", "text", "tr", "use",
}  # fmt: skip


@pytest.fixture(scope="module")
def session():
    return open_session(model="planted", **QUICK)


@pytest.fixture
def explorer(session) -> Explorer:
    return Explorer(session, First(text="the baker ate a mango"))


def open_tab(explorer: Explorer, title: str) -> None:
    explorer.tabs.selected_index = explorer.tabs.titles.index(title)


def places(widget: ipywidgets.Widget):
    """All places for HTML in a widget."""
    if isinstance(widget, ipywidgets.HTML):
        yield widget
    for child in getattr(widget, "children", ()):
        yield from places(child)


def test_a_tab_is_drawn_when_it_is_opened_and_again_for_another_feature(explorer):
    explorer.draw()
    assert "Feature 3" in explorer.fires.head.value
    assert explorer.text.answer.value == ""
    open_tab(explorer, "Type a text")
    assert "mango" in explorer.text.answer.value
    before = explorer.fires.head.value
    explorer.choose.feature.value = 0
    assert explorer.fires.head.value == before
    open_tab(explorer, "Where it fires")
    assert "Feature 0" in explorer.fires.head.value


def test_each_change_of_the_text_is_answered(explorer):
    explorer.text.text.value = "a plum"
    assert "fires at 1 of 2 tokens; strongest on “plum”" in explorer.text.answer.value
    explorer.text.text.value = "a lantern"
    assert "Silent on all 2 tokens" in explorer.text.answer.value
    assert explorer.text.text.continuous_update, "the front end sends what is typed as it is typed"


def test_the_next_token_follows_the_slider_and_old_continuations_go(explorer):
    open_tab(explorer, "Steer")
    first = explorer.steer.figure.value
    explorer.steer.write.click()
    assert "steered: 1 x ref at the last token" in explorer.steer.written.value
    explorer.steer.dose.value = 3
    assert explorer.steer.written.value == ""
    assert explorer.steer.figure.value != first
    assert "Adding 3 x ref at the last token" in explorer.steer.figure.value
    explorer.steer.position.value = "all_tokens"
    assert "at all tokens" in explorer.steer.figure.value


def test_an_explanation_is_scored_with_progress_and_forgotten_with_its_feature(explorer):
    said = []
    explorer.score.note.observe(lambda change: said.append(change["new"]), "value")
    explorer.score.explanation.value = 'fires on "mango"'
    explorer.score.score.click()
    stages = [line for line in said if " of 4" in line]
    assert len(stages) >= 4 and all(any(f"{n} of 4" in line for line in stages) for n in range(1, 5))
    assert "<svg" in explorer.score.figure.value
    assert "input" in explorer.score.verdict.value
    assert not explorer.score.score.disabled
    explorer.choose.feature.value = 0
    open_tab(explorer, "Explain and score")
    assert explorer.score.verdict.value == ""


def test_two_features_are_compared_the_nearest_first(explorer):
    open_tab(explorer, "Compare")
    nearest = explorer.state.look.observation.neighbours[0]
    assert explorer.compare.other.value == nearest
    explorer.compare.other.value = 58
    assert "3 and 58" in explorer.compare.figure.value
    assert "Feature 58" in explorer.compare.windows.value


def test_a_feature_that_never_fires_is_looked_at_without_a_fault(explorer, caplog):
    silent = int(np.flatnonzero(np.asarray(explorer.state.session.run.store.arrays["ref"]) == 0)[0])
    explorer.choose.feature.value = silent
    for title in explorer.tabs.titles:
        open_tab(explorer, title)
    explorer.save.png.click()
    assert "there is no strength to steer it at" in explorer.steer.note.value
    assert explorer.steer.figure.value == ""
    assert "never active" in explorer.fires.histogram.value
    assert explorer.choose.note.value == explorer.compare.note.value == explorer.save.note.value == ""
    assert caplog.records == []


def test_features_are_found_and_chosen_from_the_list(explorer):
    choose = explorer.choose
    choose.tokens.value = "mango"
    assert explorer.state.look.feature == 3, "finding chooses nothing"
    assert {latent for _, latent in choose.found.options} >= {3, 5}
    choose.found.value = 5
    assert explorer.state.look.feature == choose.feature.value == 5
    choose.band.value = "0.1% to 1%"
    assert choose.found.options
    choose.random.click()
    assert choose.feature.value == explorer.state.look.feature


def test_a_target_is_loaded_by_name_or_by_params_file(explorer):
    choose = explorer.choose
    choose.target.value = "params file"
    assert not choose.file.disabled
    choose.file.value = "params/planted.yaml"
    choose.load.click()
    assert choose.note.value == ""
    assert explorer.state.session.run.protocol.n_confirm == 30, "as the file leaves it"
    assert explorer.state.session.run.params.run == "explorer", "the run that the file names is left alone"


def test_what_is_saved_is_where_it_says(explorer):
    explorer.save.png.click()
    explorer.save.params.click()
    folder = Path(explorer.state.look.run.directory.path).parents[2] / "explorer" / "layer-0-feature-3"
    assert {path.name for path in folder.iterdir()} == {
        "activations.png", "logit-lens.png", "next-token.png", "params.yaml"
    }  # fmt: skip
    assert str(folder / "params.yaml") in explorer.save.done.value


BAD = [
    ("an index out of range", lambda e: setattr(e.choose.feature, "value", 999), "choose", "latents 0 to 135"),
    ("a negative index", lambda e: setattr(e.choose.feature, "value", -1), "choose", "out of range"),
    ("an unknown token", lambda e: setattr(e.choose.tokens, "value", "qqq"), "choose", "is no token of this model"),
    ("an empty prompt", lambda e: setattr(e.steer.prompt, "value", ""), "steer", "has no token of this model"),
    ("a sentence without tokens", lambda e: setattr(e.score.explanation, "value", "fruit") or e.score.score.click(),
     "score", "no token in quotes"),
    ("no sentence", lambda e: e.score.score.click(), "score", "nothing to score"),
    ("a comparison with itself", lambda e: setattr(e.compare.other, "value", 3), "compare", "another feature"),
    ("no params file", lambda e: setattr(e.choose.target, "value", "params file") or e.choose.load.click(),
     "choose", "none is named"),
]  # fmt: skip


@pytest.mark.parametrize("act, panel, said", [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_input_is_answered_with_one_line_in_its_panel(explorer, capsys, act, panel, said):
    act(explorer)
    shown = Elements(getattr(explorer, panel).note.value)
    assert said in shown.text
    assert "Traceback" not in shown.text and "\n" not in shown.text
    assert [tag for tag, _ in shown.found] == ["span", "b"]
    assert capsys.readouterr() == ("", "")
    assert explorer.state.look.feature == 3


def test_what_was_wrong_is_gone_with_the_next_good_input(explorer):
    explorer.choose.feature.value = 999
    explorer.choose.feature.value = 5
    assert explorer.choose.note.value == ""
    assert explorer.state.look.feature == 5


@pytest.mark.parametrize("attack", ATTACKS)
def test_whatever_is_typed_becomes_no_element(explorer, attack):
    for field in (
        explorer.text.text, explorer.steer.prompt, explorer.choose.tokens, explorer.choose.file,
        explorer.score.explanation, explorer.score.output,
    ):  # fmt: skip
        field.value = attack
    explorer.score.score.click()
    explorer.choose.target.value = "params file"
    explorer.choose.load.click()
    for place in places(explorer.box):
        for tag, attributes in Elements(place.value).found:
            assert tag in ELEMENTS
            assert not [name for name in attributes if name.startswith("on")]


def test_the_module_gives_the_panels_as_one_widget(session):
    assert isinstance(widgets.explorer(session, text="a mango"), ipywidgets.Widget)
