"""A sparse autoencoder as plain tensors: encode, encode a few latents, decode, read and write.

The folder format is sae-lens' own (`cfg.json`, `sae_weights.safetensors`), read here without importing sae-lens,
whose import costs many seconds.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor

from mikit.errors import BadInput
from mikit.files import file_hash

ARCHITECTURES = ("jumprelu", "standard")


@dataclass(frozen=True)
class Sae:
    """A sparse autoencoder in float32 whose latents are independent: one latent needs one encoder column."""

    id: str
    """Name for people: what it was trained on and where."""
    architecture: str
    """`jumprelu`: a = pre where pre > threshold (Rajamanoharan et al. 2024); `standard`: a = relu(pre)."""
    W_enc: Float[Tensor, "d_in d_sae"]
    W_dec: Float[Tensor, "d_sae d_in"]
    b_enc: Float[Tensor, " d_sae"]
    b_dec: Float[Tensor, " d_in"]
    threshold: Float[Tensor, " d_sae"]
    """Zero for `standard`."""
    apply_b_dec_to_input: bool
    """Whether `b_dec` is subtracted before encoding."""
    hash: str
    """Of the weights."""
    card: dict[str, Any] = field(default_factory=dict)
    """What is known of its quality and its training: the `card.json` beside the weights, if any."""

    @property
    def d_in(self) -> int:
        """Width of the residual stream it reads."""
        return self.W_dec.shape[1]

    @property
    def d_sae(self) -> int:
        """Number of latents."""
        return self.W_dec.shape[0]

    def encode(
        self, residual: Float[Tensor, "... d_in"], latents: Tensor | slice = slice(None)
    ) -> Float[Tensor, "... latent"]:
        """Activations of all latents, or of the given ones alone.

        Args:
            residual: float32 residual stream at the hook point.
            latents: indices or a slice; only their encoder columns are used.
        """
        if self.apply_b_dec_to_input:
            residual = residual - self.b_dec
        pre = residual @ self.W_enc[:, latents] + self.b_enc[latents]
        return torch.where(pre > self.threshold[latents], torch.relu(pre), 0.0)

    def decode(self, acts: Float[Tensor, "... d_sae"]) -> Float[Tensor, "... d_in"]:
        """The reconstruction of the residual stream."""
        return acts @ self.W_dec + self.b_dec


def load_sae(folder: Path) -> Sae:
    """Read a folder in sae-lens' inference format.

    Raises:
        BadInput: a file is missing, the architecture is not supported, or a shape does not fit.
    """
    config_path, weights_path = folder / "cfg.json", folder / "sae_weights.safetensors"
    for path in (config_path, weights_path):
        if not path.is_file():
            raise BadInput(f"no SAE at {folder}: {path.name} is missing")
    config = json.loads(config_path.read_text())
    architecture = config.get("architecture", "standard")
    if architecture not in ARCHITECTURES:
        raise BadInput(f"SAE at {folder} is {architecture!r}: supported: {', '.join(ARCHITECTURES)}")
    weights = {name: tensor.float() for name, tensor in load_file(weights_path).items()}
    d_sae, d_in = weights["W_dec"].shape
    if weights["W_enc"].shape != (d_in, d_sae):
        raise BadInput(f"SAE at {folder}: W_enc is {tuple(weights['W_enc'].shape)}, expected {(d_in, d_sae)}")
    card_path = folder / "card.json"
    return Sae(
        id=folder.name,
        architecture=architecture,
        W_enc=weights["W_enc"],
        W_dec=weights["W_dec"],
        b_enc=weights["b_enc"],
        b_dec=weights["b_dec"],
        threshold=weights.get("threshold", torch.zeros(d_sae)),
        apply_b_dec_to_input=bool(config.get("apply_b_dec_to_input", True)),
        hash=file_hash(weights_path),
        card=json.loads(card_path.read_text()) if card_path.is_file() else {},
    )
