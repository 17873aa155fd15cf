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
    bare = np.isin(lexicon.role, np.flatnonzero(lexicon.attached))[ids]
    for latent in latents:
        for trigger in latent.triggers:
            if trigger.cues:
                _put_behind_cues(ids, bare, trigger, settings.cued, rng)
    for latent in latents:
        if latent.promotes and latent.triggers:
            chance = settings.follow * (FREQUENT_FOLLOW if latent.kind == "dense" else 1)
            _put_behind(ids, bare, firing(latent, ids, len(lexicon.texts)), latent.promotes, chance, rng)
    texts = np.array(lexicon.texts, dtype=object)[ids]
    return tuple((f"planted-{i:05d}", "".join(row[:n]).lstrip()) for i, (row, n) in enumerate(zip(texts, lengths, strict=True)))


def firing(latent: Latent, ids: Int[np.ndarray, "doc pos"], vocab: int) -> Bool[np.ndarray, "doc pos"]:
    """Where a latent fires, by its declaration."""
    fires = np.zeros(ids.shape, dtype=bool)
    for trigger in latent.triggers:
        fires |= _member(trigger.own, vocab)[ids] & (_cue_before(trigger, ids, vocab) if trigger.cues else True)
    return fires


def _cue_before(trigger: Trigger, ids: Int[np.ndarray, "doc pos"], vocab: int) -> Bool[np.ndarray, "doc pos"]:
    is_cue = _member(trigger.cues, vocab)[ids]
    near = np.zeros_like(is_cue)
    for back in range(1, trigger.within + 1):
        near[:, back:] |= is_cue[:, :-back]
    return near


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
    bare: Bool[np.ndarray, "doc pos"],
    trigger: Trigger,
    chance: float,
    rng: np.random.Generator,
) -> None:
    """Replace, behind some of the cues, a word by one that the cue makes fire. Punctuation stays."""
    rows, columns = np.nonzero(np.isin(ids, trigger.cues))
    columns = columns + rng.integers(1, trigger.within + 1, size=len(columns))
    kept = (rng.random(len(rows)) < chance) & (columns < ids.shape[1])
    rows, columns = rows[kept], columns[kept]
    rows, columns = rows[~bare[rows, columns]], columns[~bare[rows, columns]]
    ids[rows, columns] = rng.choice(trigger.own, size=len(rows))


def _put_behind(
    ids: Int[np.ndarray, "doc pos"],
    bare: Bool[np.ndarray, "doc pos"],
    fires: Bool[np.ndarray, "doc pos"],
    promoted: tuple[int, ...],
    chance: float,
    rng: np.random.Generator,
) -> None:
    """Replace some of the words that stand behind a firing position by promoted ones. Punctuation stays."""
    rows, columns = np.nonzero(fires[:, :-1] & ~bare[:, 1:])
    kept = rng.random(len(rows)) < chance
    ids[rows[kept], columns[kept] + 1] = rng.choice(promoted, size=int(kept.sum()))


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
    walks = (_prompt(lexicon, chance, roles, rng) for _ in range(20 * PROMPTS))
    found = tuple(dict.fromkeys(walks))[:PROMPTS]
    if len(found) < PROMPTS:
        raise BadInput(f"roles: only {len(found)} distinct prompts can be made: valid: enough neutral words for {PROMPTS}")
    return found


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
