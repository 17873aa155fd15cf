"""Networks of one hidden layer that compute x1·x2 + x3 on -1 <= x <= 1, from units whose roles are known.

No unit multiplies. Squares carry the product as sums of (a·x1 + b·x2)^2 whose x1^2 and x2^2 cancel elsewhere; ReLUs carry it
as a broken line through u^2 for u = x1 + x2, less one for u = x1 - x2. All arithmetic here is Python's own on single numbers, with square
roots at most, which is the same on every machine.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from mikit.tasks.draws import Draws
from mikit.tasks.instance import Specimen

PRODUCT, BYPASS, OTHER = "product", "bypass", "other"
Vector = tuple[float, float, float]


@dataclass(frozen=True)
class Unit:
    """A hidden unit: it adds `out · f(weights · x + bias)` to the output, where f is the activation function."""

    role: str
    weights: Vector
    bias: float
    out: float


@dataclass(frozen=True)
class Plan:
    """Sizes of a difficulty."""

    units: int
    activation: str
    product: tuple[int, int]
    """Fewest and most units that carry the product; for ReLUs, pieces of a broken line on each side of 0."""
    bypass: tuple[int, int]
    """Fewest and most units that carry x3."""
    crossed: bool = False
    """Whether there are units that read x3 along with x1 or x2, and cancel."""
    mix: bool = False
    """Whether the hidden layer reads the inputs through a linear layer."""
    noise: float = 0.0
    """Largest error of a hidden weight."""


PLANS = {
    "classic": Plan(10, "square", product=(2, 2), bypass=(2, 2)),
    "easy": Plan(18, "square", product=(2, 4), bypass=(2, 3)),
    "medium": Plan(48, "relu", product=(3, 4), bypass=(2, 4), crossed=True),
    "hard": Plan(40, "square", product=(3, 6), bypass=(2, 4), crossed=True, mix=True, noise=2**-11),
}


def generate(difficulty: str, draws: Draws, role: str) -> tuple[Specimen, frozenset[int]]:
    """What a solver sees, and the units of a role."""
    plan = PLANS[difficulty]
    if difficulty == "classic":
        units, constant = _smallest(draws.stream("units"))
    elif plan.activation == "square":
        units, constant = _squares(plan, draws.stream("units"))
    else:
        units, constant = _relus(plan, draws.stream("units"))
    assert len(units) <= plan.units, f"{len(units)} units for {plan.units}"
    mimics = _mimics(plan.units - len(units), plan.activation, draws.stream("mimics"))
    noisy = [_noisy(unit, plan.noise, draws.stream(f"noise {i}")) for i, unit in enumerate([*units, *mimics])]
    scaled = [_rescaled(unit, plan.activation, draws.stream(f"scale {i}")) for i, unit in enumerate(noisy)]
    order = draws.stream("order").shuffled(scaled)
    truth = frozenset(i for i, unit in enumerate(order) if unit.role == role)
    return _specimen(plan, order, constant, draws.stream("mix")), truth


def _specimen(plan: Plan, units: list[Unit], constant: float, draws: Draws) -> Specimen:
    weights: dict[str, list] = {
        "hidden.weight": [list(unit.weights) for unit in units],
        "hidden.bias": [unit.bias for unit in units],
        "readout.weight": [[unit.out for unit in units]],
        "readout.bias": [constant],
    }
    if plan.mix:
        forward, back = _unimodular(draws)
        weights["mix.weight"] = forward
        weights["hidden.weight"] = [
            [sum(row[i] * back[i][j] for i in range(3)) for j in range(3)] for row in weights["hidden.weight"]
        ]
    config = {"units": plan.units, "activation": plan.activation, "mix": plan.mix}
    return Specimen("one-hidden", config, {name: np.array(w, dtype=np.float32) for name, w in weights.items()})


def _unimodular(draws: Draws, shears: int = 4) -> tuple[list[list[int]], list[list[int]]]:
    """A 3x3 matrix of whole numbers and its inverse, of whole numbers too."""
    forward = [[int(i == j) for j in range(3)] for i in range(3)]
    back = [row[:] for row in forward]
    for _ in range(shears):
        target, source = draws.sample(range(3), 2)
        factor = draws.sign()
        for j in range(3):
            forward[target][j] += factor * forward[source][j]
            back[j][source] -= factor * back[j][target]
    return forward, back


def _mask(*values: float, at: tuple[int, ...]) -> Vector:
    full = [0.0, 0.0, 0.0]
    for place, value in zip(at, values, strict=True):
        full[place] = value
    return full[0], full[1], full[2]


def _noisy(unit: Unit, noise: float, draws: Draws) -> Unit:
    if not noise:
        return unit
    errors = [noise * draws.integer(-8, 8) / 8 for _ in range(3)]
    a, b, c = (weight + error for weight, error in zip(unit.weights, errors, strict=True))
    return replace(unit, weights=(a, b, c))


def _rescaled(unit: Unit, activation: str, draws: Draws) -> Unit:
    """The same function with another split between what goes in and what comes out: norms alone say nothing."""
    scale = draws.real(1.0, 2.0) * draws.sample((0.5, 1.0), 1)[0] / math.sqrt(sum(w * w for w in unit.weights))
    if activation == "square":
        scale, gain = scale * draws.sign(), scale * scale
    else:
        gain = scale
    a, b, c = (scale * weight for weight in unit.weights)
    return replace(unit, weights=(a, b, c), bias=scale * unit.bias, out=unit.out / gain)


def _smallest(draws: Draws) -> tuple[list[Unit], float]:
    """Eight units: two squares for the product, two for x3, and pairs for x1^2 and x2^2 that cancel."""
    a, b, strength = draws.signed(0.5, 1.25), draws.signed(0.5, 1.25), 0.5
    alpha, beta = draws.signed(0.5, 1.25), draws.signed(0.5, 1.0)
    product, bypass = strength / (2 * a * b), strength / (2 * alpha * beta)
    return [
        Unit(PRODUCT, (a, b, 0), 0, product),
        Unit(PRODUCT, (a, -b, 0), 0, -product),
        Unit(BYPASS, (0, 0, alpha), beta, bypass),
        Unit(BYPASS, (0, 0, alpha), -beta, -bypass),
        *_cancelling_squares(0, 0.0, draws),
        *_cancelling_squares(1, 0.0, draws),
    ], 0.0


def _squares(plan: Plan, draws: Draws) -> tuple[list[Unit], float]:
    product, left = [], [0.0, 0.0, 0.0]
    for share in draws.shares(draws.integer(*plan.product)):
        a, b = draws.signed(0.5, 1.25), draws.signed(0.5, 1.25)
        out = share / (2 * a * b)
        left[0] += out * a * a
        left[1] += out * b * b
        product.append(Unit(PRODUCT, (a, b, 0), 0, out))
    bypass, constant = [], 0.0
    for share in draws.shares(draws.integer(*plan.bypass)):
        a, b = draws.signed(0.5, 1.25), draws.signed(0.5, 1.0)
        out = share / (2 * a * b)
        left[2] += out * a * a
        constant -= out * b * b
        bypass.append(Unit(BYPASS, (0, 0, a), b, out))
    others = [unit for place in range(3) for unit in _cancelling_squares(place, left[place], draws)]
    if plan.crossed:
        others += [unit for place in (0, 1) for unit in _crossed_squares(place, draws)]
    return [*product, *bypass, *others], constant


def _cancelling_squares(place: int, left: float, draws: Draws) -> list[Unit]:
    """Two units that read one input: they take away its square, `left` times, and are larger than that needs."""
    first, second, excess = draws.signed(0.5, 1.25), draws.signed(0.5, 1.25), draws.signed(0.8, 1.6)
    return [
        Unit(OTHER, _mask(first, at=(place,)), 0, (excess - left) / (first * first)),
        Unit(OTHER, _mask(second, at=(place,)), 0, -excess / (second * second)),
    ]


def _crossed_squares(place: int, draws: Draws) -> list[Unit]:
    """Four units that read x3 and another input: two make their product, two take it away."""
    strength, units = draws.signed(0.5, 1.2), []
    for sign in (1, -1):
        a, b = draws.signed(0.5, 1.25), draws.signed(0.5, 1.25)
        out = sign * strength / (4 * a * b)
        units += [
            Unit(OTHER, _mask(a, b, at=(place, 2)), 0, out),
            Unit(OTHER, _mask(a, -b, at=(place, 2)), 0, -out),
        ]
    return units


def _relus(plan: Plan, draws: Draws) -> tuple[list[Unit], float]:
    pieces = draws.integer(*plan.product)
    product = [
        Unit(PRODUCT, (side, side * sign, 0), -2 * i / pieces, sign * 2 / pieces * (1 if i == 0 else 2) / 4)
        for sign in (1, -1)
        for side in (1, -1)
        for i in range(pieces)
    ]
    bypass, constant = _relu_bypass(draws.integer(*plan.bypass), draws)
    others: list[Unit] = []
    for sign in (1, -1):
        flat, offset = _unbent((1, sign, 0), draws)
        others += flat
        constant += offset
    for direction in ((1, 0, 0), (0, 1, 0), (1, 0, draws.sign()), (0, 1, draws.sign())):
        circle, offset = _relu_circle(direction, draws)
        others += circle
        constant += offset
    return [*product, *bypass, *others], constant


def _relu_bypass(count: int, draws: Draws) -> tuple[list[Unit], float]:
    """x3 from `count` ReLUs: a pair that splits it by its sign, units that are always on, or both."""
    pair = count == 2 or bool(draws.integer(0, 1))
    shares = draws.shares(count - pair)
    units, constant = [], 0.0
    if pair:
        share = shares.pop()
        units = [Unit(BYPASS, (0, 0, 1), 0, share), Unit(BYPASS, (0, 0, -1), 0, -share)]
    for share in shares:
        side, bias = draws.sign(), draws.real(1.1, 1.6)
        units.append(Unit(BYPASS, (0, 0, side), bias, side * share))
        constant -= side * share * bias
    return units, constant


def _unbent(direction: Vector, draws: Draws) -> tuple[list[Unit], float]:
    """Units that read x1 and x2 but are on everywhere, so that they add and don't multiply; they cancel."""
    strength, units, constant = draws.signed(0.6, 1.5), [], 0.0
    singles = [_mask(direction[place], at=(place,)) for place in (0, 1)]
    for vector, out, reach in ((direction, strength, 2.0), *((single, -strength, 1.0) for single in singles)):
        bias = reach + draws.real(0.1, 0.5)
        units.append(Unit(OTHER, vector, bias, out))
        constant -= out * bias
    return units, constant


