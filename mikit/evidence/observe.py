"""What a writer is shown of a feature: where it fires, where it is silent though it might, and what it points to."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mikit.evidence.store import EvidenceStore
from mikit.settings import Protocol
from mikit.targets.anatomy import through_final_norm
from mikit.targets.base import LanguageModel, Target
from mikit.targets.remote.served import served
from mikit.trace import SPLITS, FeatureKind, LensToken, Observation, Split, Window

DEAD_TOKENS = 40_000
"""A latent that is silent on fewer content tokens than this is not called dead yet."""
SHOWN = {"top": 32, "quantile": 64, "silent_trigger": 48, "silent_random": 48}
"""Windows of each kind at most."""
LENS_TOKENS = 15
LENS_ROWS = 1 << 16
"""Rows of the unembedding in float32 at once: in half precision a copy of all of them may not fit."""
MORE_NEIGHBOURS = 12
"""Neighbours listed beyond those that specificity needs: some are dropped later, such as controls."""

Kind = Literal["top", "quantile", "silent_trigger", "silent_random"]
Rows = Int[np.ndarray, " n"]


def observe(target: Target, store: EvidenceStore, feature: int, protocol: Protocol, seed: int) -> Observation:
    """Step 1: the windows of `explain` that a writer is shown, and the feature's scale.

    Args:
        target: the store's target.
        store: where its latents fire.
        feature: the latent.
        protocol: limits of the kinds of feature, and how many neighbours are compared.
        seed: of what is drawn; the same seed draws the same windows.

    Raises:
        BadInput: there is no such latent.
    """
    target.check_feature(feature)
    shown = choose_windows(store, feature, np.random.default_rng([seed, feature]))
    chosen = [(kind, int(window)) for kind, windows in shown.items() for window in windows]
    acts = store.activations(feature, [window for _, window in chosen])
    promoted, suppressed = logit_lens(target, feature)
    neighbours, cosines = nearest_live(target, store, feature, protocol)
    return Observation(
        source="corpus",
        corpus=store.corpus_name,
        tokens_read=store.tokens_read,
        feature_kind=feature_kind(store, feature, protocol),
        ref=store.ref(feature),
        tau=store.tau(feature),
        density=store.density(feature),
        firing_windows=int(store.firing_counts[feature]),
        n_windows=store.n_windows,
        bos_activation=store.bos_max(feature),
        windows=[
            _window(target, store, kind, window, values) for (kind, window), values in zip(chosen, acts, strict=True)
        ],
        promoted=promoted,
        suppressed=suppressed,
        neighbours=neighbours,
        neighbour_cosines=cosines,
    )


def feature_kind(store: EvidenceStore, feature: int, protocol: Protocol) -> FeatureKind:
    """What can be said of a feature at all, given where it fires."""
    if not len(store.firings(feature).window):
        if store.bos_max(feature) > 0:
            return "special_only"
        return "dead" if store.tokens_read >= DEAD_TOKENS else "rare"
    if store.firing_counts[feature] < protocol.rare_windows:
        return "rare"
    return "dense" if store.firing_counts[feature] > protocol.dense_share * store.n_windows else "normal"


def choose_windows(store: EvidenceStore, feature: int, rng: np.random.Generator) -> dict[Kind, Rows]:
    """The windows of `explain` to show: the strongest, others even over the quantiles of the activation, silent ones.

    Args:
        store: where the feature fires.
        feature: the latent.
        rng: of what is drawn.
    """
    explain, peaks = store.table.in_split("explain"), store.peaks(feature)
    active = np.flatnonzero(explain & (peaks > 0))
    top = active[np.argsort(-peaks[active], kind="stable")][: SHOWN["top"]]
    firing = np.flatnonzero(explain & fires(store, feature, peaks))
    silent = explain & ~fires(store, feature, peaks)
    triggers = trigger_counts(store, feature, firing)
    holding = _holding_triggers(store, np.flatnonzero(silent), triggers, SHOWN["silent_trigger"], rng)
    silent[holding] = False
    return {
        "top": top,
        "quantile": even_over_quantiles(np.setdiff1d(firing, top), peaks, SHOWN["quantile"], rng),
        "silent_trigger": holding,
        "silent_random": _some(np.flatnonzero(silent), SHOWN["silent_random"], rng),
    }


def fires(store: EvidenceStore, feature: int, peaks: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Which peaks are firings: at least tau, which a latent that is silent on `explain` does not have."""
    tau = store.tau(feature)
    return (peaks >= tau) & (tau > 0)


def trigger_counts(store: EvidenceStore, feature: int, windows: Rows) -> Counter[int]:
    """How often each token is the one at the peak of these windows."""
    firings = store.firings(feature)
    rows = np.flatnonzero(np.isin(firings.window, windows))
    return Counter(store.table.ids[firings.window[rows], firings.peak_index[rows]].tolist())


def even_over_quantiles(windows: Rows, peaks: Float[np.ndarray, " all"], n: int, rng: np.random.Generator) -> Rows:
    """Of some windows `n`, one at random from each of `n` equally large groups by peak; strongest first."""
    ordered = windows[np.argsort(-peaks[windows], kind="stable")]
    if len(ordered) <= n:
        return ordered
    edges = np.linspace(0, len(ordered), n + 1).astype(int)
    return ordered[rng.integers(edges[:-1], edges[1:])]


