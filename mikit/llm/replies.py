"""JSON objects out of what a model wrote: bare, in fences, in prose, with a comma too many; and whether they fit a schema."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mikit.llm.failures import LlmFailure
from mikit.llm.requests import Reply

REFUSING = re.compile(
    r"^\W*(?:(?:i'?m|i am) (?:very |so |really )?sorry|sorry,? (?:but )?i|i (?:can(?:no|')t|can not|won't|am unable|'m unable)"
    r"|as an ai\b|i must decline|unable to (?:help|assist|comply))",
    re.IGNORECASE,
)
THINKING = re.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL | re.IGNORECASE)
QUOTES = str.maketrans({"\N{LEFT DOUBLE QUOTATION MARK}": '"', "\N{RIGHT DOUBLE QUOTATION MARK}": '"'})
CUT_OFF = {"length", "max_tokens"}
FILTERED = {"content_filter", "safety"}


def answer_of(reply: Reply, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The object that a reply holds.

    Raises:
        LlmFailure: there is none, or it does not fit; the kind says which.
    """
    text = (reply.text or "").strip()
    if reply.refusal or reply.finish in FILTERED:
        raise LlmFailure("refusal", reply.refusal or "filtered")
    if not text:
        raise LlmFailure("empty")
    fault: str | None = None
    for found in objects_in(text, schema):
        fault = mismatch(found, schema)
        if fault is None:
            return found
    if reply.finish in CUT_OFF:
        raise LlmFailure("truncated")
    if fault is not None:
        raise LlmFailure("wrong_schema", fault)
    raise LlmFailure("refusal" if REFUSING.match(text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")) else "malformed")


def objects_in(text: str, schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every JSON object that a text can be read as, the likeliest reading first."""
    text = THINKING.sub("", text.lstrip("\ufeff"))
    for variant in dict.fromkeys((text, text.translate(QUOTES))):
        found = list(_values(variant))
        in_strings = [inner for value in found if isinstance(value, str) for inner in _values(value)]
        for candidate in [*found, *in_strings]:
            yield from _as_objects(candidate, schema)


def _as_objects(value: Any, schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """An object; that in a list or wrapper of one; a bare list where the schema has one list to put it in."""
    lists = [name for name, part in schema.get("properties", {}).items() if part.get("type") == "array"]
    if isinstance(value, dict):
        yield value
        if len(value) == 1 and isinstance(inner := next(iter(value.values())), dict):
            yield inner
    elif isinstance(value, list):
        if len(lists) == 1:
            yield {lists[0]: value}
        if len(value) == 1 and isinstance(value[0], dict):
            yield value[0]


def _values(text: str) -> Iterator[Any]:
    """JSON values in a text: all of it, else from each bracket that begins one; outer ones come before inner ones."""
    for repaired in dict.fromkeys((text.strip(), _repaired(text.strip()))):
        try:
            yield json.loads(repaired, strict=False)
        except ValueError:
            yield from _inside(repaired)


def _inside(text: str) -> Iterator[Any]:
    decoder, position = json.JSONDecoder(strict=False), 0
    while bracket := re.search(r"[{\[]", text[position:]):
        position += bracket.start()
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            position += 1
        else:
            yield value
            position = end


def _repaired(text: str) -> str:
    """Without comments on lines of their own, commas before a closing bracket, and Python's names of constants."""
    text = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r",(\s*)([}\]])", r"\1\2", parts[i])
        parts[i] = re.sub(r"\bTrue\b", "true", re.sub(r"\bFalse\b", "false", re.sub(r"\bNone\b", "null", parts[i])))
    repaired = "".join(parts)
    if '"' not in repaired and "'" in repaired:
        repaired = repaired.replace("'", '"')
    # a comma between a closing quotation mark and the bracket stands in the next part
    return re.sub(r'",(\s*)([}\]])', r'"\1\2', repaired)


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def mismatch(value: Any, schema: Mapping[str, Any], where: str = "answer") -> str | None:
    """Why a value does not fit the part of JSON schema that is used here; None if it does."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fits = any(isinstance(value, TYPES[k]) and (k == "boolean" or not isinstance(value, bool)) for k in kinds)
    if kinds and not fits:
        return f"{where} is no {' or '.join(kinds)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is none of {schema['enum']}"
    if isinstance(value, dict):
        parts = schema.get("properties", {})
        # a part that may be null may as well be left out
        missing = [
            name
            for name in schema.get("required", [])
            if name not in value and "null" not in parts.get(name, {}).get("type", ())
        ]
        if missing:
            return f"{where} lacks {missing[0]!r}"
        faults = (mismatch(value[name], part, f"{where}.{name}") for name, part in parts.items() if name in value)
        return next((fault for fault in faults if fault), None)
    if isinstance(value, list) and "items" in schema:
        faults = (mismatch(item, schema["items"], f"{where}[{i}]") for i, item in enumerate(value))
        return next((fault for fault in faults if fault), None)
    return None
