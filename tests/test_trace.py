"""The schema of what is written: it refuses what it should, and its exported form is up to date."""

import json

import builders
import pytest
from pydantic import ValidationError

from mikit import paths
from mikit.trace import Proportion, Trace


def test_the_exported_schema_is_that_of_the_model():
    exported = json.loads((paths.PROJECT / "docs" / "trace.schema.json").read_text())
    assert exported == Trace.model_json_schema(), "write docs/trace.schema.json again: see docs/README.md"


def test_a_trace_goes_through_its_file_unchanged():
    trace = builders.trace()
    assert Trace.model_validate_json(trace.model_dump_json()).model_dump() == trace.model_dump()


def test_an_unknown_field_is_refused():
    with pytest.raises(ValidationError):
        Trace.model_validate(builders.trace().model_dump() | {"extra": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_refused(value):
    with pytest.raises(ValidationError):
        Proportion(value=value, low=0.0, high=1.0, n=1)
