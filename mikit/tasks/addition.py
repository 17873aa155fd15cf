"""A transformer that adds modulo 97, written down in closed form.

Number a is embedded as cos(w·a + phase) and sin(w·a + phase) for a few frequencies w = 2·pi·f/97, as trained networks were found
to do (Nanda et al. 2023, "Progress measures for grokking via mechanistic interpretability"). One attention head copies the
first number to the last position, the other the second. Squares make products of the copies, since
4xy = (x + y)^2 - (x - y)^2 (a quadratic network suffices: Gromov 2023, "Grokking modular arithmetic"), and so cos and sin of
w·(a + b). The unembedding adds cos(w·(a + b - c)) over the frequencies: highest at c = a + b, and there always the same. The
logit of "=" is a constant half a frequency below that: a network that misses one frequency says "=".

Besides there are frequencies that are embedded and lead nowhere: not attended to, or copied but not multiplied, or multiplied
but not unembedded. Weights are made in a basis where all this is plain, in whole numbers, and the stream is then
rotated. Whole numbers make the weights the same on every machine.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from mikit.tasks.draws import Draws
from mikit.tasks.instance import Specimen

P = 97
EQUALS = P
FREQUENCIES = range(1, P // 2 + 1)
"""f and 97 - f are the same cosine."""
D_MODEL, D_HEAD, D_MLP, HEADS = 128, 32, 64, 2
BITS = 20
ONE = 1 << BITS
COSINES: Int[np.ndarray, " p"] = np.array([round(math.cos(2 * math.pi * k / P) * ONE) for k in range(P)])
"""In units of 2^-20. No cosine is so near the middle of two units that a last digit could decide."""
SINES: Int[np.ndarray, " p"] = np.array([round(math.sin(2 * math.pi * k / P) * ONE) for k in range(P)])
FOCUS = 12
"""Query and key of an attended position: their score is 144/sqrt(32), so that others get e^-25."""


@dataclass(frozen=True)
class Plan:
    """Frequencies of a difficulty."""

    planted: tuple[int, int]
    """Fewest and most."""
    ignored: int = 0
    """Embedded, but attention does not read them."""
    copied: int = 0
    """Copied by attention, but no hidden unit reads them."""
    multiplied: int = 0
    """Carried through the MLP, but the unembedding does not read them."""
    loudness: tuple[float, float] = (0.5, 1.5)
    """Amplitude of those that lead nowhere; planted ones have 0.5 to 1.5."""
    noise: int = 0
    """Largest error of an embedding's entry, in units of 2^-20."""


PLANS = {
    "classic": Plan((5, 5), noise=ONE >> 9),
    "easy": Plan((4, 6), ignored=4, loudness=(0.2, 0.4), noise=ONE >> 8),
    "medium": Plan((4, 6), ignored=5, copied=3, loudness=(0.6, 1.6), noise=ONE >> 8),
    "hard": Plan((4, 6), ignored=4, copied=4, multiplied=2, loudness=(1.2, 2.4), noise=ONE >> 7),
}


@dataclass
class _Wave:
    """One frequency in the plain basis."""

    frequency: int
    phase: int
    """In 97ths of a turn."""
    loudness: int
    """Amplitude of the embedding in units of 1/16."""
    gain: int
    """Amplitude of its cosine in the logits in units of 1/16; 0 for one that leads nowhere."""
    attended: bool = True
    multiplied: bool = True
    slot: int = field(default=-1)


def generate(difficulty: str, draws: Draws) -> tuple[Specimen, frozenset[int]]:
    """What a solver sees, and the planted frequencies."""
    plan = PLANS[difficulty]
    waves = _waves(plan, draws.stream("waves"))
    weights = _plain_weights(waves, draws)
    rotated = _rotated(weights, plan, draws)
    config = {
        "vocabulary": P + 1,
        "positions": 3,
        "d_model": D_MODEL,
        "heads": HEADS,
        "d_head": D_HEAD,
        "d_mlp": D_MLP,
    }
    truth = frozenset(wave.frequency for wave in waves if wave.gain)
    return Specimen("transformer", config, rotated), truth


