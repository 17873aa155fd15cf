"""The page for those who come from a pipeline of scripts names only what there is."""

import inspect
import re

import pytest

from mikit import cli, paths
from mikit.settings import Params
from mikit.trace import Trace

PAGE = (paths.PROJECT / "docs" / "commands.md").read_text("utf-8")
SCRIPTS_OPTIONS = {
    "--timestamp", "--initial-timestamp", "--layers", "--layer-id", "--feature-ids", "--feature-id", "--max-rounds",
    "--input-observation-source", "--bos-token-root", "--bos-prompt-id", "--model-path", "--model-checkpoint-path",
    "--sae-root", "--sae-path", "--no-inference-server",
}  # fmt: skip
VARIABLES = {"OPENAI_API_KEY", "LLM_API_KEY", "LLM_API_KEY_FILE", "LLM_BASE_URL", "LLM_MODEL", "SAE_ROOT",
             "SAE_MODEL_CHECKPOINT_PATH", "NEURONPEDIA_API_KEY"}  # fmt: skip


def rows(section):
    """The cells of the tables of a section, without the head."""
    text = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)[1]
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [cells for cells in found[1:] if not set(cells[0]) <= {"-"}]


def options_of(command):
    return {f"--{name.replace('_', '-')}" for name in inspect.signature(getattr(cli, command)).parameters}


def test_every_option_of_the_scripts_has_its_place():
    there = {option for cells in rows("Options") for option in re.findall(r"--[a-z-]+", cells[0])}
    assert there == SCRIPTS_OPTIONS
    assert {name for cells in rows("Environment") for name in re.findall(r"[A-Z_]{8,}", cells[0])} == VARIABLES


def test_every_option_that_the_page_tells_of_exists():
    known = options_of("run") | options_of("refine") | options_of("export") | {"--set"}
    told = {option for cells in rows("Options") for cell in cells[1:] for option in re.findall(r"--[a-z0-9-]+", cell)}
    assert told - known - {"--show-params"} == set()
    assert {"--source", "--layer", "--feature", "--run"} <= told


@pytest.mark.parametrize("command", ["run", "refine", "scan-bos", "export"])
def test_every_command_that_the_page_tells_of_exists(command):
    assert f"mikit {command}" in PAGE
    assert callable(getattr(cli, command.replace("-", "_")))


def test_every_field_that_the_page_tells_of_exists():
    fields = set(re.findall(r"`((?:meta|rounds\[\]|provenance|input_round|output_round|chain)(?:\.\w+)*)`", PAGE))
    assert len(fields) >= 12
    for path in fields:
        schema = Trace.model_json_schema()
        part = schema
        for name in path.replace("[]", "").split("."):
            options = [part, *part.get("anyOf", [])]
            options += [schema["$defs"][o["$ref"].rpartition("/")[2]] for o in options if "$ref" in o]
            items = [o["items"] for o in options if "items" in o]
            options += [schema["$defs"][o["$ref"].rpartition("/")[2]] for o in items if "$ref" in o]
            part = next((o["properties"][name] for o in options if name in o.get("properties", {})), None)
            assert part is not None, f"{path}: no {name}"


def test_every_parameter_that_the_page_sets_exists():
    assert set(re.findall(r"--set (\w+_\w+)=", PAGE)) | set(re.findall(r"`(llm_\w+)`", PAGE)) <= set(
        Params.model_fields
    )
