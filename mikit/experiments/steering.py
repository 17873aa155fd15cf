"""Adding directions to the residual stream, and what that does to the next-token distribution.

A *site* is a text with a weight at each of its tokens: a direction is added to the residual stream times that weight,
and the next token is read at the last position. Steering a prompt's last token, steering all of its tokens and taking
a feature's own contribution away are sites that differ in their weights alone. What lies before the first weighted
position is the same for all directions: it is run once, and its keys and values are shared.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mikit.targets.base import LanguageModel
from mikit.targets.hooks import Edit, batch_of, logits
from mikit.targets.remote.served import served

ROWS_A_TEXT = 4
"""Steered rows that weigh as much as a whole text in a forward pass: most of a row's tokens are shared."""


@dataclass(frozen=True)
class Site:
    """Content tokens, and how much of a direction is added at each."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Changes:
    """What directions do to the next token, beside the unchanged model."""

    logprob: Float[np.ndarray, "direction site token"]
    """Change of log-probability, nats, of the tokens asked for."""
    kl: Float[np.ndarray, "direction site"]
    """KL(clean || changed) over the whole vocabulary, nats."""


def prompt_sites(prompts: Sequence[Sequence[int]], position: Literal["last_token", "all_tokens"]) -> list[Site]:
    """Prompts steered with weight 1 at their last token, or at every content token; BOS is never steered."""
    return [
        Site(tuple(ids), (1.0,) * len(ids) if position == "all_tokens" else (0.0,) * (len(ids) - 1) + (1.0,))
        for ids in prompts
    ]


def ablation_sites(texts: Sequence[Sequence[int]], acts: Sequence[Float[np.ndarray, " pos"]]) -> list[Site]:
    """Texts weighted by minus a feature's activations: adding its decoder row takes its own contribution away.

    Args:
        texts: content ids, up to and including the token whose next token is looked at.
        acts: the feature's activation at each of these tokens, 0 where it is silent.
    """
    return [Site(tuple(ids), tuple((-np.asarray(values)).tolist())) for ids, values in zip(texts, acts, strict=True)]


def adding(weights: Float[Tensor, "row pos"], vectors: Float[Tensor, "row d_model"]) -> Edit:
    """The edit that adds to each row its vector times the weight at each position."""

    def edit(residual: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "row pos d_model"]:
        return residual + weights[..., None] * vectors[:, None, :]

    return edit


@torch.inference_mode()
def steered_logprobs(
    lm: LanguageModel,
    ids: Int[Tensor, "site pos"],
    weights: Float[Tensor, "site pos"],
    vectors: Float[Tensor, "direction d_model"],
    keep: int = 1,
) -> Float[Tensor, "site direction kept vocab"]:
    """Next-token log-probabilities, float32, under each direction.

    Args:
        lm: the model; the edit is made at its hook point.
        ids: texts of one length, BOS at index 0.
        weights: how much of a direction is added at each position; 0 at BOS.
        vectors: the directions; a row of zeros is the unchanged model.
        keep: the last positions whose next token is wanted; none of them may lie before the first weight.
    """
    from transformers import DynamicCache

    n, length, k = *ids.shape, len(vectors)
    steered = weights.any(0).nonzero()
    start = min(int(steered[0]) if len(steered) else length - 1, length - keep)
    cache = DynamicCache()
    logits(lm, ids[:, :start], keep=1, cache=cache)
    cache.batch_repeat_interleave(k)
    edit = adding(weights[:, start:].repeat_interleave(k, 0), vectors.to(lm.device).repeat(n, 1))
    found = logits(lm, ids[:, start:].repeat_interleave(k, 0), edit=edit, keep=keep, cache=cache)
    return found.log_softmax(-1).unflatten(0, (n, k))


def batches(
    lm: LanguageModel, sites: Sequence[Site], size: int
) -> Iterator[tuple[list[int], Int[Tensor, "site pos"], Float[Tensor, "site pos"]]]:
    """Sites of equal length, at most `size` at once: their indices, ids with BOS, and weights with 0 at BOS."""
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for index, site in enumerate(sites):
        by_length[len(site.ids)].append(index)
    for members in by_length.values():
        for start in range(0, len(members), size):
            part = members[start : start + size]
            weights = torch.tensor([(0.0, *sites[i].weights) for i in part], device=lm.device)
            yield part, batch_of(lm, [sites[i].ids for i in part])[0], weights


def kl_divergence(
    clean: Float[Tensor, "*batch vocab"], changed: Float[Tensor, "*#batch vocab"]
) -> Float[Tensor, "*batch"]:
    """KL(clean || changed) in nats, from log-probabilities; rounding below 0 is cut off."""
    return (clean.exp() * (clean - changed)).sum(-1).clamp(min=0)


def changes(
    lm: LanguageModel,
    sites: Sequence[Site],
    vectors: Float[Tensor, "direction d_model"],
    tokens: Int[np.ndarray, " token"],
    batch: int,
) -> Changes:
    """What adding each vector at each site does to the next token.

    Args:
        lm: the model.
        sites: where, and times what.
        vectors: what is added.
        tokens: ids whose change of log-probability is kept.
        batch: texts in a forward pass; a site's directions always share one.
    """
    logprob = np.empty((len(vectors), len(sites), len(tokens)), np.float32)
    kl = np.empty((len(vectors), len(sites)), np.float32)
    columns = torch.tensor(tokens, device=lm.device)
    for members, ids, weights in batches(lm, sites, max(1, ROWS_A_TEXT * batch // (1 + len(vectors)))):
        moved, far = steered_changes(lm, ids, weights, vectors, columns)
        kl[:, members] = far[:, :, 0].T.cpu().numpy()
        logprob[:, members] = moved[:, :, 0].transpose(0, 1).cpu().numpy()
    return Changes(logprob, kl)


@served()
@torch.inference_mode()
def steered_changes(
    lm: LanguageModel,
    ids: Int[Tensor, "site pos"],
    weights: Float[Tensor, "site pos"],
    vectors: Float[Tensor, "direction d_model"],
    tokens: Int[Tensor, " token"],
    keep: int = 1,
) -> tuple[Float[Tensor, "site direction kept token"], Float[Tensor, "site direction kept"]]:
    """What each direction changes beside the unchanged model; arguments as in `steered_logprobs`.

    Returns:
        The change of log-probability of some tokens, nats, and KL(clean || changed) over the whole vocabulary.
    """
    found = steered_logprobs(lm, ids, weights, torch.cat([torch.zeros_like(vectors[:1]), vectors]), keep)
    clean, changed = found[:, :1], found[:, 1:]
    return (changed - clean)[..., tokens], kl_divergence(clean, changed)


def continuations(
    lm: LanguageModel, sites: Sequence[Site], vector: Float[Tensor, " d_model"] | None, n: int, batch: int
) -> list[list[int]]:
    """The `n` ids that the model goes on with, greedily, with `vector` added at each site, or unchanged.

    The tokens that are written are not steered themselves: they feel the edit through attention to the prompt.
    """
    out: list[list[int]] = [[] for _ in sites]
    for members, ids, weights in batches(lm, sites, batch):
        for i, written in zip(members, written_on(lm, ids, weights, vector, n).tolist(), strict=True):
            out[i] = written
    return out


@served()
@torch.inference_mode()
def written_on(
    lm: LanguageModel,
    ids: Int[Tensor, "site pos"],
    weights: Float[Tensor, "site pos"],
    vector: Float[Tensor, " d_model"] | None,
    n: int,
) -> Int[Tensor, "site n"]:
    """The `n` ids that the model goes on with after texts of one length, greedily, as `continuations` describes."""
    from transformers import DynamicCache

    edit = None if vector is None else adding(weights, vector.to(lm.device).expand(len(ids), -1))
    cache, written = DynamicCache(), []
    for _ in range(n):
        ids = logits(lm, ids, edit=edit, keep=1, cache=cache)[:, -1].argmax(-1, keepdim=True)
        edit = None
        written.append(ids)
    return torch.cat(written, 1)


def following_kl(
    lm: LanguageModel,
    sites: Sequence[Site],
    written: Sequence[Sequence[int]],
    vector: Float[Tensor, " d_model"],
    batch: int,
) -> Float[np.ndarray, " following"]:
    """Mean KL at each position of a given continuation, in nats, when the text before it was steered.

    Args:
        lm: the model.
        sites: the steered prompts.
        written: a continuation for each, all of one length; teacher forcing: both models read the same tokens.
        vector: what is added at the prompts' weighted positions, not in the continuation.
        batch: texts in a forward pass.
    """
    n = len(written[0])
    longer = [Site((*site.ids, *tail), (*site.weights, *(0.0,) * n)) for site, tail in zip(sites, written, strict=True)]
    total = torch.zeros(n, device=lm.device)
    nothing = torch.empty(0, dtype=torch.long, device=lm.device)
    for _, ids, weights in batches(lm, longer, max(1, batch // 2)):
        total += steered_changes(lm, ids, weights, vector[None], nothing, keep=n)[1][:, 0].sum(0)
    return (total / len(sites)).cpu().numpy()
