"""Tokens nearest to a trigger: its inflections, its cases, and words of its class.

The input embeddings of the explained model say which tokens are alike. They pick what a hypothesis is tested on; they
never judge what it predicts.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import chain, zip_longest

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from mikit.evidence.vocabulary import Vocabulary
from mikit.explainers.rules import normal
from mikit.targets.base import LanguageModel
from mikit.targets.remote.served import served

NEAREST = 10
MOST_TRIGGERS = 64
"""Of more trigger tokens the most frequent are looked at: a form covers thousands."""
STEM = 3
"""Letters at the beginning that two forms of one word share."""
ALIKE = 0.6
"""Least similarity of two forms of one word: twice the letters in common, of the letters of both."""


def nearest_tokens(
    lm: LanguageModel, vocabulary: Vocabulary, triggers: Sequence[int], candidates: Int[np.ndarray, " candidate"]
) -> list[int]:
    """The `NEAREST` of the candidates, in turn the next in spelling and the next in meaning; none of them a trigger.

    Args:
        lm: its input embeddings tell tokens of like class.
        vocabulary: texts and counts of its tokens.
        triggers: ids.
        candidates: ids to choose from, such as the tokens that occur.
    """
    others = np.setdiff1d(candidates, triggers)
    if not len(triggers) or not len(others):
        return []
    frequent = sorted(triggers, key=lambda i: -vocabulary.counts[i])[:MOST_TRIGGERS]
    spelling = by_spelling(vocabulary.texts, frequent, others)
    meaning = by_embedding(lm, frequent, others)
    in_turn = chain.from_iterable(zip_longest(spelling, meaning))
    return list(dict.fromkeys(i for i in in_turn if i is not None))[:NEAREST]


def by_spelling(texts: Sequence[str], triggers: Sequence[int], others: Int[np.ndarray, " other"]) -> list[int]:
    """Variants in case and spacing of a trigger, then other forms of its word, the most similar first."""
    same, forms = defaultdict(list), defaultdict(list)
    for i in triggers:
        word = normal(texts[i])
        same[word].append(word)
        if len(word) >= STEM and word[:STEM].isalpha():
            forms[word[:STEM]].append(word)
    similarity = {}
    for i in others.tolist():
        word = normal(texts[i])
        known = forms.get(word[:STEM], []) if word else []
        if word and word in same:
            similarity[i] = 2.0
        elif known:
            similarity[i] = max(SequenceMatcher(None, word, other, autojunk=False).ratio() for other in known)
    return sorted((i for i, value in similarity.items() if value >= ALIKE), key=lambda i: (-similarity[i], i))


@served()
@torch.inference_mode()
def by_embedding(lm: LanguageModel, triggers: Sequence[int], others: Int[np.ndarray, " other"]) -> list[int]:
    """By the largest cosine with a trigger, largest first, `NEAREST` at most.

    What all embeddings share is taken away: their mean, and one in a hundred of their principal directions, which tell
    frequent tokens from rare ones and would make frequent ones near to everything.

    Source: Mu and Viswanath, All-but-the-top: simple and effective postprocessing for word representations, 2018.
    """
    weights = lm.model.get_input_embeddings().weight
    rows, wanted = weights[torch.as_tensor(others)].float(), weights[torch.as_tensor(triggers)].float()
    centre = rows.mean(0)
    shared = torch.linalg.eigh((rows - centre).T @ (rows - centre)).eigenvectors[:, -math.ceil(rows.shape[1] / 100) :]

    def own(part: Float[Tensor, "token d_model"]) -> Float[Tensor, "token d_model"]:
        part = part - centre
        return normalize(part - part @ shared @ shared.T, dim=1)

    cosine = (own(rows) @ own(wanted).T).max(1).values
    order = cosine.argsort(descending=True, stable=True)[:NEAREST]
    return others[order.cpu().numpy()].tolist()
