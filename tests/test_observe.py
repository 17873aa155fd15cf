"""What a writer is shown, what a feature is called, and on which windows and prompts it is tried."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from mikit.errors import BadInput
from mikit.evidence import open_evidence, prompts
from mikit.evidence.observe import SHOWN, even_over_quantiles, feature_kind, natural_windows, nearest_live, observe
from mikit.evidence.prompts import english_prompts, neutral_prompts, prompts_hash
from mikit.settings import Protocol, make_params
from mikit.targets.hooks import batch_of, read_residual
from mikit.targets.planted.truth import truths
from mikit.trace import SPLITS

PROTOCOL = Protocol()


@pytest.fixture(scope="module")
def store(planted):
    """Evidence with the default params."""
    return open_evidence(planted, make_params({}))


@pytest.fixture(scope="module")
def truth():
    """What the planted latents are."""
    return truths()


@pytest.fixture(scope="module")
def feature(store, truth):
    """The normal feature that fires in the most windows: there is something of every kind to show."""
    normal = [t.index for t in truth if feature_kind(store, t.index, PROTOCOL) == "normal"]
    return max(normal, key=lambda latent: store.firing_counts[latent])


@pytest.fixture(scope="module")
def observation(planted, store, feature):
    return observe(planted, store, feature, PROTOCOL, 0)


def of_kind(observation, kind):
    return [window for window in observation.windows if window.kind == kind]


def places(windows):
    return [(window.document, window.start) for window in windows]


class TestWhatIsShown:
    def test_all_windows_are_of_explain_and_none_is_shown_twice(self, observation):
        assert {window.split for window in observation.windows} == {"explain"}
        assert len(set(places(observation.windows))) == len(observation.windows)
        assert all(len(of_kind(observation, kind)) <= n for kind, n in SHOWN.items())

    def test_each_token_has_the_activation_of_the_text_read_alone(self, planted, feature, observation):
        for window in observation.windows[::10]:
            residual = read_residual(planted, *batch_of(planted, [window.ids]))
            expected = planted.sae.encode(residual)[0, 1:, feature]
            assert np.allclose(window.activations, expected, atol=1e-4)
            assert window.peak == max(window.activations) == window.activations[window.peak_index]
            assert window.tokens == planted.token_strings(window.ids)

    def test_top_windows_are_the_strongest_of_explain(self, store, feature, observation):
        peaks = np.sort(store.peaks(feature)[store.table.in_split("explain")])[::-1]
        assert [window.peak for window in of_kind(observation, "top")] == pytest.approx(peaks[: SHOWN["top"]].tolist())

    @pytest.mark.parametrize("n", [51, 77, 1_000])
    def test_quantile_windows_are_even_over_the_firing_ones(self, n):
        peaks = np.random.default_rng(0).permutation(n).astype(np.float32)
        drawn = even_over_quantiles(np.arange(n), peaks, 50, np.random.default_rng(1))
        ranks = np.sort(peaks[drawn])
        assert len(set(ranks)) == 50
        assert (np.abs(ranks - (np.arange(50) + 0.5) * n / 50) <= n / 50 + 1).all()

    def test_quantile_windows_fire(self, observation):
        assert all(window.peak >= observation.tau for window in of_kind(observation, "quantile"))

    def test_silent_windows_are_silent_and_half_hold_a_token_that_sets_it_off(self, observation, store, feature):
        firings = store.firings(feature)
        fires = firings.peak >= store.tau(feature)
        triggers = set(store.table.ids[firings.window[fires], firings.peak_index[fires]].tolist())
        for kind in ("silent_trigger", "silent_random"):
            assert all(window.peak < observation.tau for window in of_kind(observation, kind))
        assert all(triggers & set(window.ids) for window in of_kind(observation, "silent_trigger"))
        assert len(of_kind(observation, "silent_random")) == SHOWN["silent_random"]

    def test_a_cued_feature_shows_its_trigger_where_it_is_silent(self, planted, store, truth):
        cued = next(t for t in truth if t.kind == "cued")
        shown = observe(planted, store, cued.index, PROTOCOL, 0)
        windows = of_kind(shown, "silent_trigger")
        assert windows
        assert all(cued.own & set(window.tokens) and not cued.fires(window.tokens) for window in windows)

    def test_one_seed_shows_the_same_and_another_seed_other_windows(self, planted, store, feature, observation):
        assert observe(planted, store, feature, PROTOCOL, 0) == observation
        other = observe(planted, store, feature, PROTOCOL, 1)
        for kind in ("quantile", "silent_random"):
            assert places(of_kind(other, kind)) != places(of_kind(observation, kind))
        assert of_kind(other, "top") == of_kind(observation, "top")

    def test_numbers_are_those_of_the_store(self, store, feature, observation):
        assert observation.ref == store.ref(feature)
        assert observation.tau == pytest.approx(PROTOCOL.tau_fraction * observation.ref)
        assert observation.firing_windows == (store.peaks(feature) >= store.tau(feature)).sum()
        assert (observation.tokens_read, observation.n_windows) == (store.tokens_read, store.n_windows)

    def test_a_latent_that_does_not_exist_is_refused(self, planted, store):
        with pytest.raises(BadInput, match=rf"feature {planted.sae.d_sae} .* 0 to {planted.sae.d_sae - 1}"):
            observe(planted, store, planted.sae.d_sae, PROTOCOL, 0)

    def test_the_lens_names_what_the_direction_promotes(self, planted, store, truth):
        for t in (t for t in truth if t.feature_kind == "normal" and len(t.promotes) >= 5):
            shown = observe(planted, store, t.index, PROTOCOL, 0)
            values = [token.value for token in shown.promoted]
            assert values == sorted(values, reverse=True)
            assert [token.value for token in shown.suppressed] == sorted(token.value for token in shown.suppressed)
            assert len(t.promotes & {token.token for token in shown.promoted}) >= min(5, len(t.promotes))

    def test_neighbours_are_live_and_nearest_first(self, planted, store, feature, observation):
        assert feature not in observation.neighbours
        assert (store.firing_counts[observation.neighbours] >= PROTOCOL.rare_windows).all()
        assert observation.neighbour_cosines == sorted(observation.neighbour_cosines, reverse=True)
        rows = planted.sae.W_dec[[feature, observation.neighbours[0]]]
        cosine = torch.nn.functional.cosine_similarity(rows[0], rows[1], dim=0)
        assert observation.neighbour_cosines[0] == pytest.approx(float(cosine), abs=1e-5)
        assert len(nearest_live(planted, store, feature, PROTOCOL)[0]) >= PROTOCOL.n_neighbours


class TestKindsOfFeature:
    def test_every_latent_is_called_by_where_its_rule_matches(self, planted, store, truth):
        texts = [planted.token_strings(store.table.text(window)) for window in range(store.n_windows)]
        silent = {"dead", "special_only"}

        def expected(t):
            if t.feature_kind in silent:
                return t.feature_kind
            n = sum(bool(t.fires(tokens)) for tokens in texts)
            assert n == store.firing_counts[t.index]
            return (
                "rare" if n < PROTOCOL.rare_windows else "dense" if n > PROTOCOL.dense_share * len(texts) else "normal"
            )

        declared = [t for t in truth if t.feature_kind and not t.name.startswith("companion")]
        kinds = {t.name: feature_kind(store, t.index, PROTOCOL) for t in declared}
        assert kinds == {t.name: expected(t) for t in declared}
        assert set(kinds.values()) == {"normal", "dead", "special_only", "rare", "dense"}

    @pytest.mark.parametrize("kind", ["dead", "special_only", "rare", "dense"])
    def test_a_feature_of_any_kind_has_an_observation(self, planted, store, truth, kind):
        latent = next(t.index for t in truth if t.feature_kind == kind)
        shown = observe(planted, store, latent, PROTOCOL, 0)
        assert shown.feature_kind == kind
        assert len(of_kind(shown, "silent_random")) == SHOWN["silent_random"] or kind == "dense"
        if kind in ("dead", "special_only"):
            assert shown.ref == shown.tau == shown.density == shown.firing_windows == 0
            assert not of_kind(shown, "top") and not of_kind(shown, "quantile")
        assert (shown.bos_activation > 0) == (kind == "special_only")

    def test_a_feature_is_not_called_dead_on_little_text(self, store, truth):
        dead = next(t.index for t in truth if t.feature_kind == "dead")
        assert feature_kind(replace(store, tokens_read=39_999), dead, PROTOCOL) == "rare"

    def test_a_feature_that_fires_outside_explain_alone_has_no_scale_and_is_rare(self, planted, store, feature):
        nowhere = replace(store, table=replace(store.table, splits=np.ones_like(store.table.splits)))
        unscaled = replace(
            nowhere,
            arrays={
                **store.arrays,
                "ref": np.zeros_like(store.arrays["ref"]),
                "tau": np.zeros_like(store.arrays["tau"]),
            },
            firing_counts=np.zeros_like(store.firing_counts),
        )
        shown = observe(planted, unscaled, feature, PROTOCOL, 0)
        assert shown.feature_kind == "rare"
        assert shown.windows == []


class TestNaturalWindows:
    @pytest.mark.parametrize("split", SPLITS)
    def test_they_are_of_the_split_and_fire_or_are_silent_as_said(self, store, feature, split):
        drawn = natural_windows(store, feature, split, 20, PROTOCOL, [], 0)
        peaks = store.peaks(feature)
        assert (store.table.in_split(split)[np.concatenate([drawn.firing, drawn.silent])]).all()
        assert (peaks[drawn.firing] >= store.tau(feature)).all()
        assert (peaks[drawn.silent] < store.tau(feature)).all()
        assert len(set(drawn.firing)) == len(drawn.firing) and len(set(drawn.silent)) == len(drawn.silent) == 20

    def test_half_of_the_silent_ones_hold_a_trigger_token(self, planted, store, truth):
        cued = next(t for t in truth if t.kind == "cued")
        ids = [i for i, text in enumerate(planted.token_strings(range(planted.vocab_size))) if text in cued.own]
        drawn = natural_windows(store, cued.index, "explain", 20, PROTOCOL, ids, 0)
        assert store.table.holding(ids)[drawn.silent].sum() == 10

    def test_the_seed_decides(self, store, feature):
        one, same, other = (natural_windows(store, feature, "select", 15, PROTOCOL, [], seed) for seed in (3, 3, 4))
        assert (one.silent == same.silent).all() and (one.firing == same.firing).all()
        assert set(one.silent) != set(other.silent)


class TestPrompts:
    def test_there_are_16_a_split_and_none_twice(self, planted):
        for texts in (english_prompts(), prompts._texts(planted)):
            assert [len(texts[split]) for split in SPLITS] == [16, 16, 16]
            assert max(Counter(text for split in SPLITS for text in texts[split]).values()) == 1

    def test_english_ones_name_nobody_and_stop_in_mid_sentence(self):
        for text in (text for split in SPLITS for text in english_prompts()[split]):
            assert all(word == word.lower() or word == "I" for word in text.split()[1:])
            assert text[-1].isalpha()

    def test_a_targets_own_prompts_come_first(self, planted):
        assert neutral_prompts(planted, "select") == [planted.ids_of(text) for text in planted.own_prompts[16:32]]
        assert prompts_hash(planted) != prompts_hash(replace(planted, own_prompts=None))

    def test_a_file_with_other_than_16_a_split_is_refused(self, tmp_path, monkeypatch):
        (tmp_path / "prompts.yaml").write_text("explain: [One and the]\nselect: []\nconfirm: []\n")
        monkeypatch.setattr(prompts.paths, "params", lambda: tmp_path)
        with pytest.raises(BadInput, match="16 different prompts under each of explain, select, confirm"):
            english_prompts.__wrapped__()

    @pytest.mark.smollm2
    def test_english_ones_have_4_to_12_tokens(self, smollm2):
        lengths = [len(ids) for split in SPLITS for ids in neutral_prompts(smollm2, split)]
        assert min(lengths) >= 4 and max(lengths) <= 12