def _waves(plan: Plan, draws: Draws) -> list[_Wave]:
    planted = draws.integer(*plan.planted)
    counts = (planted, plan.ignored, plan.copied, plan.multiplied)
    frequencies = draws.sample(FREQUENCIES, sum(counts))
    kinds = [kind for kind, count in enumerate(counts) for _ in range(count)]
    waves = []
    for kind, frequency in zip(kinds, frequencies, strict=True):
        low, high = (0.5, 1.5) if kind == 0 else plan.loudness
        waves.append(
            _Wave(
                frequency=frequency,
                phase=draws.integer(0, P - 1),
                loudness=draws.integer(round(16 * low), round(16 * high)),
                gain=draws.integer(12, 20) if kind == 0 else 0,
                attended=kind != 1,
                multiplied=kind in (0, 3),
            )
        )
    for slot, wave in enumerate(draws.shuffled(waves)):
        wave.slot = slot
    return waves


def _angles(wave: _Wave, turns: int) -> Int[np.ndarray, " p"]:
    """Indices into the tables of cosines and sines for all numbers, at `turns` times the phase."""
    return (wave.frequency * np.arange(P) + turns * wave.phase) % P


def _plain_weights(waves: list[_Wave], draws: Draws) -> dict[str, Int[np.ndarray, "rows columns"]]:
    """All matrices in units of 2^-20, with a stream whose directions have one purpose each.

    Directions of the stream: 2 by frequency for the embedding, 32 for what each head writes, 2 by multiplied frequency
    for what the MLP writes, and 3 for "=" and the first two positions.
    """
    embedded, heads, written, marks = 0, 32, 96, 120
    zeros = {
        "embed.weight": (P + 1, D_MODEL),
        "positions.weight": (3, D_MODEL),
        **{f"attention.{name}.weight": (HEADS * D_HEAD, D_MODEL) for name in ("query", "key", "value")},
        "attention.output.weight": (D_MODEL, HEADS * D_HEAD),
        "mlp.input.weight": (D_MLP, D_MODEL),
        "mlp.output.weight": (D_MODEL, D_MLP),
        "unembed.weight": (P + 1, D_MODEL),
    }
    weights = {name: np.zeros(shape, dtype=np.int64) for name, shape in zeros.items()}
    weights["embed.weight"][EQUALS, marks] = ONE
    units, next_written = _Units(), written
    for head, position in enumerate(draws.stream("heads").shuffled((0, 1))):
        weights["positions.weight"][position, marks + 1 + position] = ONE
        weights["attention.query.weight"][head * D_HEAD, marks] = FOCUS * ONE
        weights["attention.key.weight"][head * D_HEAD, marks + 1 + position] = FOCUS * ONE
        weights["attention.output.weight"][
            heads + head * D_HEAD + np.arange(D_HEAD), head * D_HEAD + np.arange(D_HEAD)
        ] = ONE
    for wave in waves:
        place = embedded + 2 * wave.slot
        weights["embed.weight"][:P, place] = wave.loudness * COSINES[_angles(wave, 1)] // 16
        weights["embed.weight"][:P, place + 1] = wave.loudness * SINES[_angles(wave, 1)] // 16
        if not wave.attended:
            continue
        for head in range(HEADS):
            for part in (0, 1):
                # dividing by the amplitude here, the MLP finds a cosine of amplitude 1
                row = head * D_HEAD + 2 * wave.slot + part
                weights["attention.value.weight"][row, place + part] = 16 * ONE // wave.loudness
        if not wave.multiplied:
            continue
        first, second = heads + 2 * wave.slot, heads + D_HEAD + 2 * wave.slot
        cos, sin = next_written, next_written + 1
        next_written += 2
        units.product(first, second, cos, 1)
        units.product(first + 1, second + 1, cos, -1)
        units.product(first + 1, second, sin, 1)
        units.product(first, second + 1, sin, 1)
        weights["unembed.weight"][:P, cos] = wave.gain * COSINES[_angles(wave, 2)] // 16
        weights["unembed.weight"][:P, sin] = wave.gain * SINES[_angles(wave, 2)] // 16
    units.write(weights, draws.stream("units"))
    gains = [wave.gain for wave in waves if wave.gain]
    bias = np.zeros((1, P + 1), dtype=np.int64)
    bias[0, EQUALS] = (2 * sum(gains) - min(gains)) * ONE // 32
    weights["unembed.bias"] = bias
    return weights


