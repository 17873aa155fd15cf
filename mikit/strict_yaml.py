"""YAML without its surprises.

YAML 1.1 reads `no` as False, `12:30` as 750, `6_650` as 6650 and `010` as 8, and keeps the last of two equal keys.
Whoever writes such a thing in a params file means something else or says it unclearly: it is refused, with its line.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from mikit.errors import BadInput

TAG = "tag:yaml.org,2002:"
NEVER = re.compile(r"(?!)")
EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
PLAIN = {
    "null": re.compile(r"null|~|"),
    "bool": re.compile(r"true|false|True|False"),
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    "float": re.compile(rf"[-+]?[0-9]+\.[0-9]*|[-+]?\.[0-9]+|[-+]?\.inf|\.nan|{EXPONENT.pattern}"),
}
"""How a value that is not text may be written without quotes."""
KINDS = {"null": "nothing", "bool": "true or false", "int": "a number", "float": "a number", "timestamp": "a date"}


class Loader(yaml.SafeLoader):
    """A safe loader that refuses unclear scalars and repeated keys, and reads `1e-3` as the number it is."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """The scalar's text, unless it would become something that its text doesn't say."""
        kind = node.tag.removeprefix(TAG)
        # in quotes, a scalar is no text only where a tag says so
        unclear = isinstance(node, yaml.ScalarNode) and (
            node.style is not None or not PLAIN.get(kind, NEVER).fullmatch(node.value)
        )
        if unclear and kind != "str":
            raise yaml.constructor.ConstructorError(
                problem=f"{node.value!r} would be read as {KINDS.get(kind, kind)}: "
                "valid: numbers in plain digits, true or false, and in quotes any text that looks like one of them",
                problem_mark=node.start_mark,
            )
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping, unless a key is repeated or is not text."""
        seen: set[Any] = set()
        for key, _value in node.value:
            name = self.construct_object(key, deep=True)
            if not isinstance(name, str):
                raise yaml.constructor.ConstructorError(
                    problem=f"key {name!r} is not text", problem_mark=key.start_mark
                )
            if name in seen:
                raise yaml.constructor.ConstructorError(problem=f"{name!r} is given twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


Loader.add_implicit_resolver(f"{TAG}float", re.compile(rf"^({EXPONENT.pattern})$"), list("-+0123456789"))


def parse(text: str, where: str) -> Any:
    """The value of a YAML text.

    Args:
        text: the YAML.
        where: what to call it in a message.

    Raises:
        BadInput: not YAML, or written in a form that YAML reads as something else; with the line where there are several.
    """
    try:
        return yaml.load(text, Loader)  # noqa: S506 - Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark and "\n" in text else ""
        raise BadInput(f"{where}{line}: {error.problem or 'not YAML'}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadInput(f"{where}: not YAML: {str(error).splitlines()[0]}") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        BadInput: the file is missing, is not UTF-8, is not YAML, or is not a mapping.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise BadInput(f"params file {path}: {reason}: valid: a YAML file of `name: value` lines") from None
    value = parse(text, str(path))
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadInput(f"{path}: holds a {type(value).__name__}: valid: `name: value` lines")
    return value
