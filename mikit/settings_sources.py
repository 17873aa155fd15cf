"""Where each parameter's effective value comes from: command line > environment > params file > defaults."""

import logging
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mikit import strict_yaml
from mikit.errors import BadInput
from mikit.settings import NAMES, Params, Protocol, make_params, read_params_file, unknown_name

log = logging.getLogger(__name__)

PREFIX = "MIKIT_"
NOT_PARAMS = {"MIKIT_OUTPUTS", "MIKIT_CACHE"}
"""Variables with the prefix that say where things lie."""

OTHER_VARIABLES = ("SAE_MODEL_CHECKPOINT_PATH", "SAE_ROOT", "LLM_BASE_URL", "LLM_MODEL", "LLM_API_KEY_FILE")
SECRETS = ("OPENAI_API_KEY", "LLM_API_KEY", "NEURONPEDIA_API_KEY", "HF_TOKEN")
MASK = "********"


@dataclass(frozen=True)
class Effective:
    """The parameters of a run, and the origin of each."""

    params: Params
    origins: dict[str, str]
    """By dotted name; a name that is absent has its default."""

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and origin of every parameter, those of the protocol with a dot."""
        values = flatten(self.params.model_dump(mode="json"))
        return [(name, repr(value), self.origins.get(name, "default")) for name, value in values.items()]


def effective(
    command_line: Mapping[str, Any],
    environment: Mapping[str, str],
    params_file: Path | None = None,
    sections: Sequence[str] = (),
) -> Effective:
    """The parameters that a run gets.

    Args:
        command_line: values by dotted name, already of their types.
        environment: the process's environment; `MIKIT_FEATURE=3` sets `feature`.
        params_file: a YAML file.
        sections: names in the file that are no parameters and are left to who asks.

    Raises:
        BadInput: one line that names the fault and the place it came from.
    """
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    in_file = _from_file(params_file) if params_file else {}
    in_file = {name: value for name, value in in_file.items() if name not in sections}
    in_environment = from_environment(environment)
    for values, origin in (
        (in_file, lambda _name: str(params_file)),
        (in_environment, lambda name: f"environment {PREFIX}{name.upper()}"),
        (command_line, lambda _name: "command line"),
    ):
        merged.update(values)
        origins.update({name: origin(name) for name in values})
    return Effective(make_params(nest(merged), origins=origins), origins)


def resolved(params: Params, environment: Mapping[str, str]) -> Params:
    """The params with what they leave to the environment: the language model, its address, and who explains."""
    model = params.llm_model or environment.get("LLM_MODEL") or None
    address = params.llm_base_url or environment.get("LLM_BASE_URL") or None
    has_key = any(environment.get(name) for name in ("LLM_API_KEY", "LLM_API_KEY_FILE", "OPENAI_API_KEY"))
    explainer = params.explainer
    if explainer == "auto":
        explainer = "llm" if model and (address or has_key) else "statistical"
    if explainer != "llm":
        model, address = params.llm_model, params.llm_base_url
    return params.model_copy(update={"explainer": explainer, "llm_model": model, "llm_base_url": address})


def _from_file(path: Path) -> dict[str, Any]:
    """The parameters in a file by dotted name; those of the protocol may be written with a dot or under `protocol`."""
    values = read_params_file(path)
    protocol = values.get("protocol")
    for name in protocol if isinstance(protocol, dict) else ():
        if f"protocol.{name}" in values:
            raise BadInput(f"{path}: 'protocol.{name}' is given twice: valid: with a dot, or under 'protocol'")
    return flatten(values)


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """The parameters in `MIKIT_...` variables. One that is empty counts as unset; one that names nothing is logged."""
    values = {}
    for variable, text in sorted(environment.items()):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or variable in NOT_PARAMS or not text:
            continue
        if name in Params.model_fields and name != "protocol":
            values[name] = parse(name, text, f"environment {variable}")
        else:
            log.warning("environment variable %s names no parameter and is ignored", variable)
    return values


def from_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """The parameters in `name=value` texts, by dotted name.

    Raises:
        BadInput: no `=`, an unknown name, a name given twice, or a value that is not of the parameter's kind.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise BadInput(f"--set {assignment}: valid: name=value, such as protocol.n_select=10")
        if name == "protocol":
            raise BadInput("--set protocol: valid: one of its parameters, such as protocol.n_select=10")
        if name not in NAMES:
            raise unknown_name(name, "--set")
        if name in values:
            raise BadInput(f"--set: {name!r} is given twice")
        values[name] = parse(name, text, f"--set {name}")
    return values


def parse(name: str, text: str, where: str) -> Any:
    """The value that a text stands for: itself for a parameter that is text, else what YAML makes of it."""
    field = Protocol.model_fields[name.removeprefix("protocol.")] if "." in name else Params.model_fields[name]
    kinds = set(_kinds(field.annotation))
    if types.NoneType in kinds and text == "null":
        return None
    return text if str in kinds else strict_yaml.parse(text, where)


def _kinds(annotation: Any) -> list[type]:
    """The plain types that an annotation allows: `str | None` allows two, `Literal["a"]` one."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return [kind for part in typing.get_args(annotation) for kind in _kinds(part)]
    if origin is Literal:
        return [type(value) for value in typing.get_args(annotation)]
    return [origin or annotation]


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with those under `protocol` by dotted name."""
    flat = {name: value for name, value in values.items() if name != "protocol" or not isinstance(value, dict)}
    protocol = values.get("protocol")
    return flat | (
        {f"protocol.{name}": value for name, value in protocol.items()} if isinstance(protocol, dict) else {}
    )


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`."""
    nested = {name: value for name, value in values.items() if "." not in name}
    dotted = {name.removeprefix("protocol."): value for name, value in values.items() if "." in name}
    return nested | ({"protocol": dotted} if dotted and "protocol" not in nested else {})


def variables(environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Name, value and origin of the other variables that are set; a secret, or one inside a URL, is masked."""
    shown = [(name, re.sub(r"(?<=://)[^/@]*@", f"{MASK}@", environment.get(name, ""))) for name in OTHER_VARIABLES]
    hidden = [(name, MASK if environment.get(name) else "") for name in SECRETS]
    return [(name, value, "environment") for name, value in [*shown, *hidden] if value]
