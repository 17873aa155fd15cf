"""The index and the notebooks beside the explorer in a real JupyterLab: they open, run, and show a stranger's text as text."""

import builders
import pytest
from colors import contrast
from test_report import ATTACKS, trace_filled_with

from mikit.files import write_json

pytestmark = pytest.mark.browser

RUN_AGAIN = """(start) => {
    const panel = window.jupyterapp.shell.currentWidget;
    const index = panel.content.widgets.findIndex((cell) => cell.model.sharedModel.source.startsWith(start));
    panel.content.activeCellIndex = index;
    return window.jupyterapp.commands.execute('notebook:run-cell');
}"""
COLORS = """() => {
    const hex = (color) => '#' + color.match(/\\d+/g).slice(0, 3).map((n) => (+n).toString(16).padStart(2, '0')).join('');
    const ground = (element) => {
        const color = getComputedStyle(element).backgroundColor;
        return color === 'rgba(0, 0, 0, 0)' ? ground(element.parentElement) : hex(color);
    };
    const cells = [...document.querySelectorAll('.jp-RenderedHTMLCommon td, .jp-RenderedHTMLCommon th')];
    return cells.filter((cell) => cell.innerText.trim()).map((cell) => [hex(getComputedStyle(cell).color), ground(cell)]);
}"""


def outputs(page) -> str:
    return "\n".join(page.locator(".jp-OutputArea-output").all_inner_texts())


@pytest.fixture
def runs(lab):
    """The outputs folder of the server's kernels."""
    return lab.root.parent / "outputs"


def test_a_run_made_by_the_index_is_in_its_table_of_runs(lab, page):
    lab.open(page, "index.ipynb")
    lab.run_all(page)
    page.evaluate(RUN_AGAIN, "front_page.runs_table")
    page.locator(".jp-OutputArea-output td", has_text="layer-0/feature-3/index").first.wait_for()
    text = outputs(page)
    assert "things that runs need are in order" in text
    assert "✓ pass" in text and "explained, and confirmed" in text


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_every_cell_of_the_tables_can_be_read_in_both_themes(lab, page, theme):
    lab.open(page, "explore/compare_runs.ipynb", theme=theme)
    lab.run_all(page)
    page.locator(".jp-OutputArea-output table").first.wait_for()
    pairs = {tuple(pair) for pair in page.evaluate(COLORS)}
    assert pairs and {pair for pair in pairs if contrast(*pair) < 4.5} == set()


def test_a_strangers_run_runs_nothing_in_the_index(lab, page, dialogs, runs):
    text = "".join(ATTACKS)
    name = ATTACKS[1].replace("/", "_")
    write_json(runs / "layer-0/feature-1" / name / "trace.json", trace_filled_with(text).model_dump(mode="json"))
    (runs / "layer-0/feature-1/torn").mkdir()
    (runs / "layer-0/feature-1/torn/trace.json").write_text("{")
    (runs / "layer-0/feature-1" / ATTACKS[0].replace("/", "_")).mkdir()
    write_json(runs / "layer-0/feature-1/plain/trace.json", builders.trace().model_dump(mode="json"))
    try:
        lab.open(page, "index.ipynb")
        lab.run_all(page)
        page.locator(".jp-OutputArea-output", has_text="torn, or of another version").first.wait_for()
        area = page.locator(".jp-OutputArea-output")
        assert area.locator("img[src='x'], iframe, script, [onerror], [onmouseover]").count() == 0
        assert "onerror=alert(1)" in outputs(page), "shown as text"
        assert dialogs == []
    finally:
        import shutil

        shutil.rmtree(runs / "layer-0/feature-1")


def test_the_gallery_draws_every_figure(lab, page):
    lab.open(page, "explore/gallery.ipynb")
    lab.run_all(page)
    page.locator(".jp-OutputArea-output", has_text="figures, every axis with its unit").wait_for()
    assert page.locator(".jp-OutputArea-output img").count() >= 25
