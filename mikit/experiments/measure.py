"""What scores and checks are computed from: the feature and its controls steered, or ablated, once for each split."""

from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int

from mikit.evidence.vocabulary import Vocabulary
from mikit.experiments.directions import control_directions, stack
from mikit.experiments.setting import Setting
from mikit.experiments.steering import Site, ablation_sites, changes, prompt_sites
from mikit.targets.state import state_of
from mikit.trace import Intervention, LensToken, Observation, Split

MOST_POSITIONS = 32
"""Firing positions that are ablated at most."""


@dataclass(frozen=True)
class Measurement:
    """Changes of log-probability, nats, by prompt, of the eligible tokens: difference first, no mean taken yet."""

    tokens: Int[np.ndarray, " token"]
    """The ids of the last axis."""
    doses: Float[np.ndarray, "dose prompt token"]
    """The feature at each dose of the protocol."""
    controls: Float[np.ndarray, "control prompt token"]
    """Each control at the norm of the scoring dose."""
    names: tuple[str, ...]
    """Of the controls."""
    scoring: int
    """Index of the scoring dose."""

    @property
    def scored(self) -> Float[np.ndarray, "prompt token"]:
        """The feature at the scoring dose."""
        return self.doses[self.scoring]


def eligible_ids(setting: Setting) -> Int[np.ndarray, " token"]:
    """Ids of the tokens that output scores look at."""
    return np.flatnonzero(setting.vocabulary.eligible(setting.protocol.min_token_count))


def measure(
    setting: Setting, feature: int, observation: Observation, intervention: Intervention, split: Split
) -> Measurement:
    """What the feature and its controls do on the prompts of a split.

    It is kept, as scores and checks look at the same; each caller gets a copy of its own.
    """
    drawn = tuple(observation.neighbours)
    state = state_of(setting.target)
    return deepcopy(_measure(state, setting, feature, observation.ref, drawn, intervention.scoring_dose, split))


@lru_cache(maxsize=4)
def _measure(
    _state: Hashable,
    setting: Setting,
    feature: int,
    ref: float,
    neighbours: tuple[int, ...],
    scoring_dose: float,
    split: Split,
) -> Measurement:
    protocol, own = setting.protocol, setting.target.sae.W_dec[feature]
    controls = control_directions(setting, feature, neighbours)
    vectors = torch.cat(
        [ref * torch.tensor(protocol.doses).to(own)[:, None] * own, scoring_dose * ref * stack(own, controls)[1:]]
    )
    tokens = eligible_ids(setting)
    sites = prompt_sites(setting.prompts[split], protocol.position)
    found = changes(setting.target, sites, vectors, tokens, setting.batch).logprob
    n_doses = len(protocol.doses)
    names = tuple(control.name for control in controls)
    return Measurement(tokens, found[:n_doses], found[n_doses:], names, protocol.doses.index(scoring_dose))


@dataclass(frozen=True)
class Ablation:
    """Changes of log-probability, nats, of the token after a firing position; each position is of another document."""

    tokens: Int[np.ndarray, " token"]
    """The ids of the last axis."""
    own: Float[np.ndarray, "position token"]
    """The feature's own contribution is subtracted wherever it fires in the text."""
    controls: Float[np.ndarray, "control position token"]
    """A control of the same norm is subtracted there instead."""
    names: tuple[str, ...]
    """Of the controls."""


def ablate(setting: Setting, feature: int, observation: Observation, split: Split) -> Ablation:
    """What the next token misses when the feature's contribution is subtracted; kept like `measure`."""
    return deepcopy(_ablate(state_of(setting.target), setting, feature, tuple(observation.neighbours), split))


@lru_cache(maxsize=4)
def _ablate(_state: Hashable, setting: Setting, feature: int, neighbours: tuple[int, ...], split: Split) -> Ablation:
    controls = control_directions(setting, feature, neighbours)
    vectors = stack(setting.target.sae.W_dec[feature], controls)
    tokens = eligible_ids(setting)
    sites = firing_sites(setting, feature, split)
    found = changes(setting.target, sites, vectors, tokens, setting.batch).logprob
    return Ablation(tokens, found[0], found[1:], tuple(control.name for control in controls))


def firing_windows(setting: Setting, feature: int, split: Split) -> Int[np.ndarray, " window"]:
    """Windows of a split in which the feature fires: one a document, `MOST_POSITIONS` at most, drawn by seed."""
    return setting.drawn_from.firings(feature).window[_firing(setting, feature, split)]


def _firing(setting: Setting, feature: int, split: Split) -> Int[np.ndarray, " firing"]:
    store, table = setting.drawn_from, setting.drawn_from.table
    firings = store.firings(feature)
    fires = (firings.peak >= store.tau(feature)) & table.in_split(split)[firings.window]
    order = np.random.default_rng([setting.seed, feature, 1]).permutation(np.flatnonzero(fires))
    _, first = np.unique(table.document[firings.window[order]], return_index=True)
    return order[np.sort(first)][:MOST_POSITIONS]


def firing_sites(setting: Setting, feature: int, split: Split) -> list[Site]:
    """These windows up to the token on which the feature peaks, at tau or above.

    What is subtracted are the activations of the evidence, so that special and massive tokens are left alone.

    Returns:
        At most `MOST_POSITIONS` sites.
    """
    store, chosen = setting.drawn_from, _firing(setting, feature, split)
    firings = store.firings(feature)
    windows, stops = firings.window[chosen], firings.peak_index[chosen] + 1
    acts = store.activations(feature, windows)
    return ablation_sites(
        [store.table.text(window)[:stop] for window, stop in zip(windows, stops, strict=True)],
        [row[:stop] for row, stop in zip(acts, stops, strict=True)],
    )


def lens_tokens(
    vocabulary: Vocabulary, ids: Int[np.ndarray, " token"], values: Float[np.ndarray, " token"]
) -> list[LensToken]:
    """Tokens with a value each, in the order given."""
    return [
        LensToken(id=int(i), token=vocabulary.texts[i], value=float(value))
        for i, value in zip(ids, values, strict=True)
    ]


def most_moved(effect: Float[np.ndarray, " token"], n: int) -> Int[np.ndarray, " rank"]:
    """Indices of the `n` largest effects, largest first; of equal ones the earlier."""
    return np.argsort(-effect, kind="stable")[:n]
