"""One prompt steered: the next token and what the model goes on with, unchanged, along the feature, and at random."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from mikit.errors import BadInput
from mikit.experiments.steering import Site, continuations, kl_divergence, prompt_sites, steered_logprobs
from mikit.targets.base import Target
from mikit.targets.hooks import batch_of
from mikit.viz.explore import NextTokens
from mikit.widgets.reading import LONGEST

Position = Literal["last_token", "all_tokens"]
POSITIONS: dict[str, Position] = {"last token": "last_token", "all tokens": "all_tokens"}
N_LIKELY = 12
"""Tokens of each list in a figure."""
SMALLEST = 1e-4
"""A token that is less probable than this when steered is not listed as raised: of tiny probabilities the ratio is noise."""
LEAST = 1e-4
"""Nats below which a change is rounding: the rows of one pass differ by as much."""
STRONGEST = 100.0
"""Multiples of ref: beyond, nothing of the text is left."""
N_WRITTEN = 16
"""Tokens of a continuation."""


@dataclass(frozen=True, eq=False)
class Steering:
    """What is added to which text."""

    target: Target
    site: Site
    dose: float
    """In multiples of ref; below 0 it is subtracted."""
    position: Position
    vectors: Float[Tensor, "2 d_model"]
    """`dose * ref * W_dec[feature]`, and a random direction of the same norm."""

    @property
    def how(self) -> str:
        """What is added where, as a phrase."""
        return f"{self.dose:g} x ref at {'the last token' if self.position == 'last_token' else 'all tokens'}"


def steering(
    target: Target, feature: int, ref: float, prompt: str, dose: float, position: Position, seed: int
) -> Steering:
    """Steering of a prompt, checked.

    Args:
        target: model and SAE.
        feature: the latent.
        ref: its unit of strength.
        prompt: the text; the next token after it is looked at.
        dose: multiples of ref.
        position: where the direction is added.
        seed: of the random direction, together with the feature.

    Raises:
        BadInput: no such latent, dose or position, an empty or too long prompt, or a feature without a scale.
    """
    target.check_feature(feature)
    if not -STRONGEST <= dose <= STRONGEST:
        raise BadInput(f"dose = {dose}: valid: -{STRONGEST:g} to {STRONGEST:g} times ref")
    if position not in get_args(Position):
        raise BadInput(f"position = {position!r}: valid: {' or '.join(get_args(Position))}")
    ids = target.ids_of(prompt)
    if not ids:
        raise BadInput(f"prompt {prompt[:80]!r} has no token of this model: valid: a few words")
    if len(ids) > LONGEST:
        raise BadInput(f"prompt: {len(ids)} tokens: valid: {LONGEST} at most")
    if ref <= 0:
        raise BadInput(f"feature {feature} never fires in the evidence: there is no strength to steer it at")
    own = target.sae.W_dec[feature]
    drawn = torch.from_numpy(np.random.default_rng([seed, feature]).standard_normal(own.shape[0])).to(own)
    vectors = dose * ref * torch.stack([own, normalize(drawn, dim=0) * own.norm()])
    return Steering(target, prompt_sites([ids], position)[0], dose, position, vectors)


def next_tokens(given: Steering) -> NextTokens:
    """The next token after the prompt, unchanged, steered, and steered at random: one pass for all three."""
    target = given.target
    ids, _ = batch_of(target, [given.site.ids])
    weights = torch.tensor([(0.0, *given.site.weights)], device=target.device)
    with_clean = torch.cat([torch.zeros_like(given.vectors[:1]), given.vectors])
    found = steered_logprobs(target, ids, weights, with_clean)[0, :, 0].cpu()
    before, after, random = found.exp().numpy()
    change = (found[1:] - found[0]).numpy()
    top = np.union1d(_largest(before, N_LIKELY // 2 + 2), _largest(after, N_LIKELY // 2 + 2))
    likely = top[np.argsort(-after[top], kind="stable")]
    moved = _largest(np.where(after >= SMALLEST, change[0], -np.inf), N_LIKELY)
    moved = moved[change[0][moved] > LEAST]
    kl, random_kl = kl_divergence(found[0], found[1:]).tolist()
    return NextTokens(
        target.token_strings(likely.tolist()), before[likely], after[likely], random[likely],
        target.token_strings(moved.tolist()), change[0][moved], change[1][moved], kl, random_kl,
    )  # fmt: skip


def _largest(values: Float[np.ndarray, " vocab"], n: int) -> np.ndarray:
    return np.argsort(-values, kind="stable")[:n]


@dataclass(frozen=True)
class Written:
    """How the model goes on, greedily, from a prompt."""

    prompt: str
    unchanged: str
    steered: str
    random: str


def write_on(given: Steering, n: int = N_WRITTEN) -> Written:
    """The continuations; the tokens that are written are not steered themselves."""
    target = given.target
    texts = [target.text_of(continuations(target, [given.site], vector, n, 1)[0]) for vector in (None, *given.vectors)]
    return Written(target.text_of(given.site.ids).strip(), *texts)
