"""Intervals hold what they promise, also where documents repeat and where all texts agree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mikit.experiments.statistics import (
    auroc,
    bootstrap_mean,
    clustered,
    effective_size,
    mean_of,
    one_sided_lower,
    wilson,
)
from mikit.trace import Estimate

flag_lists = st.lists(st.booleans(), min_size=1, max_size=60)
clustered_flags = st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=1, max_size=60)
numbers = st.floats(-100, 100, allow_subnormal=False)


def counted(successes, n):
    return st.builds(wilson, st.just(successes), st.just(n))


shares = st.integers(0, 40).flatmap(lambda n: st.integers(0, n).flatmap(lambda k: counted(k, n)))


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (3, 10), (10, 10), (24, 30), (1, 1), (299, 300)])
def test_wilson_agrees_with_statsmodels(successes, n):
    from statsmodels.stats.proportion import proportion_confint

    found = wilson(successes, n)
    assert found.value == successes / n
    assert (found.low, found.high) == pytest.approx(proportion_confint(successes, n, method="wilson"))


def test_the_share_of_nothing_has_no_value():
    empty = [wilson(0, 0), clustered([], []), mean_of([]), mean_of([wilson(0, 0)])]
    assert {(share.value, share.low, share.high, share.n) for share in empty} == {(None, None, None, 0)}


@given(flag_lists)
def test_texts_of_distinct_documents_get_wilsons_interval(flags):
    assert clustered(flags, range(len(flags))) == wilson(sum(flags), len(flags))
    assert clustered(flags, [None] * len(flags)) == wilson(sum(flags), len(flags))


@given(clustered_flags)
def test_texts_of_shared_documents_never_count_for_more_than_they_are(cases):
    flags, documents = zip(*cases, strict=True)
    alone, together = wilson(sum(flags), len(flags)), clustered(flags, documents)
    assert together.value == alone.value
    assert together.n == len(flags)
    assert together.low <= alone.low + 1e-12
    assert together.high >= alone.high - 1e-12
    assert 0 <= together.low <= together.value <= together.high <= 1


@given(flag_lists, st.integers(2, 5))
def test_repeating_every_text_adds_nothing(flags, times):
    documents = np.repeat(np.arange(len(flags)), times).tolist()
    assert effective_size(np.repeat(flags, times), documents) <= len(flags) + 1e-9


def test_agreement_within_few_documents_is_no_certainty():
    everything_fires = clustered([True] * 30, ["a", "b", "c"] * 10)
    assert everything_fires.low == pytest.approx(wilson(3, 3).low)


def test_clustered_intervals_cover_the_truth():
    rng = np.random.default_rng(0)
    documents = np.repeat(np.arange(15), 2)
    covered = []
    for _ in range(400):
        chances = rng.beta(4, 1.5, 15)
        found = clustered((rng.random(30) < chances[documents]).tolist(), documents.tolist())
        covered.append(found.low <= 4 / 5.5 <= found.high)
    assert np.mean(covered) > 0.92


@given(st.lists(shares, max_size=4))
def test_a_mean_of_strata_weighs_them_equally_and_leaves_out_empty_ones(strata):
    found = mean_of(strata)
    kept = [share.value for share in strata if share.value is not None]
    assert found.n == sum(share.n for share in strata)
    assert found.value == (pytest.approx(np.mean(kept)) if kept else None)
    if kept:
        assert 0 <= found.low <= found.value <= found.high <= 1


@given(shares.filter(lambda share: share.n > 0))
def test_the_mean_of_one_stratum_is_itself(share):
    found = mean_of([share])
    assert (found.value, found.low, found.high) == pytest.approx((share.value, share.low, share.high))


def test_the_mean_of_strata_is_known_better_than_each():
    one, three = wilson(24, 30), mean_of([wilson(24, 30)] * 3)
    assert three.high - three.low < (one.high - one.low) / 1.5


def test_intervals_of_a_mean_of_strata_cover_the_truth():
    rng = np.random.default_rng(1)
    truth = np.array([0.95, 0.8, 0.6])
    found = [mean_of([wilson(int(k), 10) for k in rng.binomial(10, truth)]) for _ in range(500)]
    assert np.mean([share.low <= truth.mean() <= share.high for share in found]) > 0.93


@given(st.lists(st.tuples(numbers, st.integers(0, 6)), min_size=1, max_size=40), st.integers(0, 3))
def test_a_bootstrapped_mean_lies_in_its_interval_and_depends_on_the_seed_alone(cases, seed):
    values, clusters = map(np.array, zip(*cases, strict=True))
    found = bootstrap_mean(values, clusters, seed)
    assert found == bootstrap_mean(values, clusters.tolist(), seed)
    assert found.value == pytest.approx(values.mean())
    assert found.low <= found.value <= found.high
    assert found.n == len(set(clusters.tolist()))


def test_a_bootstrap_over_documents_is_wider_than_one_over_texts():
    rng = np.random.default_rng(2)
    values = np.repeat(rng.normal(size=12), 5)
    by_document = bootstrap_mean(values, np.repeat(np.arange(12), 5), 0)
    by_text = bootstrap_mean(values, np.arange(60), 0)
    assert by_document.high - by_document.low > 1.5 * (by_text.high - by_text.low)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20), st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_auroc_is_the_share_of_pairs_in_order_ties_counting_half(positive, negative):
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert auroc(positive, negative) == pytest.approx(np.mean(pairs))
    assert auroc(negative, positive) == pytest.approx(1 - np.mean(pairs))


def test_auroc_of_an_empty_sample_is_not_a_number_but_none():
    assert auroc([], [1.0]) is auroc([1.0], []) is None


@given(shares)
def test_a_one_sided_bound_lies_between_the_interval_and_the_value(share):
    bound = one_sided_lower(share)
    assert bound == 0 if share.value is None else share.low - 1e-12 <= bound <= share.value


@pytest.mark.parametrize("n", [10, 30, 90])
def test_a_one_sided_bound_is_wilsons_own(n):
    from statsmodels.stats.proportion import proportion_confint

    for successes in range(1, n + 1):
        exact = proportion_confint(successes, n, alpha=0.2, method="wilson")[0]
        assert one_sided_lower(wilson(successes, n)) == pytest.approx(exact, abs=1e-6)


def test_a_one_sided_bound_reads_estimates_too():
    assert one_sided_lower(Estimate(value=1.0, low=0.02, high=1.9, n=16)) == pytest.approx(
        1 - 0.98 * 1.2816 / 1.96, abs=1e-4
    )
