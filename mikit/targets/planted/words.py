"""The words of the language: their ids, and how often one follows another."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mikit.errors import BadInput, one_of
from mikit.targets.planted.spec import Spec

BOS, UNKNOWN = "<bos>", "<unk>"
SPECIALS = (BOS, UNKNOWN)
WORD = re.compile(r"[A-Za-z]+|[0-9]+")
SIGN = re.compile(r"[^\sA-Za-z0-9]")
PIECE = r" ?[A-Za-z]+| ?[0-9]+|[^\sA-Za-z0-9]"
"""What a text is cut into; a word keeps the space before it."""


@dataclass(frozen=True)
class Lexicon:
    """All words. Index = token id; the first ids are the special tokens."""

    texts: tuple[str, ...]
    """Token texts, with the leading space of a word."""
    roles: tuple[str, ...]
    role: Int[np.ndarray, " vocab"]
    """Index of each word's role; -1 for special tokens."""
    attached: tuple[bool, ...]
    """By role."""
    chance: Float[np.ndarray, " vocab"]
    """Of each word, given its role; 0 for special tokens."""
    follows: Float[np.ndarray, "role next"]
    """Chance of each role, given the role before. The role `stop`, or the first one, also precedes a text."""
    classes: dict[str, tuple[int, ...]]
    """Ids by class."""
    neutral: frozenset[str]
    """Classes that fire nothing but their role."""

    @cached_property
    def id_of(self) -> dict[str, int]:
        """Id by word, without its space."""
        return {text.strip(): i for i, text in enumerate(self.texts) if text not in SPECIALS}

    @cached_property
    def start(self) -> int:
        """The role that precedes a text."""
        return self.roles.index("stop") if "stop" in self.roles else 0

    @cached_property
    def role_share(self) -> Float[np.ndarray, " role"]:
        """Share of each role in a long text: the stationary distribution of `follows`."""
        share = np.full(len(self.roles), 1 / len(self.roles))
        for _ in range(200):
            share = share @ self.follows
        return share

    def ids(self, names: Iterable[str], where: str) -> tuple[int, ...]:
        """The ids of classes and words, ascending.

        Raises:
            BadInput: a name is neither a class nor a word.
        """
        found: set[int] = set()
        for name in names:
            if name in self.classes:
                found.update(self.classes[name])
            elif name in self.id_of:
                found.add(self.id_of[name])
            else:
                near = [word for word in self.id_of if word[:2] == name[:2]][:5]
                raise BadInput(f"{where}: {one_of('word or class', name, [*self.classes, *near])}")
        return tuple(sorted(found))


def lexicon_of(spec: Spec) -> Lexicon:
    """The words of a spec, classes in the order in which they are given.

    Raises:
        BadInput: a word or class is given twice, is no word, or a role is not known.
    """
    texts, role, weight = list(SPECIALS), [-1] * len(SPECIALS), [0.0] * len(SPECIALS)
    classes: dict[str, tuple[int, ...]] = {}
    neutral = set()
    for index, (role_name, part) in enumerate(spec.roles.items()):
        for name, words in part.classes.items():
            if name in classes:
                raise BadInput(f"class {name!r} is given twice: valid: a name of its own for each class")
            if part.neutral or words.neutral:
                neutral.add(name)
            classes[name] = tuple(range(len(texts), len(texts) + len(words.words)))
            texts += [word if part.attached else f" {word}" for word in words.words]
            role += [index] * len(words.words)
            weight += [words.weight] * len(words.words)
            _check_words(name, words.words, role_name)
    _check_distinct(texts, classes)
    roles = tuple(spec.roles)
    shares, role_of = np.array(weight), np.array(role)
    for index in range(len(roles)):
        shares[role_of == index] /= shares[role_of == index].sum()
    attached = tuple(part.attached for part in spec.roles.values())
    return Lexicon(tuple(texts), roles, role_of, attached, shares, _transitions(spec), classes, frozenset(neutral))


def _check_words(name: str, words: tuple[str, ...], role: str) -> None:
    for word in words:
        if not (WORD.fullmatch(word) or SIGN.fullmatch(word)):
            raise BadInput(f"class {name!r} of role {role!r}: {word!r} is no word: valid: letters, digits, or one sign")


def _check_distinct(texts: list[str], classes: dict[str, tuple[int, ...]]) -> None:
    owner: dict[str, str] = {}
    for name, ids in classes.items():
        for word in (texts[i].strip() for i in ids):
            if word in owner:
                raise BadInput(
                    f"word {word!r} is in class {owner[word]!r} and in class {name!r}: valid: one class a word"
                )
            owner[word] = name
    for name in classes:
        if name in owner:
            raise BadInput(f"{name!r} is a class and a word of class {owner[name]!r}: valid: one meaning a name")


def _transitions(spec: Spec) -> Float[np.ndarray, "role next"]:
    roles = list(spec.roles)
    chances = np.zeros((len(roles), len(roles)))
    for index, (name, part) in enumerate(spec.roles.items()):
        for following, chance in part.next.items():
            if following not in roles:
                raise BadInput(f"role {name!r}, next: {one_of('role', following, roles)}")
            chances[index, roles.index(following)] = chance
    if (chances < 0).any() or (chances.sum(1) <= 0).any():
        raise BadInput("roles: the chances of the next role are negative or all 0")
    return chances / chances.sum(1, keepdims=True)


def tokenizer_of(texts: tuple[str, ...]) -> Any:
    """A word-level tokenizer: an id is a word with the space before it, and decoding puts texts end to end.

    A word at the start of a text is read as if a space stood before it.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({text: i for i, text in enumerate(texts)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace(Regex(r"\A(?=\w)"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, unk_token=UNKNOWN, clean_up_tokenization_spaces=False
    )
