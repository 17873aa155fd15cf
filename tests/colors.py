"""Colours as eyes see them: contrast, distance, and both without one kind of cone."""

import numpy as np

CONES = {
    "all cones": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
}  # fmt: skip
"""What is seen, in linear RGB. Machado, Oliveira and Fernandes 2009, "A physiologically-based model for simulation of
color vision deficiency", IEEE TVCG 15(6), severity 1."""
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
"""D65, as of sRGB (IEC 61966-2-1)."""


def linear(color: str) -> np.ndarray:
    """Linear RGB of `#rrggbb` (IEC 61966-2-1)."""
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear RGB (CIE 15:2004)."""
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, cones: str = "all cones") -> float:
    """CIE76 distance of two colours as seen with these cones; about 2 can just be told apart side by side."""
    seen = [lab(CONES[cones] @ linear(color)) for color in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    return float(linear(color) @ (0.2126, 0.7152, 0.0722))


def contrast(one: str, other: str) -> float:
    """Contrast ratio as WCAG 2.2 defines it: 4.5 is asked for of text, 3 of what is drawn."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)
