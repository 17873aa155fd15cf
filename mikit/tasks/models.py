"""The networks of the tasks, as a solver gets them: plain modules with nothing inside but weights.

A network is made from an architecture's name, its sizes and its weights. Sizes are the same for every seed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mikit.errors import BadInput, one_of


def square(values: Tensor) -> Tensor:
    """Each value times itself."""
    return values * values


ACTIVATIONS = {"square": square, "relu": torch.relu}


class LinearMap(nn.Module):
    """A linear layer, stored as one matrix (`layer`), or as two one after the other (`inner`, then `layer`)."""

    def __init__(self, inputs: int, outputs: int, width: int = 0) -> None:
        super().__init__()
        if width:
            self.inner = nn.Linear(inputs, width, bias=False)
        self.layer = nn.Linear(width or inputs, outputs)

    def forward(self, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, "batch outputs"]:
        """The outputs, for rows of inputs."""
        return self.layer(self.inner(x) if hasattr(self, "inner") else x)


class OneHidden(nn.Module):
    """Three inputs, one hidden layer, one output; `mix` is a linear layer in front, where there is one."""

    def __init__(self, units: int, activation: str, mix: bool = False) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise one_of("activation", activation, list(ACTIVATIONS))
        self.activation = activation
        if mix:
            self.mix = nn.Linear(3, 3, bias=False)
        self.hidden = nn.Linear(3, units)
        self.readout = nn.Linear(units, 1)

    def activations(self, x: Float[Tensor, "batch 3"]) -> Float[Tensor, "batch units"]:
        """The hidden units' values after the activation function."""
        return ACTIVATIONS[self.activation](self.hidden(self.mix(x) if hasattr(self, "mix") else x))

    def forward(self, x: Float[Tensor, "batch 3"]) -> Float[Tensor, " batch"]:
        """The output, for rows (x1, x2, x3)."""
        return self.readout(self.activations(x)).squeeze(-1)


class Attention(nn.Module):
    """Multi-head attention from the last position to all positions."""

    def __init__(self, d_model: int, heads: int, d_head: int) -> None:
        super().__init__()
        self.heads, self.d_head = heads, d_head
        self.query = nn.Linear(d_model, heads * d_head, bias=False)
        self.key = nn.Linear(d_model, heads * d_head, bias=False)
        self.value = nn.Linear(d_model, heads * d_head, bias=False)
        self.output = nn.Linear(heads * d_head, d_model, bias=False)

    def pattern(self, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch heads pos"]:
        """How much the last position attends to each position, by head; sums to 1."""
        query = self.query(stream[:, -1]).unflatten(-1, (self.heads, self.d_head))
        key = self.key(stream).unflatten(-1, (self.heads, self.d_head))
        return torch.einsum("bhd,bphd->bhp", query, key).div(self.d_head**0.5).softmax(-1)

    def forward(self, stream: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch d_model"]:
        """What the heads add to the stream at the last position."""
        value = self.value(stream).unflatten(-1, (self.heads, self.d_head))
        return self.output(torch.einsum("bhp,bphd->bhd", self.pattern(stream), value).flatten(-2))


class MLP(nn.Module):
    """A hidden layer with squares as activation function."""

    def __init__(self, d_model: int, d_mlp: int) -> None:
        super().__init__()
        self.input = nn.Linear(d_model, d_mlp, bias=False)
        self.output = nn.Linear(d_mlp, d_model, bias=False)

    def forward(self, stream: Float[Tensor, "batch d_model"]) -> Float[Tensor, "batch d_model"]:
        """What the hidden units add to the stream."""
        return self.output(square(self.input(stream)))


class Transformer(nn.Module):
    """One block without layer norms. The prompt is `a b =`; the logits are those of the token after it."""

    def __init__(self, vocabulary: int, positions: int, d_model: int, heads: int, d_head: int, d_mlp: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, d_model)
        self.positions = nn.Embedding(positions, d_model)
        self.attention = Attention(d_model, heads, d_head)
        self.mlp = MLP(d_model, d_mlp)
        self.unembed = nn.Linear(d_model, vocabulary)

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch vocabulary"]:
        """Logits of the token after the last."""
        stream = self.embed(tokens) + self.positions.weight[: tokens.shape[1]]
        last = stream[:, -1] + self.attention(stream)
        return self.unembed(last + self.mlp(last))


ARCHITECTURES: dict[str, type[nn.Module]] = {
    "linear": LinearMap,
    "one-hidden": OneHidden,
    "transformer": Transformer,
}


def build(architecture: str, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """A network with given weights, in evaluation mode, whose parameters ask for no gradient.

    Args:
        architecture: a name in `ARCHITECTURES`.
        config: keyword arguments of that class.
        weights: a state dict of float32 tensors, copied.

    Raises:
        BadInput: an unknown architecture, or weights that do not fit it.
    """
    if architecture not in ARCHITECTURES:
        raise one_of("architecture", architecture, list(ARCHITECTURES))
    model = ARCHITECTURES[architecture](**config)
    try:
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise BadInput(f"weights do not fit {architecture} {dict(config)}: {' '.join(str(error).split())}") from None
    return model.eval().requires_grad_(False)
