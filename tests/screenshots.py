"""The pictures of JupyterLab in `docs/`, each made by driving a real one: `make screenshots`."""

import io
from pathlib import Path

import pytest

from mikit import paths

pytestmark = pytest.mark.browser
DOCS = paths.PROJECT / "docs"
BYTES = 250_000
SETTLE_MS = 1500
"""Until fonts and figures have their places; a picture of it is all that this is for."""


def keep(page, name: str, x: int = 0, y: int = 0, width: int = 1280, height: int = 900, colors: int = 256) -> Path:
    """Write what the page shows as a PNG with a palette, which is a third of the size and looks the same."""
    from PIL import Image

    page.wait_for_timeout(SETTLE_MS)
    shot = page.screenshot(clip={"x": x, "y": y, "width": width, "height": height})
    picture = Image.open(io.BytesIO(shot)).convert("RGB").quantize(colors)
    path = DOCS / f"lab-{name}.png"
    picture.save(path, optimize=True)
    assert path.stat().st_size <= BYTES
    return path


@pytest.fixture
def wide(page):
    """A page in which the notebook has all the room."""
    page.set_viewport_size({"width": 1280, "height": 900})
    return page


def only_the_notebook(page) -> None:
    """Fold the file browser away."""
    page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")


def scroll_to(page, text: str, above: int = 10) -> None:
    """Bring a heading to the top of the notebook."""
    page.evaluate(
        """([text, above]) => {
            const heads = [...document.querySelectorAll('.jp-NotebookPanel h1, .jp-NotebookPanel h2')];
            const head = heads.find((each) => each.textContent.includes(text));
            const pane = head.closest('.jp-WindowedPanel-outer') || head.closest('.jp-Notebook');
            pane.scrollTop += head.getBoundingClientRect().top - pane.getBoundingClientRect().top - above;
        }""",
        [text, above],
    )


def test_the_index(lab, wide):
    lab.open(wide, "explore/compare_runs.ipynb")
    lab.run_all(wide)
    lab.open(wide, "index.ipynb")
    lab.run_all(wide)
    only_the_notebook(wide)
    scroll_to(wide, "Is everything here?")
    keep(wide, "index")


def test_the_explorer(lab, wide):
    lab.open(wide, "explore/feature_explorer.ipynb")
    lab.run_all(wide)
    only_the_notebook(wide)
    scroll_to(wide, "Touch it")
    keep(wide, "explorer")


def test_runs_side_by_side_on_a_dark_page(lab, wide):
    lab.open(wide, "explore/compare_runs.ipynb", theme="JupyterLab Dark")
    wide.evaluate(
        """() => {
            const cells = window.jupyterapp.shell.currentWidget.content.widgets;
            const cell = cells.find((each) => each.model.sharedModel.source.startsWith('import mikit'));
            cell.model.sharedModel.source = 'from mikit import viz\\nviz.set_theme("dark")\\n' + cell.model.sharedModel.source;
        }"""
    )
    lab.run_all(wide)
    only_the_notebook(wide)
    scroll_to(wide, "What came of it")
    keep(wide, "compare")


def test_a_report(lab, wide):
    from mikit.runs.report import write_report
    from mikit.trace import Trace

    [trace, *_] = sorted((lab.root.parent / "outputs").glob("layer-0/feature-3/*/trace.json"))
    report = lab.root / "report.html"
    write_report(Trace.model_validate_json(trace.read_bytes()), report)
    wide.goto(report.as_uri())
    keep(wide, "report")


def test_a_lesson(lab, wide):
    lab.open(wide, "tasks/2_causal_ablation.ipynb")
    lab.run_all(wide)
    only_the_notebook(wide)
    scroll_to(wide, "1. ")
    keep(wide, "lesson")
