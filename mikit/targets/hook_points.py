"""Names of hook points, as SAE folders write them, and which of them are supported: the output of a block."""

import re
from pathlib import Path

from mikit.errors import BadInput

SUPPORTED = "resid_post of a block, which is resid_pre of the next"
LENS = re.compile(r"blocks\.(\d+)\.hook_resid_(pre|post)")
MODULE = re.compile(r"(?:[\w.]+\.)?(?:layers|h)\.(\d+)(?:\.output)?")
REFUSED = (
    ("a transcoder's input", re.compile(r"mlp_in|pre_feedforward|ln2|transcoder|clt")),
    ("an attention output", re.compile(r"attn|hook_z|self_attn|attention")),
    ("an MLP output", re.compile(r"mlp|post_feedforward")),
    ("the middle of a block", re.compile(r"resid_mid")),
    ("the embedding", re.compile(r"embed")),
)
FOLDERS = (
    ("a transcoder", re.compile(r"(?:transcoder|clt)(?:_all)?|gemma-scope-.*-transcoders")),
    ("a crosscoder", re.compile(r"crosscoder(?:_all)?")),
    ("an SAE on attention outputs", re.compile(r"attn_out(?:_all)?|gemma-scope-.*-att")),
    ("an SAE on MLP outputs", re.compile(r"mlp_out(?:_all)?|gemma-scope-.*-mlp")),
    ("an SAE on embeddings", re.compile(r"embedding")),
)
"""What a folder of Gemma Scope holds, by the name of one of the folders around it."""


def refused(what: str, where: str) -> BadInput:
    """The one line for an SAE that can't be explained here."""
    return BadInput(f"{where} is {what}: supported: SAEs on {SUPPORTED}")


def block_of(hook_name: str, where: str) -> int:
    """The block whose output a hook point is.

    Args:
        hook_name: as sae-lens (`blocks.12.hook_resid_post`) or transformers (`model.layers.12`) name it.
        where: the SAE, for a message.

    Raises:
        BadInput: it is another place in the model.
    """
    if match := LENS.fullmatch(hook_name):
        block = int(match[1]) - (match[2] == "pre")
        if block < 0:
            raise refused(f"on {hook_name}, the embedding", where)
        return block
    if match := MODULE.fullmatch(hook_name):
        return int(match[1])
    for what, pattern in REFUSED:
        if pattern.search(hook_name):
            raise refused(f"on {hook_name}, {what}", where)
    raise refused(f"on {hook_name!r}, which is no known hook point", where)


def refuse_folder(folder: Path) -> None:
    """Refuse a folder of a Gemma Scope release that holds something else than SAEs on the residual stream.

    Raises:
        BadInput: one of the folders around it says so.
    """
    for part in folder.parts[-5:]:
        for what, pattern in FOLDERS:
            if pattern.fullmatch(part):
                raise refused(what, str(folder))


def layer_in(folder: Path) -> int | None:
    """The layer that a Gemma Scope folder is named for: `layer_12/width_16k/...` or `layer_12_width_16k_l0_medium`."""
    for part in reversed(folder.parts[-4:]):
        if match := re.match(r"layer_(\d+)(?:_width_\w+)?$", part):
            return int(match[1])
    return None
