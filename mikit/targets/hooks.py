"""The one place where activations are read, and the one place where the residual stream is edited."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mikit.targets.base import LanguageModel
from mikit.targets.packing import keeps_apart, pack
from mikit.targets.remote.served import served

Edit = Callable[[Float[Tensor, "batch pos d_model"]], Float[Tensor, "batch pos d_model"]]
"""A function of the residual stream at the hook point, applied before the next block reads it."""


class _HookReached(Exception):
    """Ends a forward pass at the hook point: nothing above it is computed."""


def _residual_in(output: Tensor | tuple) -> Tensor:
    """A block returns its residual stream alone or first in a tuple, by version of transformers."""
    return output[0] if isinstance(output, tuple) else output


@contextlib.contextmanager
def _hook(lm: LanguageModel, function: Callable) -> Iterator[None]:
    handle = lm.model.get_submodule(lm.hook_point).register_forward_hook(function)
    try:
        yield
    finally:
        handle.remove()


def batch_of(
    lm: LanguageModel, texts: Sequence[Sequence[int]]
) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
    """Put BOS before each text and pad on the right.

    Returns:
        ids, and a mask that is true on BOS and content. Column 0 is BOS.
    """
    longest = max((len(ids) for ids in texts), default=0)
    ids = torch.full((len(texts), 1 + longest), lm.bos_id, dtype=torch.long)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, text in enumerate(texts):
        ids[row, 1 : 1 + len(text)] = torch.as_tensor(text, dtype=torch.long)
        mask[row, : 1 + len(text)] = True
    return ids.to(lm.device), mask.to(lm.device)


@served(by_row=("ids", "mask"))
@torch.inference_mode()
def read_residual(
    lm: LanguageModel, ids: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"] | None = None
) -> Float[Tensor, "batch pos d_model"]:
    """The residual stream at the hook point, float32; blocks above the hook point are not run."""
    return _read(lm, {"input_ids": ids, **_attention(mask)})


@served(by_row=("ids", "mask"))
@torch.inference_mode()
def read_texts(
    lm: LanguageModel, ids: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos d_model"]:
    """As `read_residual`, with several texts in a row where that saves something and the model keeps them apart.

    At padding stands then what was read at the text's BOS. Last bits follow from what else is in the batch, so that evidence,
    in which peaks of thousands of windows are ordered, is never read like this.
    """
    read = partial(_read, lm)
    if _is_padded_behind(mask):
        packed = pack(ids, mask)
        if packed.is_worth_it and keeps_apart(lm, read):
            return packed.unpacked(read(packed.arguments))
    return read({"input_ids": ids, **_attention(mask)})


def _read(lm: LanguageModel, arguments: dict[str, Int[Tensor, "row pos"]]) -> Float[Tensor, "row pos d_model"]:
    seen: list[Tensor] = []

    def read(_module: torch.nn.Module, _inputs: tuple, output: Tensor | tuple) -> None:
        seen.append(_residual_in(output))
        raise _HookReached

    with _hook(lm, read), contextlib.suppress(_HookReached):
        lm.model(**arguments, use_cache=False)
    return seen[0].float()


def _is_padded_behind(mask: Bool[Tensor, "batch pos"]) -> bool:
    """Whether some text is padded, and each on the right alone."""
    return not bool(mask.all()) and bool(mask[:, 0].all()) and bool((mask[:, 1:] <= mask[:, :-1]).all())


@served()
@torch.inference_mode()
def logits(
    lm: LanguageModel,
    ids: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"] | None = None,
    edit: Edit | None = None,
    *,
    keep: int = 0,
    cache: Any = None,
) -> Float[Tensor, "batch kept vocab"]:
    """Next-token logits, float32, with the residual stream edited at the hook point if asked.

    Args:
        lm: the model.
        ids: with BOS at index 0, or with nothing before them that `cache` holds already.
        mask: true on BOS and content; None where nothing is padded.
        edit: sees the positions of `ids`, not those in `cache`.
        keep: the last positions whose logits are wanted; 0 keeps all. The unembedding is run on these alone.
        cache: a `transformers.DynamicCache` with the keys and values of the tokens before `ids`; it is extended.
    """

    def write(_module: torch.nn.Module, _inputs: tuple, output: Tensor | tuple) -> Tensor | tuple:
        assert edit is not None
        edited = edit(_residual_in(output)).to(_residual_in(output).dtype)
        return (edited, *output[1:]) if isinstance(output, tuple) else edited

    before = {"cache": cache, "use_cache": True} if cache is not None else {"use_cache": False}
    with _hook(lm, write) if edit else contextlib.nullcontext():
        return lm.model(input_ids=ids, **_attention(mask), logits_to_keep=keep, **before).logits.float()


def _attention(mask: Bool[Tensor, "batch pos"] | None) -> dict[str, Int[Tensor, "batch pos"]]:
    """What a padded batch needs: the mask, and positions that count from each text's own BOS if it is padded in front."""
    if mask is None or bool(mask.all()):
        return {}
    attention = {"attention_mask": mask.long()}
    if not bool(mask[:, 0].all()):
        attention["position_ids"] = (mask.long().cumsum(1) - 1).clamp(min=0)
    return attention
