"""How much memory a target needs, and in which precision its model fits: pure arithmetic."""

from dataclasses import dataclass
from typing import Literal

from mikit.errors import BadInput

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ROWS = 4
"""Next-token distributions at once for each text of a batch: directions share a text."""
COPIES = 4
"""Of those in float32: logits, log-probabilities, probabilities, differences."""
SAE_COPIES = 2
"""The null of a random direction changes one latent in a copy of the SAE."""
OVERHEAD = 0.75 * GIB
"""The device's context, and what the allocator does not give back."""
USABLE = 0.95
"""Of a device's memory; the rest is the display's and the driver's."""


@dataclass(frozen=True)
class Sizes:
    """What memory follows from."""

    parameters: int
    vocab: int
    d_in: int
    d_sae: int
    batch: int = 32
    """Texts in a forward pass."""


Plan = Literal["float32", "bfloat16", "float16"]


def needed(sizes: Sizes, dtype: Plan) -> float:
    """Bytes on the device at the worst moment of a run: model, SAE in float32, next-token distributions, overhead."""
    model = sizes.parameters * BYTES[dtype]
    sae = SAE_COPIES * 4 * (2 * sizes.d_in * sizes.d_sae)
    distributions = ROWS * sizes.batch * sizes.vocab * 4 * COPIES
    return model + sae + distributions + OVERHEAD


def fits(sizes: Sizes, dtype: Plan, memory: float) -> bool:
    """Whether a run needs no more than the usable part of so many bytes."""
    return needed(sizes, dtype) <= USABLE * memory


def choose_dtype(sizes: Sizes, memory: float, asked: Literal["auto", "float32", "bfloat16", "float16"]) -> Plan:
    """The precision of the model: what is asked for, or float32 where it fits, else bfloat16.

    Args:
        sizes: of model and SAE.
        memory: bytes that the device has.
        asked: the parameter.

    Raises:
        BadInput: it does not fit; the line says what would.
    """
    plans: list[Plan] = ["float32", "bfloat16"] if asked == "auto" else [asked]
    for plan in plans:
        if fits(sizes, plan, memory):
            return plan
    need, has = needed(sizes, plans[-1]) / GIB, memory / GIB
    smaller = "" if plans[-1] != "float32" else "dtype=bfloat16, "
    raise BadInput(
        f"{plans[-1]} needs {need:.1f} GiB and the device has {has:.1f}: valid: {smaller}a smaller batch or sae_width,"
        " or device=cpu"
    )
