"""The weights of a planted model and of its SAE, computed and not trained.

Block 0, whose output is the hook point, builds the features: the embedding puts the size of each word's features along
their directions; attention fetches the texture of the word before, and looks for cues; the SwiGLU MLP makes a feature
more or less active by that texture, and is the AND of a word and its cue. Block 1 adds nothing. The unembedding reads
the role of the token (a class bigram model, from which the documents are drawn too) and what the features promote.

A large constant coordinate keeps the norm, and so RMSNorm's scale, all but constant: everything after it is linear.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mikit.targets.planted.directions import TEXTURES, Directions
from mikit.targets.planted.features import Latent
from mikit.targets.planted.kernel import HEAD_DIM, MARGIN, REACH, ROPE_THETA, window_key
from mikit.targets.planted.words import Lexicon
from mikit.targets.sae import Sae

CONSTANT = 256.0
"""The constant coordinate; everything else together has a norm of about 6."""
PEAK = 4.0
"""About the largest activation of a feature; `strength` is its effect there."""
GAINS = (1.92, 3.2)
"""Activation on a word, before its neighbour makes it up to a third more or less: drawn evenly a word and latent."""
SINGLE_GAIN = 3.0
"""The same for a feature that fires on one word."""
FAINT_GAIN = 0.5
ROLE = 4.0
"""Activation of the latent of a role."""
THRESHOLD = 0.3
NOISE = 0.1
"""Largest coordinate of a word along latents that it does not fire; below the threshold after the MLP too."""
SMALL = 0.4
"""Size of coordinates that only the first block reads."""
SMOOTHING = 0.15
"""Share of the next role that does not depend on the role before, in the model."""
CERTAIN = 12.0
"""Attention score, in nats, of what a head looks for; of all else at most 0, of cues too far away -12."""
SWING = 3.5
"""How far the texture of the word before moves a gate."""
PLAIN_GATE, CUED_GATE = 4.0, 10.0
PLAIN_SHARE = 0.15
"""What a gate of 1 adds to a plain feature, as a share of it."""
UNSEEN_LOGIT = -14.0
"""Of special tokens, which never follow anything."""
WEIGHTS = (0.75, 1.0)
"""Effect on a moved word, as a share of the strength: drawn evenly a word and latent."""
TAIL = 0.04
"""Largest effect of a latent on other words, as a share of its strength."""


def embedding_of(
    lexicon: Lexicon, latents: tuple[Latent, ...], directions: Directions, seed: int
) -> Float[np.ndarray, "vocab coordinate"]:
    """Coordinates of each token before the first block."""
    rng = np.random.default_rng([seed, 4])
    vocab, n = len(lexicon.texts), len(directions.rows)
    z = np.zeros((vocab, n))
    words = lexicon.role >= 0
    gains = rng.uniform(*GAINS, size=(vocab, len(latents)))
    noise = rng.uniform(-NOISE, NOISE, size=(vocab, len(latents)))
    plain_scale = 1 / (1 + PLAIN_SHARE * PLAIN_GATE)
    for i, latent in enumerate(latents):
        if latent.kind == "dead":
            continue
        z[words, i] = noise[words, i]
        own = [w for trigger in latent.triggers if not trigger.cues for w in trigger.own]
        size = ROLE if latent.kind is None else (SINGLE_GAIN if len(own) == 1 else gains[own, i]) * plain_scale
        z[own, i] = size
        z[list(latent.faint), i] = FAINT_GAIN * plain_scale
        if latent.on_bos:
            z[0, i] = PEAK
    z[0, _role_latent(latents, lexicon.start)] = ROLE
    z[:, directions.constant] = CONSTANT
    for k in range(TEXTURES):
        z[words, directions.texture(k)] = SMALL * rng.uniform(-1, 1, size=int(words.sum()))
    for k, (i, trigger) in enumerate(directions.cued):
        own = list(trigger.own)
        z[own, directions.own(k)] = SINGLE_GAIN if len(own) == 1 else gains[own, i]
        z[list(trigger.cues), directions.cue(k)] = SMALL
    return z


def _role_latent(latents: tuple[Latent, ...], role: int) -> int:
    return [i for i, latent in enumerate(latents) if latent.kind is None][role]


def unembedding_of(
    lexicon: Lexicon, latents: tuple[Latent, ...], directions: Directions, seed: int
) -> Float[np.ndarray, "vocab coordinate"]:
    """What a unit of each coordinate adds to each token's logit, nats."""
    rng = np.random.default_rng([seed, 5])
    vocab = len(lexicon.texts)
    effect = np.zeros((vocab, len(directions.rows)))
    words = lexicon.role >= 0
    share = lexicon.role_share
    chance = np.full(vocab, np.exp(UNSEEN_LOGIT))
    chance[words] = share[lexicon.role[words]] * lexicon.chance[words]
    effect[:, directions.constant] = np.log(chance) / CONSTANT
    smooth = (1 - SMOOTHING) * lexicon.follows + SMOOTHING * share
    lift = np.log(smooth / share)
    for i, latent in enumerate(latents):
        weights, tail = rng.uniform(*WEIGHTS, size=vocab), rng.uniform(-TAIL, TAIL, size=vocab)
        if latent.kind is None:
            role = lexicon.role[latent.triggers[0].own[0]]
            effect[words, i] = lift[role, lexicon.role[words]] / ROLE
        elif latent.has_effect:
            moved = np.where(words, tail, 0.0)
            moved[list(latent.promotes)] = weights[list(latent.promotes)]
            moved[list(latent.suppresses)] = -weights[list(latent.suppresses)]
            effect[:, i] = moved * latent.strength / PEAK
    return effect


