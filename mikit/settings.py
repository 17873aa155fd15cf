"""Parameters of a run: their names, meanings, limits and defaults."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mikit import strict_yaml
from mikit.errors import BadInput

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Protocol(BaseModel):
    """What is decided before any hypothesis is written and is out of a refiner's reach."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    window_tokens: int = Field(32, ge=4, le=32, description="content tokens in a window and in a scored text")
    ref_percentile: float = Field(99.5, gt=0, le=100, description="percentile of non-zero activations that is ref")
    tau_fraction: float = Field(0.25, gt=0, lt=1, description="tau as a share of ref")
    n_select: int = Field(10, ge=2, description="positives, and near misses a stratum, on select")
    n_confirm: int = Field(30, ge=2, description="the same on confirm")
    rare_windows: int = Field(40, ge=1, description="fewer firing windows than this: kind rare")
    dense_share: float = Field(0.2, gt=0, le=1, description="more of the windows than this fire: kind dense")
    n_neighbours: int = Field(20, ge=1, description="nearest live features that specificity compares with")
    doses: list[Annotated[float, Field(gt=0)]] = Field(
        [0.5, 1.0, 2.0, 4.0], min_length=2, description="multiples of ref that are added"
    )
    kl_target: float = Field(0.25, gt=0, description="mean KL in nats that the scoring dose is nearest to")
    null_kl: float = Field(1e-3, ge=0, description="an intervention with less KL than this is null")
    null_kl_ratio: float = Field(0.05, ge=0, description="so is one with less than this share of random directions'")
    position: Literal["last_token", "all_tokens"] = Field("last_token", description="where prompts are steered")
    n_output_tokens: int = Field(20, ge=2, description="tokens most moved, and distractors, in the output score")
    min_token_count: int = Field(5, ge=1, description="times a token must occur in the corpus to be eligible")
    n_ablation_positions: int = Field(8, ge=2, description="firing positions that necessity needs")
    gate_coverage: float = Field(0.8, ge=0, le=1, description="gate: activation coverage")
    gate_rejection: float = Field(0.8, ge=0, le=1, description="gate: boundary rejection")
    gate_output: float = Field(0.5, ge=0, le=1, description="gate: output score")
    gate_functional: int = Field(4, ge=1, le=5, description="gate: checks passed of five, necessity among them")


class Params(BaseModel):
    """Everything that a run can be told. Unknown names are refused, and so is a value of another type, such as `True` for 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    model: str = Field(
        "planted", min_length=1, description="planted, smollm2-135m, gemma-2-2b, a hub id, or a transformers folder"
    )
    layer: int = Field(0, ge=0, description="block whose output is the hook point")
    planted_spec: str | None = Field(
        None,
        min_length=1,
        description="with --model planted: YAML file of the features to plant; the one that ships if unset",
    )
    planted_seed: int | None = Field(
        None, ge=0, description="with --model planted: seed of the model; the spec's if unset"
    )
    feature: int = Field(3, ge=0, description="index of the SAE latent")
    run: str = Field("default", description="name of the run's folder")
    sae: str | None = Field(
        None,
        min_length=1,
        description="SAE: a folder, or sae-lens RELEASE/ID; unset, the target's own or one in sae_root",
    )
    sae_root: str | None = Field(
        None, min_length=1, description="folder with Gemma Scope SAEs by layer, width and L0; unset, SAE_ROOT"
    )
    sae_width: str = Field("16k", pattern=r"^\d+[km]$", description="width of the SAE taken from sae_root")
    sae_l0: int | None = Field(
        None, ge=1, description="average L0 of the SAE taken from sae_root; unset, the canonical one"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="where the model runs")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="precision of the model; auto is float32 where it fits, else bfloat16"
    )
    source: Literal["corpus", "neuronpedia", "bos_token"] = Field(
        "corpus", description="where the evidence that a writer sees comes from: corpus, neuronpedia or bos_token"
    )
    neuronpedia_id: str | None = Field(
        None,
        pattern=r"^[^/\s]+/[^/\s]+$",
        description="MODEL/SOURCE at Neuronpedia, such as gemma-2-2b/6-gemmascope-res-16k; unset, that of the target",
    )
    neuronpedia_record: str | None = Field(
        None,
        min_length=1,
        description="with --source neuronpedia: a saved record of the feature, read in place of the site",
    )
    neuronpedia_url: str = Field("https://www.neuronpedia.org", description="address of Neuronpedia")
    bos_token_root: str | None = Field(
        None, min_length=1, description="folder of the evidence that scan-bos prepares; unset, below the outputs"
    )
    bos_prompt_id: str = Field(
        "prompt-0001",
        pattern=r"^prompt-\d{4}$",
        description="what stands before the scanned token: prompt-0001 is BOS alone, others are neutral prompts behind it",
    )
    corpus: str | None = Field(
        None, min_length=1, description="embedded, full, or a .txt/.jsonl file or folder; the target's own if unset"
    )
    corpus_tokens: int | None = Field(49_152, ge=1_000, description="content tokens read at most; null reads all")
    document_tokens: int | None = Field(
        128, ge=8, description="content tokens read of a document at most; null reads all"
    )
    explainer: Literal["auto", "statistical", "llm"] = Field(
        "auto", description="who writes and judges; auto is llm where a model and a key or an address are set"
    )
    llm_model: str | None = Field(
        None, min_length=1, description="language model that writes and judges; unset, LLM_MODEL"
    )
    llm_base_url: str | None = Field(
        None, min_length=1, description="address of its OpenAI-compatible server; unset, LLM_BASE_URL"
    )
    llm_writer: str | None = Field(None, min_length=1, description="model that writes hypotheses; unset, llm_model")
    llm_author: str | None = Field(None, min_length=1, description="model that writes test sentences; unset, llm_model")
    llm_judge: str | None = Field(None, min_length=1, description="model that judges tokens blindly; unset, llm_model")
    llm_recall: str | None = Field(None, min_length=1, description="model that judges windows; unset, llm_model")
    llm_plausibility: str | None = Field(
        None, min_length=1, description="model that reads how well two ends go together; unset, llm_model"
    )
    llm_temperature: float = Field(0.0, ge=0, le=2, description="sampling temperature, where the model takes one")
    llm_max_tokens: int = Field(2048, ge=16, description="tokens that a reply may have")
    llm_timeout: float = Field(60.0, gt=0, description="seconds without a byte before an attempt is given up")
    llm_retries: int = Field(5, ge=0, le=20, description="further attempts after one that may pass, such as 429 or 500")
    llm_first_wait: float = Field(1.0, ge=0, description="seconds before the second attempt; then doubled, with jitter")
    llm_concurrency: int = Field(4, ge=1, le=64, description="questions asked at a time")
    llm_token_budget: int | None = Field(None, ge=0, description="tokens that the run may spend on language models")
    llm_money_budget: float | None = Field(None, ge=0, description="US dollars that the run may spend on them")
    llm_prices: str | None = Field(None, min_length=1, description="YAML file of prices; params/prices.yaml if unset")
    llm_replay: bool = Field(False, description="let recorded replies alone answer; one that is missing ends the run")
    max_rounds: int = Field(0, ge=0, le=50, description="rounds of refinement at most before the verdict")
    max_hypotheses: int = Field(3, ge=1, le=3, description="distinct hypotheses an end")
    seed: int = Field(0, ge=0, description="of every random draw")
    batch: int = Field(32, ge=1, description="windows in a forward pass")
    nulls: bool | None = Field(
        None,
        description="also try explanations that must not pass; unset: always, but with a language model on every tenth feature",
    )
    protocol: Protocol = Field(default_factory=Protocol, description="fixed before any hypothesis is written")

    @field_validator("run")
    @classmethod
    def _run_is_a_plain_name(cls, value: str) -> str:
        if not RUN_NAME.fullmatch(value):
            raise ValueError("valid: letters, digits, '.', '_' and '-', starting with a letter or a digit")
        return value

    @model_validator(mode="after")
    def _only_the_planted_model_is_planted(self) -> "Params":
        if self.model != "planted" and (self.planted_spec or self.planted_seed is not None):
            name = "planted_spec" if self.planted_spec else "planted_seed"
            raise ValueError(f"{name} is given with model {self.model!r}: valid: model planted")
        return self


OPERATIONAL = frozenset(
    {
        "llm_timeout", "llm_retries", "llm_first_wait", "llm_concurrency", "llm_token_budget", "llm_money_budget",
        "llm_prices", "llm_replay", "max_rounds",
    }
)  # fmt: skip
"""Parameters of how a run is carried out: no step's result follows from them, so that changing one makes no step stale."""

