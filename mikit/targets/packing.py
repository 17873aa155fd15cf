"""Texts of unlike length in one forward pass with hardly any padding: several in a row, each with positions of its own.

transformers keeps texts in a row apart where positions start anew and no mask is given. Whether a model does, with the
attention that it has, is tried once.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mikit.targets.base import LanguageModel
from mikit.targets.closeness import closeness, difference
from mikit.targets.state import hook_numbers

ROW = 128
"""Positions of a row that are aimed at: a few texts, so that rows come out equally long, and little attention between them
is computed in vain."""
LONGEST_ROW = 192
"""Positions of a row at most: as long as those that are tried. Some models' positions lose precision, or end, further on."""
WORTH = 0.9
"""Share of the padded batch that rows may have at most, to be read in its place."""

Read = Callable[[dict[str, Int[Tensor, "row pos"]]], Float[Tensor, "row pos d_model"]]
"""Reads the residual stream of rows, given the arguments of a model's forward pass."""


@dataclass(frozen=True)
class Packed:
    """Texts in rows."""

    ids: Int[Tensor, "row pos"]
    positions: Int[Tensor, "row pos"]
    """They start at 0 with each text."""
    where: Int[Tensor, "text pos"]
    """Index into the flattened rows of each position of each text; of padding that of the text's first position."""

    @property
    def is_worth_it(self) -> bool:
        """Whether clearly fewer positions are computed than with padding, in rows that are no longer than was tried."""
        return self.ids.shape[1] <= LONGEST_ROW and self.ids.numel() <= WORTH * self.where.numel()

    @property
    def arguments(self) -> dict[str, Int[Tensor, "row pos"]]:
        """For the model's forward pass."""
        return {"input_ids": self.ids, "position_ids": self.positions}

    def unpacked(self, rows: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "text pos d_model"]:
        """What was read of the rows, by text; at padding what was read at the text's first position."""
        return rows.flatten(0, 1)[self.where]


def pack(ids: Int[Tensor, "text pos"], mask: Bool[Tensor, "text pos"], row: int = ROW) -> Packed:
    """Put texts behind each other into rows of nearly the same length.

    Args:
        ids: padded on the right, with at least one position of each text.
        mask: true on the texts.
        row: positions of a row that are aimed at; longer texts have a row for themselves.
    """
    lengths = mask.sum(1).tolist()
    most = max(1, round(sum(lengths) / max(row, *lengths)))
    # of about as many rows those that leave least to fill up
    rows, starts = min((_placed(lengths, n) for n in range(-(-most * 2 // 3), most + 1)), key=_size)
    width = max(filled for filled, _ in rows)
    device = ids.device
    first = torch.tensor([number * width + filled for number, filled in starts], device=device)
    steps = torch.arange(ids.shape[1], device=device)
    where = first[:, None] + steps * mask
    # what fills up a row counts from 0 as a text does
    row_ids = ids[0, 0].repeat(len(rows), width)
    positions = torch.zeros_like(row_ids)
    for filled, number in rows:
        positions[number, filled:] = torch.arange(width - filled, device=device)
    row_ids.view(-1)[where[mask]] = ids[mask]
    positions.view(-1)[where[mask]] = steps.expand_as(where)[mask]
    return Packed(row_ids, positions, where)


def _placed(lengths: Sequence[int], n_rows: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Texts put into rows, the longest first, each into the row that is shortest so far.

    Returns:
        How far each row is filled, with its number; each text's row, and its first position there.
    """
    rows = [(0, number) for number in range(n_rows)]
    starts = [(0, 0)] * len(lengths)
    for text in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        filled, number = heapq.heappop(rows)
        starts[text] = number, filled
        heapq.heappush(rows, (filled + lengths[text], number))
    return rows, starts


def _size(placed: tuple[list[tuple[int, int]], list[tuple[int, int]]]) -> int:
    rows, _ = placed
    return len(rows) * max(filled for filled, _ in rows)


_keeps_apart: "WeakKeyDictionary[Any, dict[tuple[Any, ...], bool]]" = WeakKeyDictionary()
"""By model and what the answer follows from, such as the hook point: a block above may be of another kind."""


def keeps_apart(lm: LanguageModel, read: Read) -> bool:
    """Whether a model reads texts in one row as it reads them alone, up to its hook point; it is tried once.

    Other texts before them must not change a bit of what is read, and alone they must be the same but for rounding.
    """
    tried = _keeps_apart.setdefault(lm.model, {})
    key = (
        lm.hook_point,
        lm.model.dtype,
        getattr(lm.model.config, "_attn_implementation", None),
        hook_numbers(lm.model),
    )
    if key not in tried:
        tried[key] = _tried(lm, read)
    return tried[key]


def _tried(lm: LanguageModel, read: Read) -> bool:
    if (getattr(lm.model.config, "max_position_embeddings", None) or LONGEST_ROW) < LONGEST_ROW:
        return False
    short, long = 8, LONGEST_ROW - 8
    texts = torch.randint(lm.vocab_size, (6, long), generator=torch.Generator().manual_seed(0)).to(lm.device)
    texts[:, 0] = lm.bos_id
    mask = torch.ones_like(texts[:4], dtype=torch.bool)
    mask[2:, short:] = False
    try:
        # two rows of a long and a short text each: an attention may keep texts apart in a batch of one row alone
        behind, behind_others = (
            packed.unpacked(read(packed.arguments))[2:, :short]
            for packed in (pack(texts[rows], mask, row=LONGEST_ROW) for rows in ([0, 1, 4, 5], [2, 3, 4, 5]))
        )
        alone = read({"input_ids": texts[4:, :short]})
    except (TypeError, ValueError, RuntimeError):
        # a model that takes no positions, or whose attention is not made for so long rows
        return False
    return torch.equal(behind, behind_others) and difference(behind, alone) <= closeness(lm.model.dtype)
