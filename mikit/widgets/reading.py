"""A typed text with the feature's activation at each of its tokens: one pass up to the hook point, one encoder column."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

from mikit.experiments.activation import text_activations
from mikit.targets.base import LanguageModel, Target
from mikit.viz import tokens_html, visible
from mikit.viz.tokens import KEY
from mikit.viz.windows import Html

LONGEST = 128
"""Content tokens of a typed text that are read."""


@dataclass(frozen=True)
class Reading:
    """A text as the feature sees it."""

    tokens: tuple[str, ...]
    activations: Float[np.ndarray, " token"]
    """-1 at a position of massive norm, which is left out."""
    unknown: int
    """Words that the model's vocabulary lacks: they are dropped."""
    cut: int
    """Tokens beyond the longest text that is read."""


def read_text(target: Target, feature: int, text: str) -> Reading:
    """The feature's activations in a text; none where the text has no token.

    Raises:
        BadInput: there is no such latent.
    """
    target.check_feature(feature)
    ids = target.ids_of(text)
    shown = ids[:LONGEST]
    values = text_activations(target, [feature], [shown], 1)[0][:, 0] if shown else np.zeros(0, np.float32)
    return Reading(tuple(target.token_strings(shown)), values, unknown_words(target, text), len(ids) - len(shown))


def unknown_words(lm: LanguageModel, text: str) -> int:
    """How many tokens of a text are special, and so are never read: unknown words, or a special token written out."""
    ids = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    return sum(i in lm.special_ids for i in ids)


def reading_html(reading: Reading, tau: float, ref: float) -> Html:
    """The text with its activations, under what they amount to in words."""
    body = tokens_html(
        reading.tokens, reading.activations.tolist(), tau, ref or float(reading.activations.max(initial=0))
    )
    line = Markup('<div style="{}">{}</div>').format(KEY, _said(reading, tau, ref))
    return Html(Markup("<div>{}{}</div>").format(line, body))


def _said(reading: Reading, tau: float, ref: float) -> str:
    notes = ""
    if reading.unknown:
        notes += f" {reading.unknown} unknown or special {'words are' if reading.unknown > 1 else 'word is'} left out."
    if reading.cut:
        notes += f" The last {reading.cut} tokens are not read: {LONGEST} at most are."
    if not reading.tokens:
        return f"Type a text: there is no token to read yet.{notes}"
    values = reading.activations
    peak, where = float(values.max()), int(values.argmax())
    if peak <= 0:
        return f"Silent on all {len(values)} tokens.{notes}"
    fires = f"fires at {int((values >= tau).sum())}" if tau > 0 else "has no threshold yet, and is active at"
    shares = f", {peak / ref:.2g} x ref" if ref > 0 else ""
    token = visible(reading.tokens[where]).strip() or "a space"
    return f"It {fires} of {len(values)} tokens; strongest on “{token}” with {peak:.3g}{shares}.{notes}"
