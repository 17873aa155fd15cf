"""Prompts out of files: instructions are ours, and everything else stands in them as data that nothing can close."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mikit.files import file_hash, value_hash

FOLDER = Path(__file__).parent / "prompts"


class Prompt(NamedTuple):
    """What a model is told to do, and what on."""

    system: str
    user: str


@cache
def _template(name: str) -> tuple[str, str]:
    rules = (FOLDER / "rules.md").read_text("utf-8").strip()
    system, _, user = (FOLDER / f"{name}.md").read_text("utf-8").partition("\n---\n")
    return f"{system.strip()}\n\n{rules}", user.strip()


def prompt_hashes() -> dict[str, str]:
    """The hash of each file, by name."""
    return {path.stem: file_hash(path) for path in sorted(FOLDER.glob("*.md"))}


def render(name: str, numbers: Mapping[str, int], data: Mapping[str, Any]) -> Prompt:
    """A prompt with its numbers and its data filled in, in one pass: what is filled in is never looked at again.

    Args:
        name: of the file.
        numbers: by placeholder.
        data: JSON values by placeholder, each put between tags; None leaves its place empty.
    """
    system, user = _template(name)

    def fill(found: re.Match[str]) -> str:
        kind, key = found["kind"], found["key"]
        if kind is None:
            return str(numbers[key])
        return "" if data[key] is None else quoted(data[key])

    return Prompt(system, re.sub(r"\{\{(?:(?P<kind>data):)?(?P<key>\w+)\}\}", fill, user))


def quoted(value: Any) -> str:
    """A JSON value between tags that bear its hash; no text in it can hold a tag, since its brackets are escaped."""
    text = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
    mark = value_hash(value)[:8]
    return f"<data {mark}>\n{text}\n</data {mark}>"
