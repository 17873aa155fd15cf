"""Texts of the language: documents drawn from its class bigram model, with features acting as they do in the model."""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Int

from mikit.errors import BadInput
from mikit.targets.planted.features import Latent, Trigger
from mikit.targets.planted.spec import Documents
from mikit.targets.planted.words import Lexicon

PROMPTS = 48
PROMPT_WORDS = (4, 12)
FREQUENT_FOLLOW = 0.15
"""Share of `follow` behind words of a dense feature, which would else be followed by little else."""


def documents_of(
    lexicon: Lexicon, latents: tuple[Latent, ...], settings: Documents, seed: int
) -> tuple[tuple[str, str], ...]:
    """Id and text of each document."""
    rng = np.random.default_rng([seed, 6])
    lengths = rng.integers(settings.shortest, settings.longest + 1, size=settings.count)
    ids = _words(lexicon, _roles(lexicon, settings.count, settings.longest, rng), rng)
    bare = np.append(lexicon.attached, False)[lexicon.role]
    for latent in latents:
        for trigger in latent.triggers:
            if trigger.cues:
                _put_behind_cues(ids, bare, trigger, settings.cued, rng)
    places = _by_word(ids, len(lexicon.texts))
    for latent in latents:
        if latent.promotes:
            chance = settings.follow * (FREQUENT_FOLLOW if latent.kind == "dense" else 1)
            for trigger in latent.triggers:
                _put_behind(ids, bare, _firing(trigger, ids, places), latent.promotes, chance, rng)
    texts = np.array(lexicon.texts, dtype=object)[ids]
    return tuple(
        (f"planted-{i:05d}", "".join(row[:n]).lstrip()) for i, (row, n) in enumerate(zip(texts, lengths, strict=True))
    )


def _by_word(ids: Int[np.ndarray, "doc pos"], vocab: int) -> list[Int[np.ndarray, " place"]]:
    """For each word, where it stands: indices into the flattened documents."""
    flat = ids.ravel()
    order = np.argsort(flat, kind="stable")
    return np.split(order, np.searchsorted(flat[order], np.arange(1, vocab)))


def _firing(
    trigger: Trigger, ids: Int[np.ndarray, "doc pos"], places: list[Int[np.ndarray, " place"]]
) -> Int[np.ndarray, " place"]:
    """Where a trigger holds."""
    own = np.concatenate([places[word] for word in trigger.own])
    if not trigger.cues:
        return own
    is_cue, column = _member(trigger.cues, len(places))[ids.ravel()], own % ids.shape[1]
    near = [(column >= back) & is_cue[own - back] for back in range(1, trigger.within + 1)]
    return own[np.any(near, axis=0)]


def _member(ids: Iterable[int], vocab: int) -> Bool[np.ndarray, " vocab"]:
    mask = np.zeros(vocab, dtype=bool)
    mask[list(ids)] = True
    return mask


def _roles(lexicon: Lexicon, count: int, length: int, rng: np.random.Generator) -> Int[np.ndarray, "doc pos"]:
    """A Markov chain of roles for each document."""
    steps = lexicon.follows.cumsum(1)[:, :-1]
    roles = np.empty((count, length), dtype=np.int64)
    role = np.full(count, lexicon.start)
    for position, draw in enumerate(rng.random((length, count))):
        role = (draw[:, None] > steps[role]).sum(1)
        roles[:, position] = role
    return roles


def _words(lexicon: Lexicon, roles: Int[np.ndarray, "doc pos"], rng: np.random.Generator) -> Int[np.ndarray, "doc pos"]:
    """A word of each role, by its chance."""
    ids = np.empty_like(roles)
    draws = rng.random(roles.shape)
    for role in range(len(lexicon.roles)):
        at = roles == role
        members = np.flatnonzero(lexicon.role == role)
        steps = lexicon.chance[members].cumsum()[:-1]
        ids[at] = members[np.searchsorted(steps, draws[at], side="right")]
    return ids


