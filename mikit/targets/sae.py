"""A sparse autoencoder as plain tensors: encode, encode a few latents, decode.

Activations are in the units of the residual stream: `acts[f] * W_dec[f]` is what latent f contributes to the
reconstruction, whatever an SAE does to its input beforehand.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

LAYER_NORM_EPSILON = 1e-5


@dataclass(frozen=True)
class Sae:
    """A sparse autoencoder in float32. Its latents are independent, so that one needs one encoder column, but for TopK."""

    id: str
    """Name for people: what it was trained on and where."""
    architecture: str
    """`jumprelu`: a = pre where pre > threshold (Rajamanoharan et al. 2024b), and what BatchTopK is saved as;
    `standard`: a = relu(pre); `topk`: relu of the k largest (Gao et al. 2024); `gated` (Rajamanoharan et al. 2024a)."""
    W_enc: Float[Tensor, "d_in d_sae"]
    W_dec: Float[Tensor, "d_sae d_in"]
    b_enc: Float[Tensor, " d_sae"]
    """Of the magnitudes, where it is gated."""
    b_dec: Float[Tensor, " d_in"]
    threshold: Float[Tensor, " d_sae"]
    """Zero but for `jumprelu`."""
    apply_b_dec_to_input: bool
    """Whether `b_dec` is subtracted before encoding."""
    hash: str
    """Of the weights and of all that encoding follows from."""
    card: dict[str, Any] = field(default_factory=dict)
    """What is known of its quality and its training: the `card.json` beside the weights, if any."""
    normalize: Literal["none", "layer_norm", "constant_norm_rescale"] = "none"
    """What is done to each position's residual before encoding, and undone after decoding."""
    k: int | None = None
    """Latents active at a position at most; TopK alone has it."""
    b_gate: Float[Tensor, " d_sae"] | None = None
    """Bias of the gates; gated alone has it."""
    r_mag: Float[Tensor, " d_sae"] | None = None
    """Logarithm of the magnitudes' scale beside the gates'; gated alone has it."""
    layer: int | None = None
    """The block whose output it was trained on, if its folder says so."""
    expected_l0: float | None = None
    """Mean number of active latents, as its folder states it."""
    dtype: torch.dtype = torch.float32
    """Of the weights as they were stored; they are computed with in float32."""

    @property
    def d_in(self) -> int:
        """Width of the residual stream it reads."""
        return self.W_dec.shape[1]

    @property
    def d_sae(self) -> int:
        """Number of latents."""
        return self.W_dec.shape[0]

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Sae":
        """The same SAE on a device, its weights in another dtype if asked; the threshold always is float32."""
        moved: dict[str, Any] = {
            name: value.to(device, dtype) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **(moved | {"threshold": self.threshold.to(device)}))

    def encode(
        self, residual: Float[Tensor, "... d_in"], latents: Tensor | slice = slice(None)
    ) -> Float[Tensor, "... latent"]:
        """Activations of all latents, or of the given ones alone.

        Args:
            residual: float32 residual stream at the hook point.
            latents: indices or a slice; only their encoder columns are used, but for TopK, where all latents compete.
        """
        x, scale, _ = self._normalized(residual)
        if self.apply_b_dec_to_input:
            x = x - self.b_dec
        if self.k is not None:
            acts = top_k(x @ self.W_enc + self.b_enc, self.k)[..., latents]
        else:
            acts = self._independent(x @ self.W_enc[:, latents], latents)
        return acts if scale is None else acts * scale

    def _independent(self, read: Float[Tensor, "... latent"], latents: Tensor | slice) -> Float[Tensor, "... latent"]:
        if self.b_gate is not None and self.r_mag is not None:
            magnitude = torch.relu(read * self.r_mag[latents].exp() + self.b_enc[latents])
            return torch.where(read + self.b_gate[latents] > 0, magnitude, 0.0)
        pre = read + self.b_enc[latents]
        return torch.where(pre > self.threshold[latents], torch.relu(pre), 0.0)

    def decode(
        self, acts: Float[Tensor, "... d_sae"], residual: Float[Tensor, "... d_in"] | None = None
    ) -> Float[Tensor, "... d_in"]:
        """The reconstruction of the residual stream.

        Args:
            acts: of all latents.
            residual: what they were encoded from; needed where the SAE normalises each position.
        """
        if self.normalize == "none":
            return acts @ self.W_dec + self.b_dec
        assert residual is not None, f"{self.normalize} is undone with the scale of the residual"
        _, scale, shift = self._normalized(residual)
        assert scale is not None
        return acts @ self.W_dec + self.b_dec * scale + shift

    def _normalized(
        self, residual: Float[Tensor, "... d_in"]
    ) -> tuple[Float[Tensor, "... d_in"], Float[Tensor, "... 1"] | None, Float[Tensor, "... 1"] | float]:
        """The encoder's input, and by what times the decoder's output and plus what the residual is approached."""
        if self.normalize == "layer_norm":
            mean, spread = residual.mean(-1, keepdim=True), residual.std(-1, keepdim=True)
            return (residual - mean) / (spread + LAYER_NORM_EPSILON), spread, mean
        if self.normalize == "constant_norm_rescale":
            scale = residual.norm(dim=-1, keepdim=True) / self.d_in**0.5
            return residual / scale, scale, 0.0
        return residual, None, 0.0

    def reading_along(self, latent: int, direction: Float[Tensor, " d_in"]) -> "Sae":
        """The SAE with one latent that reads along a unit direction, without bias, and writes it at its old norm."""
        direction = direction.to(self.W_dec)
        changed: dict[str, Any] = {
            name: getattr(self, name).clone() for name in ("W_dec", "W_enc", "b_enc", "threshold")
        }
        changed["W_dec"][latent] = direction * self.W_dec[latent].norm()
        changed["W_enc"][:, latent] = direction
        changed["b_enc"][latent] = changed["threshold"][latent] = 0.0
        changed["hash"] = f"{self.hash}, changed at {latent}"
        for name in ("b_gate", "r_mag"):
            if getattr(self, name) is not None:
                changed[name] = getattr(self, name).clone()
                changed[name][latent] = 0.0
        return replace(self, **changed)


def top_k(pre: Float[Tensor, "... d_sae"], k: int) -> Float[Tensor, "... d_sae"]:
    """The k largest values of each row where they are positive, 0 elsewhere."""
    values, indices = pre.topk(k, dim=-1)
    return torch.zeros_like(pre).scatter_(-1, indices, values.relu())
