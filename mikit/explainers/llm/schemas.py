"""What a model is asked to answer with, as JSON schemas that are strict: every part is named, none may be added."""

from typing import Any

from mikit.explainers.rules import FORM_TESTS

JsonSchema = dict[str, Any]


def an_object(**parts: JsonSchema) -> JsonSchema:
    """An object of exactly these parts."""
    return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}


def a_list(items: JsonSchema) -> JsonSchema:
    """A list of such items."""
    return {"type": "array", "items": items}


TEXT: JsonSchema = {"type": "string"}
NUMBER: JsonSchema = {"type": "integer"}
MAYBE_TEXT: JsonSchema = {"type": ["string", "null"]}
MAYBE_TEXTS: JsonSchema = {"type": ["array", "null"], "items": TEXT}

CLAUSE = an_object(
    tokens=MAYBE_TEXTS,
    prefix=MAYBE_TEXT,
    suffix=MAYBE_TEXT,
    form={"type": ["string", "null"], "enum": [*FORM_TESTS, None]},
    after=MAYBE_TEXTS,
    within={"type": ["integer", "null"]},
)
INPUTS = an_object(hypotheses=a_list(an_object(text=TEXT, rule={"type": ["array", "null"], "items": CLAUSE})))
OUTPUTS = an_object(
    hypotheses=a_list(an_object(text=TEXT, direction={"type": "string", "enum": ["promotes", "suppresses"]}))
)
TEXTS = an_object(fires=a_list(TEXT), silent=a_list(TEXT))
FIRES = an_object(fires=a_list(NUMBER))
CLAIMED = an_object(claimed=a_list(NUMBER))
SCORE = an_object(score={"type": "number"})
