"""Every place where text of a model, a corpus, a person or a file's name becomes HTML: known, escaped, and tried with attacks."""

import ast
import re
from pathlib import Path

import pytest

import mikit
from mikit.runs.pages import page_template

PACKAGE = Path(mikit.__file__).parent
TESTS = Path(__file__).parent
MAKERS = {
    "progress.py": "test_progress.py",
    "runs/compare.py": "test_compare.py",
    "runs/front_page.py": "test_front_page.py",
    "runs/report.py": "test_report.py",
    "runs/sweep_report.py": "test_browser.py",
    "viz/svg.py": "test_viz.py",
    "viz/tables.py": "test_front_page.py",
    "viz/tokens.py": "test_explorer.py",
    "viz/windows.py": "test_viz.py",
    "widgets/comparing.py": "test_explorer.py",
    "widgets/parts.py": "test_explorer_panels.py",
    "widgets/reading.py": "test_explorer.py",
    "widgets/scoring.py": "test_explorer.py",
    "widgets/session.py": "test_explorer.py",
    "widgets/shown.py": "test_explorer.py",
}
"""The modules that make HTML, and the tests that throw a stranger's text at each."""
MAKES = re.compile(r"\bMarkup\(|\bHtml\(|\bHTML\(|text/html|_repr_html_|-> Html\b")
WITHOUT_TEXT = re.compile(r"widgets/\w+_panel\.py$")
"""They put together what the others made; `test_explorer_panels.py` and the browser tests drive them."""


def files_that_make_html() -> set[str]:
    places = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    return {name for name, text in places.items() if MAKES.search(text) and not WITHOUT_TEXT.search(name)}


def test_every_module_that_makes_html_is_known_here():
    assert files_that_make_html() - set(MAKERS) == set()


@pytest.mark.parametrize("test", sorted(set(MAKERS.values())))
def test_each_is_tried_with_what_an_attacker_would_write(test):
    text = (TESTS / test).read_text("utf-8")
    assert re.search(r"ATTACKS|HOSTILE|<script>|onerror|hostile|st\.text\(", text)


def _trusted(node: ast.expr) -> bool:
    """Whether what is declared to be HTML is written in the program: a string, or pieces of constants and escaped values."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.JoinedStr):
        return all(_trusted(part.value) if isinstance(part, ast.FormattedValue) else True for part in node.values)
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) == "escape"
    return isinstance(node, ast.Name) and node.id.isupper()


KNOWN = {
    ("viz/svg.py", "body"): "matplotlib's own SVG, whose texts it escapes",
    ("viz/svg.py", "box[1]"): "numbers, by a regular expression",
    ("viz/tokens.py", "text"): "a constant of that function",
    ("runs/sweep_report.py", "script"): "a file of the package",
}
"""What else is declared to be HTML, and why it may be."""


def test_nothing_is_declared_to_be_html_that_somebody_else_wrote():
    faults = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Markup" and node.args:
                first = node.args[0]
                parts = first.values if isinstance(first, ast.JoinedStr) else [first]
                values = [part.value if isinstance(part, ast.FormattedValue) else part for part in parts]
                faults += [
                    f"{name}:{node.lineno} {ast.unparse(value)}"
                    for value in values
                    if not _trusted(value) and (name, ast.unparse(value)) not in KNOWN
                ]
    assert faults == []


@pytest.mark.parametrize("template", sorted(PACKAGE.rglob("*.j2")), ids=lambda path: path.name)
def test_a_template_escapes_everything(template):
    text = template.read_text("utf-8")
    assert not re.search(r"\|\s*safe\b|autoescape\s+false", text)
    filters = ("cell", "interval", "number", "quotes", "rate", "score", "share")
    assert page_template(template.name, dict.fromkeys(filters, str)).environment.autoescape is True


def test_reports_are_made_of_templates_in_one_way():
    makers = [path for path in PACKAGE.rglob("*.py") if re.search(r"\bEnvironment\(", path.read_text("utf-8"))]
    assert [path.name for path in makers] == ["pages.py"]
