"""Neutral prompts: beginnings of sentences on which a feature's effect on the next token is measured."""

from functools import cache

from mikit import paths, strict_yaml
from mikit.errors import BadInput
from mikit.files import value_hash
from mikit.targets.base import Target
from mikit.trace import SPLITS, Split

PROMPTS_A_SPLIT = 16


def neutral_prompts(target: Target, split: Split) -> list[list[int]]:
    """The content ids of a split's 16 prompts: the target's own, or those of `params/prompts.yaml`.

    Raises:
        BadInput: the file does not hold 16 prompts a split.
    """
    return [target.ids_of(text) for text in _texts(target)[split]]


def prompts_hash(target: Target) -> str:
    """Of all prompts with their splits."""
    return value_hash(_texts(target))


def _texts(target: Target) -> dict[Split, tuple[str, ...]]:
    own = target.own_prompts
    if own is None:
        return english_prompts()
    return {split: own[i * PROMPTS_A_SPLIT : (i + 1) * PROMPTS_A_SPLIT] for i, split in enumerate(SPLITS)}


@cache
def english_prompts() -> dict[Split, tuple[str, ...]]:
    """The prompts in the params folder, by split.

    Raises:
        BadInput: a split has other than 16 prompts, or one occurs twice.
    """
    path = paths.params() / "prompts.yaml"
    given = strict_yaml.read_mapping(path)
    prompts = {split: tuple(given.get(split) or ()) for split in SPLITS}
    texts = [text for split in SPLITS for text in prompts[split]]
    if any(len(prompts[split]) != PROMPTS_A_SPLIT for split in SPLITS) or len(set(texts)) < len(texts):
        raise BadInput(f"{path}: valid: {PROMPTS_A_SPLIT} different prompts under each of {', '.join(SPLITS)}")
    return prompts
