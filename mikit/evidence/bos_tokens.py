"""The vocabulary read token by token behind BOS: which tokens make each latent fire with nothing else around them.

Each token stands behind a prompt: `prompt-0001` is BOS alone, `prompt-0002` and on are the neutral prompts of `explain`
behind BOS. The model is run up to its hook point, and of every latent the strongest tokens are kept.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from mikit import paths
from mikit.errors import BadInput
from mikit.evidence.prompts import neutral_prompts
from mikit.evidence.vocabulary import Vocabulary
from mikit.files import atomic_path, file_hash, value_hash, write_json
from mikit.progress import track
from mikit.settings import Params
from mikit.targets.base import Target
from mikit.targets.hooks import batch_of, read_residual
from mikit.trace import Observation, Window

log = logging.getLogger(__name__)
KEPT = 256
"""Tokens kept of each latent."""
BATCH = 512
"""Tokens in a forward pass: their texts are one token long."""


@dataclass(frozen=True)
class BosTokens:
    """The strongest tokens of every latent."""

    ids: Int[np.ndarray, "d_sae kept"]
    values: Float[np.ndarray, "d_sae kept"]
    """Activation at the token, strongest first; 0 where fewer fire."""
    meta: dict[str, Any]


def place(target: Target, params: Params) -> Path:
    """The folder of the evidence: below `bos_token_root`, by model, layer, SAE and prompt.

    Raises:
        BadInput: `bos_token_root` is no name of a folder.
    """
    try:
        root = Path(params.bos_token_root).expanduser() if params.bos_token_root else paths.outputs() / "bos-tokens"
    except RuntimeError as error:
        raise _no_folder(params, error) from None
    return root / f"{target.name}-layer-{target.layer}-{target.sae.hash[:8]}" / params.bos_prompt_id


def _no_folder(params: Params, error: Exception) -> BadInput:
    return BadInput(f"bos_token_root = {params.bos_token_root!r}: {error}: valid: a folder that can be written")


def prefix_of(target: Target, prompt_id: str) -> list[int]:
    """Content ids that stand between BOS and the scanned token.

    Raises:
        BadInput: there is no such prompt.
    """
    number, prompts = int(prompt_id.removeprefix("prompt-")), neutral_prompts(target, "explain")
    if not 1 <= number <= 1 + len(prompts):
        raise BadInput(f"bos_prompt_id = {prompt_id!r}: valid: prompt-0001 (BOS alone) to prompt-{1 + len(prompts):04}")
    return [] if number == 1 else prompts[number - 2]


def identity(target: Target, prefix: list[int]) -> dict[str, Any]:
    """All that the evidence follows from."""
    return {
        "model": target.model_hash,
        "sae": target.sae.hash,
        "tokenizer": target.tokenizer_hash,
        "hook_point": target.hook_point,
        "bos_id": target.bos_id,
        "dtype": str(target.model.dtype).removeprefix("torch."),
        "prefix": prefix,
        "kept": KEPT,
    }


@torch.inference_mode()
def scan_bos(target: Target, params: Params) -> Path:
    """Read every token that is not special behind the prompt, and keep the strongest of each latent.

    Returns:
        The folder; what was there of the same model, SAE and prompt is kept.

    Raises:
        BadInput: there is no such prompt, or `bos_token_root` is no folder that can be written.
    """
    folder, prefix = place(target, params), prefix_of(target, params.bos_prompt_id)
    made_of = identity(target, prefix)
    if _meta(folder).get("made_of") == made_of and _is_whole(folder):
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # it says what the arrays are of: none, until they are whole
        (folder / "meta.json").unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise _no_folder(params, error) from None
    tokens = np.array([i for i in range(target.vocab_size) if i not in target.special_ids], np.int64)
    d_sae = target.sae.d_sae
    best = torch.zeros(0, d_sae)
    best_ids = torch.zeros(0, d_sae, dtype=torch.int64)
    device = target.sae.W_enc.device
    for start in track(range(0, len(tokens), BATCH), "tokens behind BOS", -(-len(tokens) // BATCH), unit="batches"):
        part = tokens[start : start + BATCH]
        ids, mask = batch_of(target, [[*prefix, int(token)] for token in part])
        acts = target.sae.encode(read_residual(target, ids, mask)[:, -1].to(device)).float().cpu()
        values = torch.cat([best, acts])
        owners = torch.cat([best_ids, torch.as_tensor(part)[:, None].expand(-1, d_sae)])
        best, order = values.topk(min(KEPT, len(values)), dim=0)
        best_ids = owners.gather(0, order)
    arrays = {"values": best.T.numpy().astype(np.float32), "ids": best_ids.T.numpy().astype(np.int32)}
    for name, array in arrays.items():
        with atomic_path(folder / f"{name}.npy") as temporary, temporary.open("wb") as file:
            np.save(file, np.ascontiguousarray(array))
    files = {name: file_hash(folder / f"{name}.npy") for name in arrays}
    told = {"made_of": made_of, "files": files, "tokens": len(tokens), "prompt": target.text_of(prefix)}
    write_json(folder / "meta.json", told)
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether the arrays are those that the scan wrote."""
    files = _meta(folder).get("files")
    try:
        return isinstance(files, dict) and all(
            file_hash(folder / f"{name}.npy") == files.get(name) for name in ("ids", "values")
        )
    except OSError:
        return False


