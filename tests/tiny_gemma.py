"""A tiny random Gemma-2 as real ones come: a transformers folder with its tokenizer, and a Gemma Scope tree of SAEs.

Its residual stream is ruled by the token that is read, and turns from block to block, so that an SAE of token
directions describes one block well and its neighbours less well.
"""

import json
import random
from pathlib import Path

import numpy as np
import torch

LAYERS, WIDTH = 4, 64
LAYER = 2
"""The block that the SAE is made for."""
COMMON, TOKEN = 40.0, 15.0
"""Norm of what all tokens share in the stream, and of what is a token's own."""
L0 = 1
"""Mean number of active latents of the SAE that is made here."""
SUBJECTS = [
    "river",
    "valley",
    "teacher",
    "doctor",
    "engine",
    "garden",
    "letter",
    "winter",
    "soldier",
    "market",
    "bridge",
    "farmer",
    "painter",
    "sailor",
    "castle",
    "forest",
    "station",
    "hunter",
    "window",
    "village",
    "captain",
    "meadow",
    "temple",
    "basket",
    "kitchen",
    "mirror",
    "lantern",
    "pilot",
    "tailor",
    "singer",
    "banker",
    "orchard",
    "harbour",
    "island",
    "writer",
    "keeper",
]
VERBS = [
    "crossed",
    "painted",
    "found",
    "followed",
    "carried",
    "watched",
    "opened",
    "answered",
    "entered",
    "covered",
    "noticed",
    "visited",
    "admired",
    "measured",
]
PLACES = [
    "near the old station",
    "behind a stone wall",
    "in the quiet harbour",
    "under the northern sky",
    "before the first snow",
]


def sentences(n: int, seed: int = 0) -> list[str]:
    """Made-up sentences of few words."""
    rng = random.Random(seed)
    return [
        f"The {rng.choice(SUBJECTS)} {rng.choice(VERBS)} the {rng.choice(SUBJECTS)} {rng.choice(PLACES)}, and the"
        f" {rng.choice(SUBJECTS)} {rng.choice(VERBS)} a {rng.choice(SUBJECTS)} {rng.choice(PLACES)}."
        for _ in range(n)
    ]


def write_corpus(path: Path, documents: int = 300) -> Path:
    """A JSONL file of documents of three sentences."""
    lines = sentences(3 * documents)
    texts = [" ".join(lines[start : start + 3]) for start in range(0, len(lines), 3)]
    path.write_text("".join(json.dumps({"id": str(i), "text": text}) + "\n" for i, text in enumerate(texts)))
    return path


def make_tokenizer():
    """A BPE tokenizer put together as Gemma's: spaces as ▁, and a BOS that it adds itself."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    from mikit.evidence.prompts import english_prompts
    from mikit.targets.sample import TEXTS

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Replace("▁", " ")
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>"]
    trainer = trainers.BpeTrainer(vocab_size=520, special_tokens=specials, show_progress=False)
    prompts = [text for split in english_prompts().values() for text in split]
    words = [f" {word}" for text in [*sentences(300), *prompts, *TEXTS] for word in text.split()]
    tokenizer.train_from_iterator(words, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>",
        additional_special_tokens=["<start_of_turn>"],
    )  # fmt: skip


def make_model(vocab: int):
    """Random weights of a fixed seed."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=vocab, hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=16, max_position_embeddings=256,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Gemma2ForCausalLM(config)
        with torch.no_grad():
            own = torch.nn.functional.normalize(torch.randn(vocab, WIDTH), dim=1)
            common = torch.nn.functional.normalize(torch.randn(WIDTH), dim=0)
            model.model.embed_tokens.weight.copy_((TOKEN * own + COMMON * common) / WIDTH**0.5)
            for block in model.model.layers:
                block.post_attention_layernorm.weight.fill_(-0.5)
                block.mlp.gate_proj.weight.mul_(20)
                block.mlp.up_proj.weight.mul_(20)
            model.model.norm.weight.copy_(0.3 * torch.randn(WIDTH))
    return model.eval()


def write_model(folder: Path) -> Path:
    """Save model and tokenizer as a transformers folder."""
    tokenizer = make_tokenizer()
    make_model(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def token_saes(model, tokenizer, layer: int = LAYER) -> tuple[dict[str, np.ndarray], list[int]]:
    """Weights in Gemma Scope's format: a latent for each frequent token, which reads and writes its mean residual.

    Returns:
        float32 arrays under upper-case names, and the token of each latent.
    """
    rows = [tokenizer(text)["input_ids"] for text in sentences(200, seed=1)]
    ids, states = [], []
    with torch.no_grad():
        for row in rows:
            hidden = model(torch.tensor([row]), output_hidden_states=True).hidden_states[layer + 1][0, 1:]
            ids += row[1:]
            states.append(hidden.float())
    x, ids = torch.cat(states), np.array(ids)
    mean = x.mean(0)
    # tokens of which the sentences are made, and all others as they are after one BOS
    tokens, counts = np.unique(ids, return_counts=True)
    frequent = tokens[counts >= 5].tolist()
    others = sorted(set(range(5, len(tokenizer))) - set(frequent))
    with torch.no_grad():
        alone = torch.tensor([[tokenizer.bos_token_id, token] for token in others])
        beside = model(alone, output_hidden_states=True).hidden_states[layer + 1][:, 1].float()
    centres = torch.cat([torch.stack([x[ids == token].mean(0) for token in frequent]), beside]) - mean
    norms = centres.norm(dim=1)
    W_dec = centres / norms[:, None]
    W_enc = W_dec.T.contiguous()
    weights = {
        "W_enc": W_enc, "W_dec": W_dec, "b_enc": -mean @ W_enc, "b_dec": mean, "threshold": 0.7 * norms,
    }  # fmt: skip
    return {name: value.numpy().astype(np.float32) for name, value in weights.items()}, [*frequent, *others]


def scope_folder(root: Path, layer: int = LAYER, width: str = "16k", l0: int = L0) -> Path:
    """Where Gemma Scope keeps an SAE."""
    return root / f"layer_{layer}" / f"width_{width}" / f"average_l0_{l0}"


def write_scope(root: Path, weights: dict[str, np.ndarray], **place) -> Path:
    """A `params.npz` where Gemma Scope keeps it."""
    folder = scope_folder(root, **place)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "params.npz", **weights)
    return folder
