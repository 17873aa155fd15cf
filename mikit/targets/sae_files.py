"""Reading SAEs from disk: sae-lens folders, Gemma Scope's `params.npz`, Gemma Scope 2's `params.safetensors`.

All are read here without importing sae-lens, whose import costs many seconds. Nothing is unpickled.
"""

import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mikit.errors import BadInput
from mikit.files import file_hash, value_hash
from mikit.targets.hook_points import block_of, layer_in, refuse_folder, refused
from mikit.targets.sae import Sae

ARCHITECTURES = ("jumprelu", "standard", "topk", "gated")
NORMALIZATIONS = ("none", "layer_norm", "constant_norm_rescale")
FORMATS = "sae-lens (cfg.json, sae_weights.safetensors), Gemma Scope (params.npz), Gemma Scope 2 (config.json, params.safetensors)"
TRANSCODERS = re.compile(r"transcoder|crosscoder|clt")

Weights = Mapping[str, Tensor]


def load_sae(where: Path) -> Sae:
    """Read an SAE from a folder, or from a `params.npz`, in whichever format it is.

    Raises:
        BadInput: a file is missing or torn, the kind of SAE is not supported, or a shape does not fit.
    """
    if where.is_file() and where.suffix == ".npz":
        return _gemma_scope(where)
    if (where / "params.npz").is_file():
        return _gemma_scope(where / "params.npz")
    if (where / "params.safetensors").is_file():
        return _gemma_scope_2(where)
    for name in ("cfg.json", "sae_weights.safetensors"):
        if not (where / name).is_file():
            raise BadInput(f"no SAE at {where}: {name} is missing; valid: a folder of {FORMATS}")
    return _sae_lens(where)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} can't be read as JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path} can't be read: it holds no JSON object")
    return value


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise BadInput(f"{path} can't be read, it may be torn ({error}): copy or download it again") from None


def _npz(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} can't be read, it may be torn ({error}): copy or download it again") from None


def _sae_lens(folder: Path) -> Sae:
    config, weights = _json(folder / "cfg.json"), _safetensors(folder / "sae_weights.safetensors")
    card_path, where = folder / "card.json", f"SAE at {folder}"
    card = _json(card_path) if card_path.is_file() else {}
    architecture = _architecture(config, where)
    normalize = _normalization(config, where)
    _check_scaling(weights, where)
    metadata = config.get("metadata") or {}
    hook = next((source[name] for source in (metadata, config) for name in ("hook_name", "hook_point")
                 if source.get(name)), None)  # fmt: skip
    if config.get("reshape_activations", "none") not in ("none", None):
        raise refused(f"on reshaped activations ({config['reshape_activations']})", where)
    layer = block_of(hook, where) if hook else None
    k = _k(config) if architecture == "topk" else None
    if architecture == "topk" and k is None:
        raise BadInput(f"{where}: a topk SAE without its k in cfg.json can't be used")
    if architecture == "topk" and config.get("rescale_acts_by_decoder_norm"):
        weights = _rescaled(weights, where)
    measured = card.get("held_out") or {}
    return _sae(
        weights,
        folder / "sae_weights.safetensors",
        where,
        id=folder.name,
        architecture=architecture,
        apply_b_dec_to_input=bool(config.get("apply_b_dec_to_input", True)),
        normalize=normalize,
        k=k,
        layer=layer,
        card=card,
        expected_l0=measured.get("l0", k),
    )


def _architecture(config: Mapping[str, Any], where: str) -> str:
    architecture = str(config.get("architecture", "standard"))
    if config.get("activation_fn_str", config.get("activation_fn")) == "topk" and architecture == "standard":
        # before version 6 sae-lens wrote TopK as an activation function: read as plain ReLU it has thousands of latents
        architecture = "topk"
    if TRANSCODERS.search(architecture):
        raise refused(f"a {architecture.replace('_', ' ')}", where)
    if "batchtopk" in architecture:
        raise BadInput(f"{where} is a training checkpoint of {architecture}: save it with save_inference_model")
    if architecture not in ARCHITECTURES:
        raise BadInput(f"{where} is {architecture!r}: supported: {', '.join(ARCHITECTURES)}, and BatchTopK as jumprelu")
    return architecture


def _normalization(config: Mapping[str, Any], where: str) -> str:
    given = config.get("normalize_activations", "none")
    name = {None: "none", False: "none", True: "expected_average_only_in"}.get(given, given)
    if name == "expected_average_only_in":
        raise BadInput(
            f"{where} reads activations that were scaled, and the folder doesn't say by what:"
            " fold the factor in with sae-lens' fold_activation_norm_scaling_factor and save it again"
        )
    if name not in NORMALIZATIONS:
        raise BadInput(f"{where} has normalize_activations {name!r}: supported: {', '.join(NORMALIZATIONS)}, folded")
    return str(name)


def _k(config: Mapping[str, Any]) -> int | None:
    k = config.get("k", (config.get("activation_fn_kwargs") or {}).get("k"))
    return int(k) if isinstance(k, int) and k > 0 else None


def _check_scaling(weights: Weights, where: str) -> None:
    """A scaling factor of ones does nothing; another was fitted afterwards and changes what an activation means."""
    for name in ("scaling_factor", "finetuning_scaling_factor"):
        if name in weights and not torch.allclose(weights[name].float(), torch.ones(())):
            raise BadInput(f"{where} has a {name} that is not 1: supported: SAEs without")


