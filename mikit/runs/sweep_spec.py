"""What a sweep is told: which features of which layers, and how many at a time."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mikit.errors import BadInput
from mikit.settings import RUN_NAME, Params

Index = Annotated[int, Field(ge=0)]
NAME = "sweep"
"""Of the section in a params file."""


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Features(_Told):
    """A pool of latents (`list`, `range` or `csv`; all of the SAE if none is given), and what is taken of it."""

    list: tuple[Index, ...] | None = Field(None, min_length=1, description="indices")
    range: tuple[Index, Index] | None = Field(None, description="first index, and the one after the last")
    csv: str | None = Field(None, min_length=1, description="file with a column feature, and layer where that varies")
    density: tuple[float, float] | None = Field(
        None, description="least and largest share of tokens they are active on"
    )
    live: bool | None = Field(None, description="only those that fire often enough to be tested; true for a sample")
    sample: int | None = Field(None, ge=1, description="so many at random of what is left")
    exclude: tuple[Index, ...] = Field((), description="never taken")

    @field_validator("list", "range", "exclude", "density", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("density", mode="before")
    @classmethod
    def _as_numbers(cls, value: Any) -> Any:
        return tuple(float(v) if type(v) is int else v for v in value) if isinstance(value, tuple) else value

    @model_validator(mode="after")
    def _one_pool(self) -> "Features":
        pools = [name for name in ("list", "range", "csv") if getattr(self, name) is not None]
        if len(pools) > 1:
            raise ValueError(f"{' and '.join(pools)} are given: valid: one of list, range, csv")
        if self.range and self.range[0] >= self.range[1]:
            raise ValueError(f"range = {list(self.range)}: valid: the first index, and a larger one after the last")
        if self.density and not 0 <= self.density[0] <= self.density[1] <= 1:
            raise ValueError(f"density = {list(self.density)}: valid: two shares, the smaller first")
        return self

    @property
    def needs_evidence(self) -> bool:
        """Whether only the evidence can tell which they are."""
        pool = self.list is not None or self.range is not None or self.csv is not None
        return bool(not pool or self.density or self.live or self.sample)


class SweepSpec(_Told):
    """The section `sweep` of a params file."""

    name: str = Field(description="of its folder in outputs/sweeps")
    layers: tuple[Index, ...] = Field(min_length=1, description="blocks whose output is the hook point")
    features: Features = Field(default_factory=Features, description="which, of each layer")
    workers: int = Field(1, ge=1, le=256, description="features that are computed for at a time")
    in_flight: int | None = Field(
        None,
        ge=1,
        le=256,
        description="features at a time, those that wait for a language model among them; unset: four a worker with a "
        "language model, else one",
    )
    llm_concurrency: int | None = Field(
        None, ge=1, le=1024, description="questions to a language model at a time, of all features together"
    )
    model_host: bool | None = Field(
        None,
        description="whether kernels share models that a process a worker holds; unset: if more features are in flight "
        "than there are workers",
    )
    cell_seconds: float | None = Field(None, gt=0, description="time after which a cell's kernel counts as hung")
    growth_mib: float = Field(1024.0, gt=0, description="memory that a kernel may add before it is replaced")
    repeats: int = Field(1, ge=0, le=5, description="how often a step is repeated whose kernel died or hung")

    @field_validator("layers", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _each_worker_has_a_feature(self) -> "SweepSpec":
        if self.in_flight is not None and self.in_flight < self.workers:
            raise ValueError(
                f"in_flight = {self.in_flight} with workers = {self.workers}: valid: at least one a worker"
            )
        return self

    @field_validator("name")
    @classmethod
    def _is_a_plain_name(cls, value: str) -> str:
        if not RUN_NAME.fullmatch(value):
            raise ValueError("valid: letters, digits, '.', '_' and '-', starting with a letter or a digit")
        return value


def make_spec(values: Any, params: Params, where: str, **others: Any) -> SweepSpec:
    """A validated sweep.

    Args:
        values: the section; `features` alone may be a list or a number, which mean a list and a sample.
        params: of the runs; give layer and name where the section doesn't.
        where: the file, for a message.
        others: values that win over those of the section, where they are not None.

    Raises:
        BadInput: one line that names the first fault.
    """
    if values is None:
        raise BadInput(f"{where}: no section {NAME!r}: valid: sweep: {{features: {{range: [0, 100]}}}}")
    if not isinstance(values, dict):
        raise BadInput(f"{where}: {NAME} = {values!r}: valid: {', '.join(SweepSpec.model_fields)} below it")
    features = values.get("features")
    given = (
        {"list": features}
        if isinstance(features, list)
        else {"sample": features}
        if type(features) is int
        else features
    )
    told: dict[str, Any] = (
        {"name": params.run, "layers": (params.layer,)} | values | ({"features": given} if features is not None else {})
    )
    told |= {name: value for name, value in others.items() if value is not None}
    if type(told.get("growth_mib")) is int or type(told.get("cell_seconds")) is int:
        told |= {n: float(told[n]) for n in ("growth_mib", "cell_seconds") if type(told.get(n)) is int}
    try:
        return SweepSpec(**told)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join([NAME, *(str(part) for part in first["loc"])])
        message = first["msg"].removeprefix("Value error, ").replace("Input should", "should")
        model = Features if "features" in first["loc"] else SweepSpec
        if first["type"] == "extra_forbidden":
            raise BadInput(f"{where}: unknown {name!r}: valid: {', '.join(model.model_fields)}") from None
        shown = "" if isinstance(first["input"], dict) else f" = {first['input']!r}"
        raise BadInput(f"{where}: {name}{shown}: {message}") from None


def pool_of(features: Features, layer: int) -> Sequence[int] | None:
    """The indices that are named for a layer, in order, each once; None where all of the SAE's are meant.

    Raises:
        BadInput: the CSV file can't be read, or holds no index for the layer.
    """
    if features.list is not None:
        return list(dict.fromkeys(features.list))
    if features.range is not None:
        return range(*features.range)
    return None if features.csv is None else _from_csv(Path(features.csv).expanduser(), layer)


def _from_csv(path: Path, layer: int) -> list[int]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = [(reader.line_num, row) for row in reader]
            names = reader.fieldnames or []
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(f"{path} can't be read as CSV: {error}: valid: UTF-8 with a column feature") from None
    if "feature" not in names:
        raise BadInput(
            f"{path}: columns {', '.join(map(str, names)) or 'none'}: valid: feature, and layer where it varies"
        )
    found = []
    for line, row in rows:
        values = {name: (row.get(name) or "").strip() for name in ("feature", "layer")}
        for name, text in values.items():
            if not (text.isascii() and text.isdigit()) and (name == "feature" or text):
                raise BadInput(f"{path}, line {line}: {name} = {text!r}: valid: an index")
        if not values["layer"] or int(values["layer"]) == layer:
            found.append(int(values["feature"]))
    if not found:
        raise BadInput(f"{path} names no feature of layer {layer}")
    return list(dict.fromkeys(found))


def choose(
    features: Features, layer: int, d_sae: int, density: "np.ndarray", is_live: "np.ndarray", seed: int
) -> list[int]:
    """The features of a layer that a sweep takes.

    Args:
        features: what was asked for.
        layer: which one.
        d_sae: number of latents.
        density: share of tokens each latent is active on.
        is_live: whether each fires in enough windows to be tested.
        seed: of the sample.

    Raises:
        BadInput: an index is out of range, or nothing is left.
    """
    pool = pool_of(features, layer)
    largest = pool[-1] if isinstance(pool, range) else max(pool or [0])
    if largest >= d_sae:
        raise BadInput(
            f"sweep.features: {largest} is out of range: the SAE of layer {layer} has latents 0 to {d_sae - 1}"
        )
    found = list(range(d_sae) if pool is None else pool)
    live_only = features.live if features.live is not None else features.sample is not None and pool is None
    if live_only:
        found = [latent for latent in found if is_live[latent]]
    if features.density:
        low, high = features.density
        found = [latent for latent in found if low <= density[latent] <= high]
    excluded = set(features.exclude)
    found = [latent for latent in found if latent not in excluded]
    if features.sample and features.sample < len(found):
        found = sorted(np.random.default_rng([seed, layer]).choice(found, features.sample, replace=False).tolist())
    if not found:
        raise BadInput(
            f"sweep.features: none of layer {layer}'s {d_sae} latents is left: widen density, live or exclude"
        )
    return found