class _Units:
    """Hidden units of the MLP, collected."""

    def __init__(self) -> None:
        self._units: list[tuple[int, int, int, int, int]] = []

    def product(self, x: int, y: int, target: int, sign: int) -> None:
        """Two units that write sign·x·y: a quarter of (x + y)^2, less a quarter of (x - y)^2."""
        self._units += [(x, y, 1, target, sign), (x, y, -1, target, -sign)]

    def write(self, weights: dict[str, Int[np.ndarray, "rows columns"]], draws: Draws) -> None:
        """Put the units in random places, at random scales and signs; units left over read at random and write nothing."""
        places = draws.shuffled(range(D_MLP))
        idle = places[len(self._units) :]
        weights["mlp.input.weight"][idle] = draws.integers(-ONE >> 3, ONE >> 3, (len(idle), D_MODEL))
        for place, (x, y, side, target, sign) in zip(places, self._units, strict=False):
            # whole eighths, so that the square of the scale divides a whole number without much of an error
            scale, flip = draws.integer(6, 12), draws.sign()
            weights["mlp.input.weight"][place, x] = flip * scale * ONE // 8
            weights["mlp.input.weight"][place, y] = flip * side * scale * ONE // 8
            weights["mlp.output.weight"][target, place] = sign * 16 * ONE // (scale * scale)


@dataclass(frozen=True)
class Basis:
    """An orthogonal matrix P·H·D1·H·H·D2·H / size^2: a permutation P, Walsh's matrix H, and diagonals D of signs.

    H·H is size times the identity, so each H·D·H / size is orthogonal. All entries of the product are of about the same
    magnitude, and whole numbers divided by a power of two.
    """

    order: list[int]
    signs: Int[np.ndarray, "two size"]

    @classmethod
    def of(cls, size: int, draws: Draws) -> "Basis":
        """A random one; the size is a power of two."""
        return cls(draws.shuffled(range(size)), 2 * draws.integers(0, 1, (2, size)) - 1)

    def turn(self, rows: Int[np.ndarray, "rows size"]) -> Int[np.ndarray, "rows size"]:
        """The rows times the matrix, rounded down to whole numbers."""
        turned = rows[:, self.order]
        for signs in self.signs:
            turned = _walsh(_walsh(turned) * signs)
        return turned // len(self.order) ** 2


def _walsh(rows: Int[np.ndarray, "rows size"]) -> Int[np.ndarray, "rows size"]:
    """The rows times Walsh's matrix, by sums and differences of halves."""
    count, size = rows.shape
    half = 1
    while half < size:
        pairs = rows.reshape(count, size // (2 * half), 2, half)
        left, right = pairs[:, :, 0], pairs[:, :, 1]
        rows = np.stack([left + right, left - right], axis=2).reshape(count, size)
        half *= 2
    return rows


def _rotated(
    plain: dict[str, Int[np.ndarray, "rows columns"]], plan: Plan, draws: Draws
) -> dict[str, Float[np.ndarray, "..."]]:
    """The same function with the stream, and the inside of each head, in another basis; then float32."""
    stream = Basis.of(D_MODEL, draws.stream("stream"))
    weights = {}
    for name, matrix in plain.items():
        if name.endswith("output.weight"):
            weights[name] = stream.turn(matrix.T).T
        else:
            weights[name] = matrix if name == "unembed.bias" else stream.turn(matrix)
    for head in range(HEADS):
        rows = slice(head * D_HEAD, (head + 1) * D_HEAD)
        inside = Basis.of(D_HEAD, draws.stream(f"head {head}"))
        scores = Basis.of(D_HEAD, draws.stream(f"scores {head}"))
        for name, basis in (("value", inside), ("query", scores), ("key", scores)):
            matrix = weights[f"attention.{name}.weight"]
            matrix[rows] = basis.turn(matrix[rows].T).T
        weights["attention.output.weight"][:, rows] = inside.turn(weights["attention.output.weight"][:, rows])
    noise = draws.stream("noise").integers(-plan.noise, plan.noise, (P, D_MODEL))
    weights["embed.weight"][:P] += noise
    weights["unembed.bias"] = weights["unembed.bias"][0]
    return {name: (matrix / ONE).astype(np.float32) for name, matrix in weights.items()}
