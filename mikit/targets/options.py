"""What a target is loaded with beside its name and layer: which SAE, on which device, in which precision."""

from dataclasses import dataclass
from typing import Literal

from mikit.settings import Params

Device = Literal["auto", "cpu", "cuda", "mps"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class Options:
    """As in `mikit.settings.Params`."""

    sae: str | None = None
    sae_root: str | None = None
    sae_width: str = "16k"
    sae_l0: int | None = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    planted_spec: str | None = None
    planted_seed: int | None = None
    batch: int = 32
    """Texts in a forward pass: what has to fit into memory beside the weights."""


def options_of(params: Params) -> Options:
    """The part of the parameters that loading a target needs."""
    return Options(**{name: getattr(params, name) for name in Options.__dataclass_fields__})
