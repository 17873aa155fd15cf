"""Text from a corpus, a model or a stranger as it is shown: no character that hides, reorders or breaks a line."""

import unicodedata
from functools import cache

UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories without a shape of their own: controls, formats, surrogates, private, unassigned, separators."""
JOINERS = {"\u200c", "\u200d"}
"""Format characters that scripts and emoji need and that move nothing."""
SYMBOLS = {"\n": "↵", "\r": "␍", "\t": "⇥", "\x7f": "␡"} | {
    chr(c): chr(0x2400 + c) for c in range(32) if c not in (9, 10, 13)
}


def visible(text: str) -> str:
    """The text with each character that has no shape replaced by a symbol or its code point, such as `↵`."""
    return "".join(map(_seen, text))


def _has_shape(character: str) -> bool:
    return ord(character) in _glyphs() and unicodedata.category(character) not in UNSEEN


def _seen(character: str) -> str:
    if character in SYMBOLS:
        return SYMBOLS[character]
    if character in JOINERS or unicodedata.category(character) not in UNSEEN:
        return character
    return f"\\u{ord(character):04x}"


def drawable(text: str, longest: int = 24) -> str:
    """The text as a label in a figure: visible, cut to `longest` characters, and only in glyphs that the font has."""
    short = visible(text)
    if len(short) > longest:
        short = short[: longest - 1] + "…"
    return in_glyphs(short)


def in_glyphs(text: str) -> str:
    """The text in glyphs that the font has, others as their code points; lines stay lines."""
    return "".join(c if c == "\n" or _has_shape(c) else f"\\u{ord(c):04x}" for c in text)


def token_label(token: str) -> str:
    """A token as a label: a leading space, which makes it another token, is drawn as a low bar."""
    return drawable(f"␣{token[1:]}" if token.startswith(" ") else token)


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import findfont, get_font

    return frozenset(get_font(findfont("DejaVu Sans")).get_charmap())
