"""The notebooks: fit to be read and run, each linked from the index, none of their links dead, every figure in the gallery."""

import copy
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
from matplotlib.figure import Figure
from notebook_lint import faults, source

from mikit import paths, viz
from mikit.tasks import plots

NOTEBOOKS = sorted(path for path in paths.notebooks().rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)
INDEX = paths.notebooks() / "index.ipynb"
GALLERY = paths.notebooks() / "explore" / "gallery.ipynb"
SOUND = paths.notebooks() / "pipeline" / "step1_initial_observation.ipynb"


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text("utf-8"))["cells"]


def links(path: Path) -> list[str]:
    """Addresses in the text of a notebook, without those of the web."""
    text = "\n".join(source(cell) for cell in cells_of(path) if cell["cell_type"] == "markdown")
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [unquote(each.split("#")[0]) for each in found if not re.match(r"[a-z]+:", each)]


def name_of(path: Path) -> str:
    return path.relative_to(paths.notebooks()).as_posix()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_a_notebook_reads_as_all_do(path):
    assert faults(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_no_link_of_a_notebook_is_dead(path):
    assert [each for each in links(path) if not (path.parent / each).is_file()] == []


def test_the_index_links_every_notebook():
    linked = {(INDEX.parent / each).resolve() for each in links(INDEX)}
    assert {name_of(path) for path in NOTEBOOKS if path != INDEX and path.resolve() not in linked} == set()


# --- a lint that catches nothing would pass too ---


def _first(cells, text):
    cells[0]["source"] = [text]


def _code(cells, text):
    cells[1]["source"] = text.splitlines(keepends=True)


def _untag(cells, tag):
    for cell in cells:
        cell["metadata"].pop("tags", None) if tag in cell["metadata"].get("tags", []) else None


def _lengthen(cells):
    for cell in cells:
        if cell["cell_type"] == "code":
            cell["source"] = ["x = 1\n"] * 16


def _append(cells):
    cells.append({"cell_type": "code", "metadata": {}, "source": ["x"], "execution_count": None, "outputs": []})


TABLE = source(cells_of(SOUND)[0])
BROKEN = {
    "no title": (lambda c: _first(c, TABLE.replace("# ", "", 1)), "no title"),
    "no table": (lambda c: _first(c, "# Title"), "no table with: you give"),
    "no parameters": (lambda c: _untag(c, "parameters"), "0 cells are tagged parameters"),
    "parameters twice": (lambda c: c[1]["metadata"].update(tags=["parameters"]), "2 cells are tagged parameters"),
    "no record": (lambda c: _untag(c, "record"), "0 cells are tagged record"),
    "record not last": (_append, "record is not the last"),
    "a long cell": (lambda c: _code(c, "x = 1\n" * 26), "26 lines, more than 25"),
    "many longish cells": (_lengthen, "over 15 lines"),
    "outputs": (lambda c: c[1].update(outputs=[{"output_type": "stream"}]), "holds outputs"),
    "execution counts": (lambda c: c[1].update(execution_count=3), "holds execution counts"),
    "a relative path": (lambda c: _code(c, 'x = "../outputs/trace.json"'), "relative path: ../outputs"),
    "a relative path that is opened": (lambda c: _code(c, 'Path("outputs").mkdir()'), "relative path: outputs"),
    "a magic": (lambda c: _code(c, "%run other.ipynb"), "no plain Python"),
    "logic of its own": (lambda c: _code(c, "def f():\n" + "    x = 1\n" * 6), "belongs in the library"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_the_lint_names_the_fault(tmp_path, fault):
    spoil, named = BROKEN[fault]
    notebook = copy.deepcopy(json.loads(SOUND.read_text("utf-8")))
    folder = tmp_path / "pipeline"
    folder.mkdir()
    (folder / "x.ipynb").write_text(json.dumps(notebook), "utf-8")
    assert faults(folder / "x.ipynb") == []
    spoil(notebook["cells"])
    (folder / "x.ipynb").write_text(json.dumps(notebook), "utf-8")
    found = faults(folder / "x.ipynb")
    assert any(named in line for line in found), found


def test_a_torn_notebook_is_a_fault(tmp_path):
    (tmp_path / "x.ipynb").write_text('{"cells": [', "utf-8")
    assert faults(tmp_path / "x.ipynb") == ["it can't be read: JSONDecodeError"]


def test_ruff_reads_the_cells_of_a_notebook(tmp_path):
    notebook = json.loads(SOUND.read_text("utf-8"))
    _code(notebook["cells"], "import os\n")
    (tmp_path / "x.ipynb").write_text(json.dumps(notebook), "utf-8")
    config = paths.PROJECT / "pyproject.toml"
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--config", str(config), str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 1 and "F401" in said.stdout


# --- the gallery ---


def figures_of(module) -> set[str]:
    """The public functions of a module that return a figure, and belong to this project."""
    functions = {name: each for name, each in vars(module).items() if inspect.isfunction(each) and name[0] != "_"}
    own = {name: each for name, each in functions.items() if inspect.unwrap(each).__module__.startswith("mikit")}
    if hasattr(module, "__all__"):
        own = {name: each for name, each in own.items() if name in module.__all__}
    else:
        own = {name: each for name, each in own.items() if each.__module__ == module.__name__}
    return {name for name, each in own.items() if inspect.signature(each).return_annotation is Figure}


@pytest.mark.parametrize("module, prefix", [(viz, "viz"), (plots, "plots")])
def test_every_public_figure_is_in_the_gallery(module, prefix):
    text = "\n".join(source(cell) for cell in cells_of(GALLERY) if cell["cell_type"] == "code")
    figures = figures_of(module)
    assert len(figures) >= 6
    assert {name for name in figures if f"{prefix}.{name}(" not in text} == set()
