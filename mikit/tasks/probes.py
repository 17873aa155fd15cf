"""What can be measured on the networks of the tasks: pure functions of a model, which lessons check against and solvers use."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mikit.tasks.addition import EQUALS, FREQUENCIES, P
from mikit.tasks.models import LinearMap, OneHidden, Transformer


def effective_weight(model: LinearMap) -> Float[Tensor, "outputs inputs"]:
    """The matrix that the layer amounts to, in float64: of two matrices their product."""
    weight = model.layer.weight.double()
    return weight @ model.inner.weight.double() if hasattr(model, "inner") else weight


def sensitivity(model: nn.Module, x: Float[Tensor, "batch inputs"]) -> Float[Tensor, " inputs"]:
    """By input: the mean absolute change of the outputs when that input takes the value that it has in the next row."""
    clean, changes = model(x), []
    for i in range(x.shape[1]):
        swapped = x.clone()
        swapped[:, i] = x[:, i].roll(-1)
        changes.append((model(swapped) - clean).abs().mean())
    return torch.stack(changes)


def contributions(model: OneHidden, x: Float[Tensor, "batch 3"]) -> Float[Tensor, "batch units"]:
    """What each hidden unit adds to the output; with the readout's bias they sum to it."""
    return model.activations(x) * model.readout.weight[0]


def ablation_loss(model: OneHidden, x: Float[Tensor, "batch 3"]) -> Float[Tensor, " units"]:
    """By hidden unit: the mean squared change of the output when the unit is held at its mean over `x`."""
    parts = contributions(model, x)
    return parts.var(0, correction=0)


def at(model: OneHidden, *point: float) -> Float[Tensor, " units"]:
    """What each hidden unit adds to the output at one point."""
    return contributions(model, torch.tensor([point], dtype=torch.float32))[0]


def interaction(model: OneHidden) -> Float[Tensor, " units"]:
    """By hidden unit: how much of x1·x2 it adds, from the four corners at x3 = 0; over all units the sum is 1."""
    return (at(model, 1, 1, 0) - at(model, 1, -1, 0) - at(model, -1, 1, 0) + at(model, -1, -1, 0)) / 4


def slope(model: OneHidden) -> Float[Tensor, " units"]:
    """By hidden unit: how much of x3 it adds, from -1 to 1 at x1 = x2 = 0; over all units the sum is 1."""
    return (at(model, 0, 0, 1) - at(model, 0, 0, -1)) / 2


def spread(model: OneHidden) -> Float[Tensor, " units"]:
    """By hidden unit: the most that x1 and x2 change what it adds, over their corners and x3 in -1, 0, 1."""
    corners = [(at(model, a, b, c) - at(model, 0, 0, c)).abs() for a in (-1, 1) for b in (-1, 1) for c in (-1, 0, 1)]
    return torch.stack(corners).amax(0)


def sums() -> tuple[Int[Tensor, "pairs 3"], Int[Tensor, " pairs"]]:
    """All 97^2 prompts `a b =`, and what comes after them."""
    numbers = torch.arange(P)
    pairs = torch.cartesian_prod(numbers, numbers)
    tokens = torch.cat([pairs, torch.full((len(pairs), 1), EQUALS)], dim=1)
    return tokens, pairs.sum(1) % P


def waves(frequency: int) -> Float[Tensor, "97 2"]:
    """The cosine and the sine of a frequency over the numbers, as two columns of length 1."""
    angles = 2 * torch.pi * frequency * torch.arange(P, dtype=torch.float64) / P
    return (torch.stack([angles.cos(), angles.sin()], dim=1) * (2 / P) ** 0.5).float()


def power(numbers: Float[Tensor, "97 d_model"]) -> Float[Tensor, " frequencies"]:
    """The power of frequencies 1 to 48 over the rows, summed over columns; with the mean's they sum to the squared norm."""
    spectrum = torch.fft.rfft(numbers, dim=0, norm="ortho").abs().square().sum(1)
    return 2 * spectrum[1:]


def without(numbers: Float[Tensor, "97 d_model"], frequencies: Iterable[int]) -> Float[Tensor, "97 d_model"]:
    """The rows with frequencies taken out."""
    for frequency in frequencies:
        basis = waves(frequency)
        numbers = numbers - basis @ (basis.T @ numbers)
    return numbers


def right(
    model: Transformer,
    numbers: Float[Tensor, "97 d_model"],
    tokens: Int[Tensor, "batch 3"],
    answers: Int[Tensor, " batch"],
) -> Bool[Tensor, " batch"]:
    """Where the model's first choice is the sum, with other embeddings of the numbers 0 to 96."""
    embedding = torch.cat([numbers, model.embed.weight[P:]])
    logits = torch.func.functional_call(model, {"embed.weight": embedding}, (tokens,))
    return logits.argmax(-1) == answers


def accuracy_without(model: Transformer, stride: int = 1) -> Float[Tensor, " frequencies"]:
    """By frequency from 1 to 48: the share of sums that are right with the frequency taken out of the embedding.

    Args:
        model: of task 3.
        stride: every how many of the 97^2 sums are tried.
    """
    tokens, answers = (part[::stride] for part in sums())
    numbers = model.embed.weight[:P]
    found = [right(model, without(numbers, [f]), tokens, answers).float().mean() for f in FREQUENCIES]
    return torch.stack(found)
