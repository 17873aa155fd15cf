"""What a notebook of this project has to be before it is committed, by the pages that say how a notebook reads."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST = 25
SHORT = 15
SHARE_SHORT = 0.9
DEFINITION_LINES = 5
"""A function in a notebook may be a line or two under its name; more belongs in the library."""
ROWS = ("you give", "you get", "reads", "writes", "time on CPU")
OPENERS = {"Path", "open", "read_text", "read_csv", "read_parquet", "load", "glob"}
"""Calls whose first argument is a path."""

Cell = dict[str, Any]


def faults(path: Path) -> list[str]:
    """What is wrong with a notebook, a line each; nothing if it is fit to be committed."""
    try:
        cells = json.loads(path.read_text("utf-8"))["cells"]
    except (ValueError, KeyError) as error:
        return [f"it can't be read: {type(error).__name__}"]
    return [*_head(cells), *_tags(cells, path), *_lengths(cells), *_run(cells), *_code(cells)]


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def code_cells(cells: list[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _tagged(cells: list[Cell], tag: str) -> list[int]:
    return [i for i, cell in enumerate(cells) if tag in cell["metadata"].get("tags", [])]


def _head(cells: list[Cell]) -> Iterator[str]:
    first = source(cells[0]) if cells and cells[0]["cell_type"] == "markdown" else ""
    if not re.match(r"# \S", first):
        yield "its first cell has no title"
    if missing := [row for row in ROWS if not re.search(rf"^\| {row} \| \S", first, re.M)]:
        yield f"its first cell has no table with: {', '.join(missing)}"


def _tags(cells: list[Cell], path: Path) -> Iterator[str]:
    code = code_cells(cells)
    if (n := len(_tagged(cells, "parameters"))) != 1:
        yield f"{n} cells are tagged parameters, not one"
    writes = re.search(r"^\| writes \| (.*?) \|$", source(cells[0]) if cells else "", re.M)
    records = _tagged(code, "record")
    if writes and not writes[1].startswith("nothing") and len(records) != 1:
        yield f"{len(records)} cells are tagged record, not one, though it writes {writes[1]}"
    if path.parent.name in {"pipeline", "reports", "make"} and records and records[-1] != len(code) - 1:
        yield "its record is not the last of its code cells"


def _lengths(cells: list[Cell]) -> Iterator[str]:
    lines = [len(source(cell).splitlines()) for cell in code_cells(cells)]
    if long := [n for n in lines if n > LONGEST]:
        yield f"a cell has {max(long)} lines, more than {LONGEST}"
    if lines and sum(n <= SHORT for n in lines) < SHARE_SHORT * len(lines):
        yield f"more than a tenth of its cells have over {SHORT} lines"


def _run(cells: list[Cell]) -> Iterator[str]:
    if any(cell["outputs"] for cell in code_cells(cells)):
        yield "it holds outputs: make strip"
    if any(cell["execution_count"] is not None for cell in code_cells(cells)):
        yield "it holds execution counts: make strip"


def _code(cells: list[Cell]) -> Iterator[str]:
    for cell in code_cells(cells):
        try:
            tree = ast.parse(source(cell))
        except SyntaxError:
            yield f"a cell is no plain Python (a magic, a shell line?): {source(cell).splitlines()[0]}"
            continue
        for node in ast.walk(tree):
            if fault := _long_definition(node) or _relative_path(node):
                yield fault


def _long_definition(node: ast.AST) -> str | None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if isinstance(node, kinds) and (node.end_lineno or 0) - node.lineno + 1 > DEFINITION_LINES:
        return f"{node.name} has more than {DEFINITION_LINES} lines: it belongs in the library"
    return None


def _relative_path(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"\.\.?/", node.value):
        return f"a relative path: {node.value}"
    if isinstance(node, ast.Call) and node.args:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        first = node.args[0]
        starts = isinstance(node.func, ast.Name) or name in {"read_csv", "read_parquet", "load", "open"}
        if name in OPENERS and starts and isinstance(first, ast.Constant) and isinstance(first.value, str):
            given = first.value
            if given and not given.startswith(("/", "~")):
                return f"a relative path: {given}"
    return None
