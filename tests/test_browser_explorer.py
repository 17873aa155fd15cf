"""The feature explorer in a real JupyterLab in a real browser: it runs, answers, and runs nothing of what it shows."""

import json
import re

import pytest
from lab import new_page
from test_report import ATTACKS

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
HOSTILE_CELL = """
from mikit import viz, widgets
from mikit.widgets import features
session = widgets.open_session(model="smollm2-135m", layer=12, corpus={corpus!r}, corpus_tokens=2000)
feature = features.at_random(session.run.store, 5, 0)
look = session.look(feature)
display(viz.bands_html(look.observation), widgets.explorer(session, text={text!r}))
"""
SECONDS = 60_000
"""Milliseconds that an answer may take on a busy machine; it is waited for, never for longer than it takes."""


@pytest.fixture(scope="module")
def popped_up() -> list[str]:
    return []


@pytest.fixture(scope="module")
def explorer(lab, browser, popped_up):
    """The explorer's notebook, run once, with its panels in sight."""
    with new_page(browser, popped_up) as page:
        lab.open(page, "explore/feature_explorer.ipynb")
        lab.run_all(page)
        page.locator(".jupyter-widget-tab").wait_for()
        yield page


def panel(page, title: str):
    """A tab of the explorer, opened."""
    page.locator(".jupyter-widget-tab .lm-TabBar-tab", has_text=title).click()
    return page.locator(".jupyter-widget-tab .widget-tab-contents > :not(.lm-mod-hidden)").first


def test_the_index_opens_and_runs(lab, page):
    lab.open(page, "index.ipynb")
    page.locator(".jp-NotebookPanel h1", has_text="mikit").wait_for()
    lab.run_all(page)
    assert page.locator(".jp-OutputArea-output", has_text="input").count() == 1


def test_pictures_come_before_the_panels(explorer):
    outputs = explorer.locator(".jp-OutputArea-output")
    kinds = [outputs.nth(i).locator("img, .jupyter-widget-tab").count() for i in range(outputs.count())]
    last = outputs.nth(outputs.count() - 1)
    assert sum(kinds[:-1]) >= 5, "figures"
    assert last.locator(".jupyter-widget-tab").count() == 1


def test_the_next_token_follows_the_slider(explorer):
    steer = panel(explorer, "Steer")
    steer.locator("svg", has_text="Adding 1 x ref").wait_for(timeout=SECONDS)
    places = steer.locator("svg path").evaluate_all("(paths) => paths.map((path) => path.getAttribute('d')).join()")
    handle = steer.locator(".noUi-handle")
    handle.focus()
    handle.press("ArrowRight")
    steer.locator("svg", has_text="Adding 1.25 x ref").wait_for(timeout=SECONDS)
    now = steer.locator("svg path").evaluate_all("(paths) => paths.map((path) => path.getAttribute('d')).join()")
    assert now != places
    steer.get_by_role("button", name="Continue the text").click()
    steer.get_by_text("steered: 1.25 x ref at the last token").wait_for(timeout=SECONDS)


def test_text_is_marked_as_it_is_typed_and_the_latest_wins(explorer):
    read = panel(explorer, "Type a text")
    area = read.locator("textarea")
    area.fill("")
    area.press_sequentially("my aunt ate a plum", delay=20)
    plum = read.locator("bdi", has_text="plum")
    plum.wait_for(timeout=SECONDS)
    style = plum.evaluate("(token) => [getComputedStyle(token).fontWeight, getComputedStyle(token).textDecorationLine]")
    assert style == ["700", "underline"]
    assert re.fullmatch(r"[\d.]+, fires \(tau [\d.]+\)", plum.get_attribute("title"))
    assert read.locator("bdi", has_text="aunt").get_attribute("title") == "0"
    assert area.input_value() == "my aunt ate a plum"


def test_an_explanation_is_scored(explorer):
    score = panel(explorer, "Explain and score")
    score.get_by_role("textbox", name="input", exact=True).fill('fires on "mango"')
    score.get_by_role("button", name="Score", exact=True).click()
    score.get_by_text("of 60 near misses").first.wait_for(timeout=SECONDS)
    assert score.locator("svg", has_text="boundary rejection").count() == 1
    score.get_by_role("textbox", name="input", exact=True).fill("fires on fruit")
    score.get_by_role("button", name="Score", exact=True).click()
    score.get_by_role("alert").wait_for(timeout=SECONDS)
    assert "names" in score.get_by_role("alert").inner_text() or "no token" in score.get_by_role("alert").inner_text()
    assert score.locator("svg").count() == 0


def test_what_is_typed_is_shown_as_text_and_never_run(explorer, popped_up):
    score = panel(explorer, "Explain and score")
    score.get_by_role("textbox", name="input", exact=True).fill(f'fires on "{HOSTILE}"')
    score.get_by_role("button", name="Score", exact=True).click()
    explorer.get_by_role("alert").filter(has_text=HOSTILE).wait_for(timeout=SECONDS)
    assert explorer.locator("[onerror]").count() == 0
    assert popped_up == []


@pytest.mark.smollm2
def test_a_hostile_corpus_is_shown_as_text_and_never_run(lab, page, dialogs, tmp_path):
    corpus = tmp_path / "hostile.jsonl"
    texts = [f"{' '.join(ATTACKS[i:] + ATTACKS[:i])} {HOSTILE} number {i} and some more words." for i in range(40)]
    corpus.write_text("".join(json.dumps({"text": text * 3}) + "\n" for text in texts), encoding="utf-8")
    cell = HOSTILE_CELL.format(corpus=str(corpus), text=HOSTILE)
    lab.write("hostile.ipynb", [cell])
    lab.open(page, "hostile.ipynb")
    lab.run_all(page)
    page.locator(".jupyter-widget-tab").wait_for()
    read = panel(page, "Type a text")
    read.locator("bdi", has_text="script").first.wait_for(timeout=SECONDS)
    assert "".join(read.locator("bdi").all_inner_texts()).replace(" ", "") == HOSTILE.replace(" ", "")
    windows = "".join(page.locator(".jp-RenderedHTMLCommon bdi").all_inner_texts())
    assert "<script>" in windows.replace(" ", "") and "onerror" in windows
    assert page.locator(".jp-OutputArea [onerror], .jp-OutputArea script, .jp-OutputArea img").count() == 0
    assert dialogs == []


def test_a_script_that_did_run_would_be_noticed(lab, page, dialogs):
    lab.write("faulty.ipynb", ["import ipywidgets\nipywidgets.HTML('<img src=x: onerror=alert(1)>')"])
    lab.open(page, "faulty.ipynb")
    with page.expect_event("dialog"):
        lab.run_all(page)
    assert dialogs == ["1"]
