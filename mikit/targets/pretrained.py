"""Any transformers causal language model, from a folder or the hub, with any SAE on the output of one of its blocks."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from mikit import paths
from mikit.errors import BadInput
from mikit.files import file_hash, value_hash
from mikit.targets import memory
from mikit.targets.anatomy import hook_path
from mikit.targets.base import LanguageModel, Target
from mikit.targets.gemma_scope import find_sae
from mikit.targets.lens_release import fetched
from mikit.targets.options import Device, Options
from mikit.targets.sae import Sae
from mikit.targets.sae_files import load_sae

CHECKPOINT_VARIABLE = "SAE_MODEL_CHECKPOINT_PATH"
ROOT_VARIABLE = "SAE_ROOT"
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
GEMMA = re.compile(r"gemma-\d[\w.-]*")
"""Gemma models may be named without their owner."""
BLOB = re.compile(r"[0-9a-f]{64}")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True)
class Source:
    """Where a model's files are."""

    id: str
    """Name for people, and of the hub's repository if it is not local."""
    folder: Path | None
    """Its folder, if it is local."""

    @property
    def place(self) -> str:
        """What transformers loads from."""
        return str(self.folder or self.id)


def is_known(name: str) -> bool:
    """Whether a name may be a model of this module: a folder, a hub id, or a Gemma model's short name."""
    given = paths.existing(name)
    return bool(HUB_ID.fullmatch(name) or GEMMA.fullmatch(name)) or (given is not None and given.is_dir())


def _is_model(folder: Path | None) -> bool:
    return folder is not None and (folder / "config.json").is_file()


def source_of(name: str) -> Source:
    """Where the files of a model are; `SAE_MODEL_CHECKPOINT_PATH` says where those of a Gemma model are.

    Raises:
        BadInput: the name, or the variable, names a folder without a model.
    """
    given = paths.existing(name)
    if given is not None and given.is_dir():
        if not _is_model(given):
            raise BadInput(f"model {name!r} is a folder without config.json: valid: a transformers folder")
        return Source(given.resolve().name, given.resolve())
    identity = f"google/{name}" if GEMMA.fullmatch(name) else name
    short = identity.rpartition("/")[2]
    variable = os.environ.get(CHECKPOINT_VARIABLE)
    if variable and GEMMA.fullmatch(short):
        root = paths.existing(variable)
        for folder in (root, root / short if root else None):
            if folder is not None and _is_model(folder):
                return Source(identity, _gemma_in(folder))
        raise BadInput(
            f"{CHECKPOINT_VARIABLE}={variable}: neither it nor {short} in it holds a config.json:"
            f" valid: the transformers folder of {identity}, or unset"
        )
    return Source(identity, None)


def _gemma_in(folder: Path) -> Path:
    kind = re.search(r'"model_type":\s*"(\w+)"', (folder / "config.json").read_text("utf-8", errors="replace"))
    if kind and not kind[1].startswith("gemma"):
        raise BadInput(f"{CHECKPOINT_VARIABLE}: the model in {folder} is {kind[1]}: valid: a Gemma model, or unset")
    return folder.resolve()


def resolve_device(device: Device) -> torch.device:
    """The device that is meant.

    Raises:
        BadInput: this machine does not have it.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, is_there in there.items() if is_there))
    if not there[device]:
        valid = ", ".join(["auto", *(name for name, is_there in there.items() if is_there)])
        raise BadInput(f"device {device!r}: torch finds none on this machine: valid: {valid}")
    return torch.device(device)


def refuse_half(config: Any, dtype: str) -> None:
    """Refuse float16 for a Gemma model.

    Source: transformers issue 39972: its activations exceed 65,504, the largest number of float16, and become infinite.
    """
    if dtype == "float16" and str(config.model_type).startswith("gemma"):
        raise BadInput(
            f"dtype float16: activations of {config.model_type} exceed float16's largest number, 65504, and overflow to"
            " infinity: valid: bfloat16, float32"
        )


def load_language_model(name: str, layer: int, options: Options, d_sae: int = 0) -> LanguageModel:
    """A model in eval mode without gradients, its hook point the output of a block.

    Args:
        name: a folder, a hub id, or a Gemma model's short name.
        layer: index of the block.
        options: device and precision.
        d_sae: latents of the SAE that shares the device.

    Raises:
        BadInput: there is no such model or layer, or it does not fit the device.
    """
    from transformers import AutoModelForCausalLM

    source, device = source_of(name), resolve_device(options.device)
    config = _config(source)
    refuse_half(config, options.dtype)
    dtype = memory.choose_dtype(_sizes(source, config, d_sae, options.batch), _memory_of(device), options.dtype)
    with _explained(source):
        model, info = AutoModelForCausalLM.from_pretrained(
            source.place,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            **_attention(config),
            **_local(source),
        )
    if missing := sorted(info["missing_keys"]):
        raise BadInput(
            f"model {source.place} lacks {missing[0]} (of {len(missing)}): random numbers would stand for it"
        )
    tokenizer = _tokenizer(source)
    special = _special_ids(tokenizer)
    return LanguageModel(
        model=model.to(device).eval().requires_grad_(False),
        tokenizer=tokenizer,
        layer=layer,
        hook_point=hook_path(model, layer),
        bos_id=_bos_id(tokenizer, config, source),
        special_ids=special,
        model_id=source.id,
        model_hash=_weights_hash(source),
        tokenizer_hash=value_hash(tokenizer.get_vocab()),
    )


class _explained:
    """Turns what transformers and the hub raise for a model that is not there, or is torn, into one line."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, OSError | ValueError | RuntimeError | KeyError | ImportError | SafetensorError):
            return
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if self.source.folder is not None:
            raise BadInput(f"model {self.source.folder} can't be loaded: {reason}") from None
        raise BadInput(
            f"model {self.source.id!r} is no folder here, and the hub did not give it ({reason}): valid: a folder, or a hub"
            f" id; a gated model needs HF_TOKEN, a Gemma model may lie at {CHECKPOINT_VARIABLE}"
        ) from None