def _meta(folder: Path) -> dict[str, Any]:
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) else {}


def read_bos(target: Target, params: Params) -> BosTokens:
    """The evidence that a scan left.

    Raises:
        BadInput: there is none for this model, SAE and prompt.
    """
    folder = place(target, params)
    meta = _meta(folder)
    if meta.get("made_of") != identity(target, prefix_of(target, params.bos_prompt_id)):
        raise BadInput(
            f"{folder} holds no tokens of this model, SAE and prompt: valid: mikit scan-bos with the same --model, "
            "--layer, --bos-token-root and --bos-prompt-id, before the run"
        )
    if not _is_whole(folder):
        raise BadInput(f"{folder} is damaged: valid: mikit scan-bos once more, which makes it anew")
    ids, values = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("ids", "values"))
    return BosTokens(ids, values, meta)


def with_bos_tokens(
    local: Observation, found: BosTokens, target: Target, vocabulary: Vocabulary, params: Params
) -> Observation:
    """What a writer is shown, with single tokens behind the prompt in the place of the corpus's firing windows.

    Raises:
        BadInput: no token alone makes the feature fire.
    """
    ids, values = found.ids[params.feature], found.values[params.feature]
    strongest = float(values[0]) if len(values) else 0.0
    if strongest <= 0:
        raise BadInput(
            f"no token behind {params.bos_prompt_id} makes feature {params.feature} fire: valid: --source corpus"
        )
    ref = local.ref if local.ref > 0 else strongest
    tau = local.tau if local.tau > 0 else params.protocol.tau_fraction * strongest
    shown = [(int(i), float(v)) for i, v in zip(ids, values, strict=True) if v > 0]
    windows = [
        Window(
            kind="top" if rank < 32 else "quantile",
            document=f"{params.bos_prompt_id}:{token}",
            split="explain",
            start=0,
            ids=[token],
            tokens=[vocabulary.texts[token]],
            activations=[value],
            peak=value,
            peak_index=0,
        )
        for rank, (token, value) in enumerate(shown)
    ]
    silent = [window for window in local.windows if window.kind.startswith("silent")]
    firing = sum(window.peak >= tau for window in windows)
    return local.model_copy(
        update={
            "source": "bos_token",
            "windows": [*windows, *silent],
            "ref": ref,
            "tau": tau,
            "notes": [
                f"firing windows are single tokens behind {params.bos_prompt_id}: {firing} of the {KEPT} strongest reach "
                "tau; of what must stand before a token they tell nothing",
                f"density, kind, neighbours, silent windows and the corpus stratum are of {local.corpus!r}, read here",
            ],
            "outside": {"prompt": found.meta.get("prompt"), "tokens": found.meta.get("tokens"),
                        "evidence_hash": value_hash(found.meta)},
        }
    )  # fmt: skip