def _holding_triggers(
    store: EvidenceStore, silent: Rows, triggers: Counter[int], n: int, rng: np.random.Generator
) -> Rows:
    """Silent windows that hold a trigger token, each token's share of them like its share of the peaks."""
    ids, taken = store.table.ids[silent], np.zeros(len(silent), bool)
    for token, count in triggers.most_common():
        left = n - int(taken.sum())
        if not left:
            break
        quota = min(left, int(np.ceil(n * count / triggers.total())))
        taken[_some(np.flatnonzero((ids == token).any(axis=1) & ~taken), quota, rng)] = True
    rest = np.flatnonzero(np.isin(ids, list(triggers)).any(axis=1) & ~taken)
    taken[_some(rest, n - int(taken.sum()), rng)] = True
    return rng.permutation(silent[taken])


def _some(rows: Rows, n: int, rng: np.random.Generator) -> Rows:
    return rng.permutation(rows)[:n]


@dataclass(frozen=True)
class NaturalWindows:
    """Windows of one split on which a prediction is tried: recall on those that fire, precision beside those that don't."""

    firing: Int[np.ndarray, " n"]
    """Even over the quantiles of the activation."""
    silent: Int[np.ndarray, " m"]
    """Half of them hold a trigger token, as far as there are such windows."""


def natural_windows(
    store: EvidenceStore,
    latent: int,
    split: Split,
    n: int,
    protocol: Protocol,
    trigger_ids: Sequence[int],
    seed: int,
) -> NaturalWindows:
    """Up to `n` firing and `n` silent windows of a split.

    Args:
        store: where the latent fires.
        latent: its index.
        split: any.
        n: windows of each sort.
        protocol: fixes what fires: tau is stored under it.
        trigger_ids: tokens that may set the feature off.
        seed: of what is drawn.
    """
    rng = np.random.default_rng([seed, latent, SPLITS.index(split)])
    peaks, here = store.peaks(latent), store.table.in_split(split)
    firing = fires(store, latent, peaks)
    silent = here & ~firing
    holds = store.table.holding(trigger_ids)
    with_trigger = _some(np.flatnonzero(silent & holds), n // 2, rng)
    without = _some(np.flatnonzero(silent & ~holds), n - len(with_trigger), rng)
    return NaturalWindows(
        even_over_quantiles(np.flatnonzero(here & firing), peaks, n, rng), np.concatenate([with_trigger, without])
    )


def _window(target: Target, store: EvidenceStore, kind: Kind, window: int, acts: Float[np.ndarray, " pos"]) -> Window:
    ids = store.table.text(window)
    acts = acts[: len(ids)]
    peak_index = int(acts.argmax())
    return Window(
        kind=kind,
        document=store.table.document_of(window),
        split=store.table.split_of(window),
        start=int(store.table.start[window]),
        ids=ids,
        tokens=target.token_strings(ids),
        activations=acts.tolist(),
        peak=float(acts[peak_index]),
        peak_index=peak_index,
    )


def logit_lens(target: Target, feature: int) -> tuple[list[LensToken], list[LensToken]]:
    """The printable tokens whose logits the decoder direction raises and lowers most: W_U (w * W_dec[f]).

    `w` is the scale of the final norm; logits are not soft-capped, which keeps their order. A direct reading: blocks between the hook point and the end are left out
    (nostalgebraist 2020, "interpreting GPT: the logit lens").
    """
    scores = direct_effect(target, target.sae.W_dec[feature])
    return _first_printable(target, scores, scores.argsort(descending=True)), _first_printable(
        target, scores, scores.argsort()
    )


@served()
@torch.inference_mode()
def direct_effect(lm: LanguageModel, direction: Float[Tensor, " d_model"]) -> Float[Tensor, " vocab"]:
    """What a direction of the residual stream adds to each logit by itself, up to the scale of the final norm."""
    direction = through_final_norm(lm.model, direction)
    parts = lm.model.get_output_embeddings().weight.split(LENS_ROWS)
    return torch.cat([part.float() @ direction for part in parts])


def _first_printable(target: Target, scores: Float[Tensor, " vocab"], order: Int[Tensor, " vocab"]) -> list[LensToken]:
    found: list[LensToken] = []
    for i in order.tolist():
        text = target.token_strings([i])[0]
        if i not in target.special_ids and text.strip() and text.isprintable() and "\ufffd" not in text:
            found.append(LensToken(id=i, token=text, value=float(scores[i])))
        if len(found) == LENS_TOKENS:
            break
    return found


def nearest_live(
    target: Target, store: EvidenceStore, feature: int, protocol: Protocol
) -> tuple[list[int], list[float]]:
    """Latents that fire often enough to be judged, by decoder cosine with the feature, nearest first, with the cosines."""
    live = store.live(protocol.rare_windows)
    live = live[live != feature]
    rows = torch.nn.functional.normalize(target.sae.W_dec, dim=1)
    cosines = (rows[torch.as_tensor(live)] @ rows[feature]).cpu().numpy()
    nearest = np.argsort(-cosines, kind="stable")[: protocol.n_neighbours + MORE_NEIGHBOURS]
    return live[nearest].tolist(), cosines[nearest].tolist()
