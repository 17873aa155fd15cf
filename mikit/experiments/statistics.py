"""Shares and means with their intervals, and the comparison of two samples.

Every interval is a 95 % interval. Texts of one document are not independent: where documents repeat, a share's interval
is Wilson's at the effective sample size, which stays honest where all texts agree and a bootstrap would say 1 to 1.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Float

from mikit.trace import Estimate, Proportion

LEVEL = 0.95
RESAMPLES = 2000
EMPTY = Proportion(value=None, low=None, high=None, n=0)
"""The share of nothing."""


def _normal_quantile(probability: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(probability))


def _wilson_interval(share: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval (1927), which also holds for the effective, fractional `n` of a clustered sample."""
    z = _normal_quantile((1 + level) / 2)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return float(max(min(centre - half, share), 0.0)), float(min(max(centre + half, share), 1.0))


def wilson(successes: int, n: int) -> Proportion:
    """A share of independent cases with Wilson's interval; empty where `n` is 0."""
    if not n:
        return EMPTY
    low, high = _wilson_interval(successes / n, n)
    return Proportion(value=successes / n, low=low, high=high, n=n)


def effective_size(flags: Sequence[bool], clusters: Sequence[Hashable]) -> float:
    """The number of independent cases that tell as much about the share as these clustered ones.

    The share is a ratio of cluster totals: its linearised variance gives p (1 - p) / variance, at most the number of
    cases. Where all flags agree the variance can't be seen, and a cluster counts as one case.

    Source: Korn and Graubard, Confidence intervals for proportions with small expected number of positive counts
        estimated from survey data, 1998; without their correction for degrees of freedom.
    """
    sizes, totals = _by_cluster(np.asarray(flags, float), clusters)
    n, k = sizes.sum(), len(sizes)
    share = totals.sum() / n
    variance = k / max(k - 1, 1) * float(((totals - share * sizes) ** 2).sum()) / n**2
    if share in (0.0, 1.0) or k == 1:
        return float(k)
    return float(min(n, share * (1 - share) / variance)) if variance > 0 else float(n)


def clustered(flags: Sequence[bool], clusters: Sequence[Hashable | None]) -> Proportion:
    """The share of true flags, with an interval that knows which cases belong together.

    Args:
        flags: one a case.
        clusters: such as the document of each; a case with None is a cluster of its own.
    """
    if not len(flags):
        return EMPTY
    names = [("alone", i) if name is None else name for i, name in enumerate(clusters)]
    share = float(np.mean(flags))
    size = effective_size(flags, names) if len(set(names)) < len(names) else float(len(flags))
    low, high = _wilson_interval(share, size)
    return Proportion(value=share, low=low, high=high, n=len(flags))


def mean_of(shares: Sequence[Proportion]) -> Proportion:
    """The mean of the shares that are not empty, each of equal weight however many cases it has; `n` counts all cases.

    The interval combines theirs as for a sum of independent estimates, so that it keeps their asymmetry and their
    clustering: the distance to each limit is the root of the summed squares of theirs, divided by their number.

    Source: Zou and Donner, Construction of confidence limits about effect measures: a general approach, 2008.
    """
    kept = [
        (p.value, p.low, p.high) for p in shares if p.value is not None and p.low is not None and p.high is not None
    ]
    if not kept:
        return EMPTY
    values, lows, highs = np.array(kept).T
    mean = float(values.mean())
    low = mean - float(np.sqrt(((values - lows) ** 2).sum())) / len(kept)
    high = mean + float(np.sqrt(((highs - values) ** 2).sum())) / len(kept)
    return Proportion(value=mean, low=max(low, 0.0), high=min(high, 1.0), n=sum(p.n for p in shares))


def bootstrap_mean(
    values: Float[np.ndarray, " case"], clusters: Sequence[Hashable] | np.ndarray, seed: int
) -> Estimate:
    """The mean of the cases with a percentile bootstrap over whole clusters; `n` counts the clusters.

    Args:
        values: at least one.
        clusters: what is resampled, such as the prompt or the document of each case.
        seed: of the resampling.
    """
    sizes, totals = _by_cluster(np.asarray(values, float), clusters)
    picked = np.random.default_rng(seed).integers(len(sizes), size=(RESAMPLES, len(sizes)))
    means = totals[picked].sum(1) / sizes[picked].sum(1)
    value = float(totals.sum() / sizes.sum())
    low, high = (float(x) for x in np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    return Estimate(value=value, low=min(low, value), high=max(high, value), n=len(sizes))


def _by_cluster(
    values: Float[np.ndarray, " case"], clusters: Sequence[Hashable] | np.ndarray
) -> tuple[Float[np.ndarray, " cluster"], Float[np.ndarray, " cluster"]]:
    """Number of cases and sum of values of each cluster, in order of first appearance."""
    code_of: dict[Hashable, int] = {}
    names = clusters.tolist() if isinstance(clusters, np.ndarray) else clusters
    codes = np.array([code_of.setdefault(name, len(code_of)) for name in names])
    return np.bincount(codes).astype(float), np.bincount(codes, weights=values)


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float | None:
    """The chance that a positive exceeds a negative, ties counting half (Mann and Whitney 1947); None if either is empty."""
    from scipy.stats import rankdata

    n, m = len(positive), len(negative)
    if not n or not m:
        return None
    ranks = rankdata([*positive, *negative])
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


def one_sided_lower(found: Proportion | Estimate, level: float = 0.90) -> float:
    """What the true value exceeds with this confidence; 0 for an empty share, which bears out nothing.

    A share's bound is Wilson's at the sample size that its lower limit speaks of: a score interval ends where
    (value - low)^2 = z^2 low (1 - low) / n. For an estimate the interval's lower arm is scaled as if it were normal.
    """
    if found.value is None or found.low is None:
        return 0.0
    arm, z = found.value - found.low, _normal_quantile((1 + LEVEL) / 2)
    if isinstance(found, Estimate):
        return found.value - arm * _normal_quantile(level) / z
    if not found.low > 0 or not arm > 0:
        return found.low
    return _wilson_interval(found.value, z * z * found.low * (1 - found.low) / arm**2, 2 * level - 1)[0]