def model_of(lexicon: Lexicon, latents: tuple[Latent, ...], directions: Directions, seed: int) -> Any:
    """A `LlamaForCausalLM` of two blocks with these weights: float32, eval mode, no gradients."""
    from transformers import LlamaConfig, LlamaForCausalLM

    weights = weights_of(lexicon, latents, directions, seed)
    config = LlamaConfig(
        vocab_size=len(lexicon.texts),
        hidden_size=directions.width,
        intermediate_size=weights["model.layers.0.mlp.gate_proj.weight"].shape[0],
        num_hidden_layers=2,
        num_attention_heads=directions.heads,
        num_key_value_heads=directions.heads,
        head_dim=HEAD_DIM,
        max_position_embeddings=REACH,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=None,
    )
    # making a model draws random weights, which are then replaced: a caller's random numbers stay what they were
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)


def weights_of(
    lexicon: Lexicon, latents: tuple[Latent, ...], directions: Directions, seed: int
) -> dict[str, torch.Tensor]:
    """The state dict of the model."""
    scale = CONSTANT / np.sqrt(directions.width)
    readers = scale * directions.readers
    embedding = embedding_of(lexicon, latents, directions, seed) @ directions.rows
    unembedding = scale * unembedding_of(lexicon, latents, directions, seed) @ directions.outlets
    first = {**_attention(directions, readers), **_mlp(latents, directions, readers)}
    norms = {"input_layernorm": np.ones(directions.width), "post_attention_layernorm": np.ones(directions.width)}
    blocks = {
        **{f"model.layers.0.{name}.weight": value for name, value in {**first, **norms}.items()},
        **{f"model.layers.1.{name}.weight": 0 * value for name, value in first.items()},
        **{f"model.layers.1.{name}.weight": value for name, value in norms.items()},
    }
    outer = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(directions.width),
        "lm_head.weight": unembedding,
    }
    return {name: _tensor(value) for name, value in {**outer, **blocks}.items()}


def _attention(directions: Directions, readers: Float[np.ndarray, "coordinate d_model"]) -> dict[str, np.ndarray]:
    """Head 0 copies the texture of the token before; every other head asks whether a cue stands close before."""
    heads = directions.heads
    q, k, v = np.zeros((3, heads, HEAD_DIM, directions.width))
    out = np.zeros((directions.width, heads, HEAD_DIM))
    constant = readers[directions.constant] / CONSTANT
    q[:, : HEAD_DIM // 2] = CERTAIN / MARGIN * np.sqrt(HEAD_DIM) * constant
    k[0] = np.outer(window_key(1), constant)
    for j in range(TEXTURES):
        v[0, j] = readers[directions.texture(j)]
        out[:, 0, j] = directions.rows[directions.texture_before(j)]
    for j, (_, trigger) in enumerate(directions.cued):
        is_cue = readers[directions.cue(j)] / SMALL
        k[1 + j] = np.outer(window_key(trigger.within), is_cue)
        v[1 + j, 0] = is_cue
        out[:, 1 + j, 0] = SMALL * directions.rows[directions.cue_before(j)]
    flat = (heads * HEAD_DIM, directions.width)
    projections = {"q": q.reshape(flat), "k": k.reshape(flat), "v": v.reshape(flat), "o": out.reshape(flat[::-1])}
    return {f"self_attn.{name}_proj": value for name, value in projections.items()}


def _mlp(
    latents: tuple[Latent, ...], directions: Directions, readers: Float[np.ndarray, "coordinate d_model"]
) -> dict[str, np.ndarray]:
    """Neurons that scale a feature by the texture before, and neurons that pass a feature on if there was a cue.

    Where its input is well above 0, silu is the identity; where it is well below, nothing.
    """
    constant = readers[directions.constant] / CONSTANT
    textures = [readers[directions.texture_before(j)] / SMALL for j in range(TEXTURES)]
    gate, up, down = [], [], []
    for i, latent in enumerate(latents):
        if latent.kind is not None and any(not trigger.cues for trigger in latent.triggers):
            gate.append(PLAIN_GATE * constant + SWING * textures[i % TEXTURES])
            up.append(readers[i])
            down.append(PLAIN_SHARE * directions.rows[i])
    for k, (i, _) in enumerate(directions.cued):
        cue = readers[directions.cue_before(k)] / SMALL
        gate.append(2 * CUED_GATE * (cue - 0.5 * constant) + SWING * textures[i % TEXTURES])
        up.append(readers[directions.own(k)])
        down.append(directions.rows[i] / CUED_GATE)
    return {"mlp.gate_proj": np.array(gate), "mlp.up_proj": np.array(up), "mlp.down_proj": np.array(down).T}


def sae_of(latents: tuple[Latent, ...], directions: Directions) -> Sae:
    """The SAE whose decoder rows are the planted directions and whose encoder reads their coordinates."""
    n = len(latents)
    W_enc, W_dec = _tensor(directions.readers[:n].T), _tensor(directions.rows[:n])
    b_dec, threshold = _tensor(CONSTANT * directions.rows[directions.constant]), torch.full((n,), THRESHOLD)
    return Sae(
        id="planted-directions",
        architecture="jumprelu",
        W_enc=W_enc,
        W_dec=W_dec,
        b_enc=torch.zeros(n),
        b_dec=b_dec,
        threshold=threshold,
        apply_b_dec_to_input=True,
        hash=digest_of([W_enc, W_dec, b_dec, threshold]),
    )


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    """The first 16 hex digits of the SHA-256 of weights rounded to four digits behind the point.

    They are computed anew at each load, and what is behind those digits depends on the machine's linear algebra.
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update((np.round(tensor.numpy(), 4) + 0.0).tobytes())
    return digest.hexdigest()[:16]


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
