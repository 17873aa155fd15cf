"""Copies of the lessons for learners: the same notebooks without the cells that hold solutions."""

import json
from pathlib import Path
from typing import Any

from mikit import paths
from mikit.errors import BadInput
from mikit.files import write_text

SOLUTION = "solution"
"""Tag of cells that a learner's copy leaves out."""
SOLVE = "solve:"
"""How the parameter's line begins that says whether solutions are run."""


def lessons() -> list[Path]:
    """The lessons of this checkout, in order.

    Raises:
        BadInput: there are none, as in an installation without the notebooks.
    """
    folder = paths.notebooks() / "tasks"
    found = sorted(folder.glob("*.ipynb"))
    if not found:
        raise BadInput(f"no lessons in {folder}: valid: a checkout of mikit, with its notebooks")
    return found


def learners_copy(notebook: dict[str, Any]) -> dict[str, Any]:
    """A notebook without its solutions, and without the parameter that would run them."""
    kept = [cell for cell in notebook["cells"] if SOLUTION not in cell["metadata"].get("tags", [])]
    return {**notebook, "cells": [_without_switch(cell) for cell in kept]}


def _without_switch(cell: dict[str, Any]) -> dict[str, Any]:
    if "parameters" not in cell["metadata"].get("tags", []):
        return cell
    lines = "".join(cell["source"]).splitlines(keepends=True)
    kept = "".join(line for line in lines if not line.startswith(SOLVE)).rstrip("\n")
    return {**cell, "source": kept.splitlines(keepends=True)}


def write_lessons(folder: Path) -> list[Path]:
    """Write learners' copies of all lessons into a folder, over those that are there.

    Returns:
        The paths written.
    """
    written = []
    for lesson in lessons():
        copy = learners_copy(json.loads(lesson.read_text("utf-8")))
        write_text(folder / lesson.name, json.dumps(copy, indent=1, ensure_ascii=False) + "\n")
        written.append(folder / lesson.name)
    return written
