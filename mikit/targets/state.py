"""The state of a loaded target: what must be as it was for a reading to be the same again."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mikit.targets.base import Target

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MIXERS = (-7046029254386353131, -4658895280553007687)
"""Odd numbers with bits of both kinds everywhere."""
WORDS = 1 << 18
"""Mixed at a time, so that they stay in a processor's cache."""


def hooks_of(model: Any) -> Iterator[tuple[Any, int, Any, dict[int, Any]]]:
    """Module, number and function of each hook on a model, and the mapping that holds it."""
    for module in model.modules():
        for name in HOOKS:
            held = getattr(module, name)
            for number, function in list(held.items()):
                yield module, number, function, held


def hook_numbers(model: Any) -> frozenset[tuple[int, int]]:
    """Which hooks are on a model; torch gives no number twice."""
    return frozenset((id(module), number) for module, number, _, _ in hooks_of(model))


def state_of(target: Target) -> tuple[Any, ...]:
    """What a measurement follows from besides its arguments, as far as a moment tells: hooks, edits in place, torch's settings.

    Edits through `.data` leave no trace here; `fingerprint` sees what is left of them.
    """
    tensors = _tensors(target)
    return (
        hook_numbers(target.model),
        _made_of(target),
        tuple((id(tensor), 0 if tensor.is_inference() else tensor._version) for tensor in tensors),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
    )


def fingerprint(target: Target) -> tuple[Any, ...]:
    """What must not change about a loaded target: the bits of its weights, its modes, and methods that a module has of its own."""
    sums = [bits(tensor) for tensor in _tensors(target)]
    modes = tuple(
        (module.training, frozenset(name for name in vars(module) if callable(getattr(type(module), name, None))))
        for module in target.model.modules()
    )
    return torch.stack(sums).cpu().numpy().tobytes(), modes, _made_of(target)


def _tensors(target: Target) -> list[Tensor]:
    ofs_sae = (value for value in vars(target.sae).values() if isinstance(value, Tensor))
    return [*target.model.parameters(), *target.model.buffers(), *ofs_sae]


def _made_of(target: Target) -> str:
    """What is no tensor of SAE and model: such as how the SAE's input is scaled, or which attention the model has."""
    fields = {name: value for name, value in vars(target.sae).items() if not isinstance(value, Tensor)}
    return repr((fields, getattr(target.model, "config", None)))


def bits(tensor: Tensor) -> Tensor:
    """A number that changes with any bit of a tensor, whatever the order in which it is summed up: each eight bytes are mixed
    by two multiplications, so that changes in many places do not cancel.
    """
    held = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    size, held = held.element_size(), held.detach().contiguous().reshape(-1)
    if held.numel() * size % 8 == 0 and held.storage_offset() * size % 8 == 0:
        words = held.view(torch.int64)
    else:
        words = held.view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}[size]).to(torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for some in words.split(WORDS):
        mixed = some * MIXERS[0]
        mixed ^= mixed >> 32
        mixed *= MIXERS[1]
        total += mixed.sum()
    return total.cpu()