def _relu_circle(direction: Vector, draws: Draws) -> tuple[list[Unit], float]:
    """Three units along one direction z that cancel: relu(z) - relu(-z) = z, and relu(z + bias) takes z away."""
    strength = draws.signed(0.6, 1.5)
    bias = sum(abs(value) for value in direction) + draws.real(0.1, 0.5)
    a, b, c = direction
    units = [
        Unit(OTHER, direction, 0, strength),
        Unit(OTHER, (-a, -b, -c), 0, -strength),
        Unit(OTHER, direction, bias, -strength),
    ]
    return units, strength * bias


def _mimics(count: int, activation: str, draws: Draws) -> Iterable[Unit]:
    """Units that behave like those that count, but that the readout hardly reads: at most 0.003 of anything."""
    for i in range(count):
        faint = draws.signed(0.0005, 0.002)
        if i % 2 == 0:
            bias = 0.0 if activation == "square" else -draws.real(0.0, 1.2)
            yield Unit(OTHER, (draws.signed(0.7, 1.1), draws.signed(0.7, 1.1), 0), bias, faint)
        else:
            bias = draws.signed(0.4, 0.8) if activation == "square" else 0.0
            yield Unit(OTHER, (0, 0, draws.signed(0.7, 1.1)), bias, faint)