def _rescaled(weights: Weights, where: str) -> dict[str, Tensor]:
    """Decoder norms moved into the encoder: these SAEs choose and write as if decoder rows had norm 1."""
    _need(weights, ("W_enc", "W_dec", "b_enc"), where)
    norm = weights["W_dec"].float().norm(dim=1)
    return {
        **weights,
        "W_enc": weights["W_enc"].float() * norm,
        "b_enc": weights["b_enc"].float() * norm,
        "W_dec": weights["W_dec"].float() / norm[:, None],
    }


def _gemma_scope(path: Path) -> Sae:
    """Gemma Scope (Lieberum et al. 2024): JumpReLU, b_dec not subtracted before encoding."""
    refuse_folder(path.parent)
    weights, where = _known_names(_npz(path)), f"SAE at {path}"
    _check_scaling(weights, where)
    l0 = re.fullmatch(r"average_l0_(\d+)", path.parent.name)
    return _sae(
        weights,
        path,
        where,
        id="/".join(path.parent.parts[-3:]) if l0 else path.parent.name,
        architecture="jumprelu",
        apply_b_dec_to_input=False,
        layer=layer_in(path.parent),
        expected_l0=float(l0[1]) if l0 else None,
    )


def _gemma_scope_2(folder: Path) -> Sae:
    """Gemma Scope 2: the same SAE as safetensors, lower-case names, and a `config.json` that names its hook point."""
    refuse_folder(folder)
    where = f"SAE at {folder}"
    config = _json(folder / "config.json") if (folder / "config.json").is_file() else {}
    kind, architecture = str(config.get("type", "sae")), str(config.get("architecture", "jump_relu"))
    hook = config.get("hf_hook_point_in")
    if kind != "sae" or config.get("affine_connection") or not isinstance(hook, str | None):
        raise refused(f"a {kind}" if kind != "sae" else "a transcoder or crosscoder", where)
    if config.get("hf_hook_point_out", hook) not in (hook, None):
        raise refused("a transcoder", where)
    if architecture.replace("_", "") != "jumprelu":
        raise BadInput(f"{where} is {architecture!r}: supported in this format: jump_relu")
    l0 = config.get("l0")
    return _sae(
        _known_names(_safetensors(folder / "params.safetensors")),
        folder / "params.safetensors",
        where,
        id="/".join(folder.parts[-2:]),
        architecture="jumprelu",
        apply_b_dec_to_input=False,
        layer=block_of(hook, where) if hook else layer_in(folder),
        expected_l0=float(l0) if isinstance(l0, int | float) else None,
    )


def _known_names(weights: Weights) -> dict[str, Tensor]:
    """Upper-case names for matrices, and the threshold where its logarithm is given."""
    named = {f"W_{name[2:]}" if name in ("w_enc", "w_dec") else name: value for name, value in weights.items()}
    if "log_threshold" in named and "threshold" not in named:
        named["threshold"] = named.pop("log_threshold").float().exp()
    return named


def _need(weights: Weights, names: tuple[str, ...], where: str) -> None:
    if missing := [name for name in names if name not in weights]:
        raise BadInput(f"{where}: {missing[0]} is missing: it has {', '.join(sorted(weights)) or 'nothing'}")


def _sae(weights: Weights, path: Path, where: str, *, architecture: str, **facts: Any) -> Sae:
    """The SAE of these weights, in float32, its shapes checked.

    `d_sae` is the number of decoder rows: an encoder that does not fit it has its axes confused.
    """
    biases = {"gated": ("b_gate", "b_mag", "r_mag"), "jumprelu": ("b_enc", "threshold")}.get(architecture, ("b_enc",))
    _need(weights, ("W_enc", "W_dec", "b_dec", *biases), where)
    if weights["W_dec"].ndim != 2:
        raise BadInput(f"{where}: W_dec is {tuple(weights['W_dec'].shape)}: valid: latents by width of the stream")
    d_sae, d_in = weights["W_dec"].shape
    shapes = {"W_enc": (d_in, d_sae), "b_dec": (d_in,), **dict.fromkeys(biases, (d_sae,))}
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise BadInput(
                f"{where}: {name} is {tuple(weights[name].shape)}, and W_dec {(d_sae, d_in)} needs {shape}:"
                " the usual cause is a matrix stored with its axes the other way round"
            )
    used = {name: weights[name].float().contiguous() for name in ("W_enc", "W_dec", "b_dec", *biases)}
    for name, value in used.items():
        if not bool(value.isfinite().all()):
            raise BadInput(
                f"{where}: {name} holds a value that is not finite: the file is damaged, or was saved in float16"
            )
    read = {"architecture": architecture, **{n: facts.get(n) for n in ("apply_b_dec_to_input", "normalize", "k")}}
    return Sae(
        architecture=architecture,
        W_enc=used["W_enc"],
        W_dec=used["W_dec"],
        b_enc=used["b_mag" if architecture == "gated" else "b_enc"],
        b_dec=used["b_dec"],
        threshold=used.get("threshold", torch.zeros(d_sae)),
        b_gate=used.get("b_gate"),
        r_mag=used.get("r_mag"),
        dtype=weights["W_enc"].dtype,
        hash=value_hash([file_hash(path), read]),
        **facts,
    )