def _put_behind_cues(
    ids: Int[np.ndarray, "doc pos"],
    bare: Bool[np.ndarray, " vocab"],
    trigger: Trigger,
    chance: float,
    rng: np.random.Generator,
) -> None:
    """Replace, behind some of the cues, a word by one that the cue makes fire. Signs stay."""
    cues = np.flatnonzero(_member(trigger.cues, len(bare))[ids.ravel()])
    cues = cues[rng.random(len(cues)) < chance]
    back = rng.integers(1, trigger.within + 1, size=len(cues))
    _replace(ids, bare, cues, back, rng.choice(trigger.own, size=len(cues)))


def _put_behind(
    ids: Int[np.ndarray, "doc pos"],
    bare: Bool[np.ndarray, " vocab"],
    fires: Int[np.ndarray, " place"],
    promoted: tuple[int, ...],
    chance: float,
    rng: np.random.Generator,
) -> None:
    """Replace some of the words that stand behind a firing position by promoted ones. Signs stay."""
    kept = fires[rng.random(len(fires)) < chance]
    _replace(ids, bare, kept, np.ones_like(kept), rng.choice(promoted, size=len(kept)))


def _replace(
    ids: Int[np.ndarray, "doc pos"],
    bare: Bool[np.ndarray, " vocab"],
    places: Int[np.ndarray, " place"],
    ahead: Int[np.ndarray, " place"],
    words: Int[np.ndarray, " place"],
) -> None:
    """Put words so far ahead of places, but never over a sign or the end of a document."""
    inside = places % ids.shape[1] + ahead < ids.shape[1]
    flat = ids.reshape(-1)
    there, words = (places + ahead)[inside], words[inside]
    kept = ~bare[flat[there]]
    flat[there[kept]] = words[kept]


def prompts_of(lexicon: Lexicon, latents: tuple[Latent, ...], seed: int) -> tuple[str, ...]:
    """Distinct neutral prompts: no word of theirs fires anything but the latent of its role and dense features.

    Raises:
        BadInput: the language has too few neutral words.
    """
    rng = np.random.default_rng([seed, 7])
    neutral = _member((i for name in lexicon.neutral for i in lexicon.classes[name]), len(lexicon.texts))
    for latent in latents:
        if latent.kind not in (None, "dense"):
            neutral[[*latent.own, *latent.faint]] = False
    chance = np.where(neutral, lexicon.chance, 0.0)
    share = np.array([chance[lexicon.role == role].sum() for role in range(len(lexicon.roles))])
    roles = (share > 0) & ~np.array(lexicon.attached)
    if not (lexicon.follows[lexicon.start] @ roles and (lexicon.follows[roles] @ roles).all()):
        raise BadInput("roles: no prompt can be made: valid: enough neutral words that a sentence of them goes on")
    found: dict[str, None] = {}
    for _ in range(20 * PROMPTS):
        if len(found) == PROMPTS:
            break
        found[_prompt(lexicon, chance, roles, rng)] = None
    if len(found) < PROMPTS:
        raise BadInput(
            f"roles: only {len(found)} distinct prompts can be made: valid: enough neutral words for {PROMPTS}"
        )
    return tuple(found)


def _prompt(lexicon: Lexicon, chance: np.ndarray, roles: np.ndarray, rng: np.random.Generator) -> str:
    """One walk through the roles that have neutral words; it never ends in punctuation."""
    role, words = lexicon.start, list[str]()
    length = rng.integers(PROMPT_WORDS[0], PROMPT_WORDS[1] + 1)
    while len(words) < length:
        weights = lexicon.follows[role] * roles
        role = rng.choice(len(weights), p=weights / weights.sum())
        in_role = np.where(lexicon.role == role, chance, 0.0)
        words.append(lexicon.texts[rng.choice(len(chance), p=in_role / in_role.sum())])
    return "".join(words).lstrip()