NAMES = (*Params.model_fields, *(f"protocol.{name}" for name in Protocol.model_fields))
"""Every parameter's name, those of the protocol with a dot."""


def unknown_name(name: str, where: str) -> BadInput:
    """A `BadInput` for a name that is no parameter: the nearest one, and those that are valid at its place."""
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    siblings = (
        [f"protocol.{known}" for known in Protocol.model_fields]
        if name.startswith("protocol.")
        else Params.model_fields
    )
    return BadInput(f"{where}: unknown parameter {name!r}: {hint}valid: {', '.join(siblings)}")


def fault(error: ValidationError, where: str, origins: Mapping[str, str] | None = None) -> BadInput:
    """The first fault of a validation as a `BadInput`: where the value came from, its name, and what would be valid.

    Args:
        error: what pydantic raised for `Params`.
        where: origin of the values.
        origins: origin by name, for values that came from elsewhere.
    """
    first, *rest = error.errors()
    message = first["msg"].removeprefix("Value error, ").replace("Input should", "should")
    parts = [str(part) for part in first["loc"]]
    if not parts:
        # of several parameters together: the message names them
        return BadInput(f"{where}: {message}")
    name = ".".join(parts)
    named = next((known for known in (name, ".".join(parts[:2]), parts[0]) if known in (origins or {})), None)
    origin = (origins or {}).get(named or "", where)
    if first["type"] == "extra_forbidden":
        return unknown_name(name, origin)
    more = f" (and {len(rest)} more)" if rest else ""
    return BadInput(f"{origin}: {name} = {first['input']!r}: {message}{more}")


def make_params(
    values: Mapping[str, Any], where: str = "parameters", origins: Mapping[str, str] | None = None
) -> Params:
    """Validated parameters.

    Args:
        values: by name, those of the protocol as a mapping under `protocol`.
        where: origin of the values, for a message.
        origins: origin by dotted name, for values that came from elsewhere.

    Raises:
        BadInput: one line that names the first fault.
    """
    try:
        return Params(**values)
    except ValidationError as error:
        raise fault(error, where, origins) from None


def read_params_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file of parameters; nothing is validated yet.

    Raises:
        BadInput: the file is missing, is not YAML, is not a mapping, gives a name twice, or holds an unclear value.
    """
    return strict_yaml.read_mapping(path)