def _local(source: Source) -> dict[str, bool]:
    return {"local_files_only": True} if source.folder is not None else {}


def _config(source: Source) -> Any:
    from transformers import AutoConfig

    with _explained(source):
        return AutoConfig.from_pretrained(source.place, **_local(source))


def _tokenizer(source: Source) -> Any:
    from transformers import AutoTokenizer

    with _explained(source):
        return AutoTokenizer.from_pretrained(source.place, **_local(source))


def _attention(config: Any) -> dict[str, str]:
    """Eager attention where scores are soft-capped: fused kernels leave the cap out."""
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return {"attn_implementation": "eager"} if capped is not None else {}


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """Control tokens. Added tokens that are plain text, such as Gemma's runs of newlines, are content."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


def _bos_id(tokenizer: Any, config: Any, source: Source) -> int:
    """The token that texts of this model begin with: its BOS, else what separates documents."""
    text = config.get_text_config()
    candidates = (tokenizer.bos_token_id, text.bos_token_id, tokenizer.eos_token_id, text.eos_token_id)
    for found in candidates:
        if isinstance(found, int):
            return found
    raise BadInput(f"model {source.place} names neither a bos nor an eos token: every text needs one in front")


def _sizes(source: Source, config: Any, d_sae: int, batch: int) -> memory.Sizes:
    from transformers import AutoModelForCausalLM

    with _explained(source), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, **_attention(config))
    text = config.get_text_config()
    return memory.Sizes(model.num_parameters(), text.vocab_size, text.hidden_size, d_sae, batch)


def _memory_of(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    import psutil

    return psutil.virtual_memory().available


def _weights_hash(source: Source) -> str:
    """Of the weight files, wherever they lie: the hub's cache names a file by its SHA-256."""
    from transformers.utils import CONFIG_NAME, cached_file

    folder = source.folder or Path(str(cached_file(source.id, CONFIG_NAME))).parent
    files = sorted(file for pattern in WEIGHTS for file in folder.glob(pattern))
    names = [file.resolve().name for file in files]
    return value_hash(
        [name[:16] if BLOB.fullmatch(name) else file_hash(file) for name, file in zip(names, files, strict=True)]
    )


def locate_sae(options: Options, layer: int | None, name: str) -> Path:
    """The folder of the SAE that the options mean.

    Raises:
        BadInput: none is meant, or it is not there.
    """
    if options.sae is not None:
        return paths.existing(options.sae) or fetched(options.sae)
    root = options.sae_root or os.environ.get(ROOT_VARIABLE)
    if not root:
        raise BadInput(
            f"{name} needs an SAE: give sae=FOLDER or sae=RELEASE/ID, or the folder of Gemma Scope in sae_root or {ROOT_VARIABLE}"
        )
    folder = paths.existing(root)
    if folder is None or not folder.is_dir():
        origin = "sae_root" if options.sae_root else ROOT_VARIABLE
        raise BadInput(f"{origin}={root}: no such folder: valid: one with layer_L/width_W/average_l0_N/params.npz")
    if layer is None:
        raise BadInput(f"{name} has an SAE for each layer below {root}: name the layer")
    return find_sae(folder, layer, options.sae_width, options.sae_l0)


def chosen_layer(sae: Sae, layer: int | None, where: Path) -> int:
    """The layer that is asked for, or that the SAE's folder states.

    Raises:
        BadInput: the two differ, or there is neither.
    """
    if layer is None and sae.layer is None:
        raise BadInput(f"SAE at {where} does not say which layer it reads: name the layer")
    if layer is not None and sae.layer is not None and layer != sae.layer:
        raise BadInput(
            f"layer {layer}: the SAE at {where} was trained on the output of block {sae.layer}: valid: {sae.layer}"
        )
    return layer if layer is not None else int(sae.layer or 0)


def with_sae(lm: LanguageModel, name: str, sae: Sae, default_corpus: str = "embedded") -> Target:
    """A target of a model and an SAE that fit each other; the SAE goes where the model is.

    Raises:
        BadInput: the SAE reads a stream of another width.
    """
    width = lm.model.config.get_text_config().hidden_size
    if sae.d_in != width:
        raise BadInput(
            f"SAE {sae.id} reads a stream of width {sae.d_in}, and {lm.model_id} has {width}: it is for another model"
        )
    return Target(**vars(lm), name=name, sae=sae.to(lm.device), default_corpus=default_corpus)


def load(name: str, layer: int | None, options: Options) -> Target:
    """A model by folder or id with the SAE that the options mean.

    Raises:
        BadInput: either is not there, or they do not fit each other.
    """
    source = source_of(name)
    where = locate_sae(options, layer, name)
    sae = load_sae(where)
    layer = chosen_layer(sae, layer, where)
    width = _config(source).get_text_config().hidden_size
    if sae.d_in != width:
        raise BadInput(
            f"SAE at {where} reads a stream of width {sae.d_in}, and {source.id} has {width}: it is for another model"
        )
    lm = load_language_model(name, layer, options, sae.d_sae)
    return with_sae(lm, source.id.rpartition("/")[2], sae)
