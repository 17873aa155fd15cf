"""The planted model is what its spec says: what fires each latent, what each latent does, and nothing else."""

import itertools

import numpy as np
import pytest
import torch
import yaml

from mikit.errors import BadInput
from mikit.explainers.rules import matches
from mikit.targets import planted as module
from mikit.targets.hooks import batch_of, logits, read_residual
from mikit.targets.planted import load
from mikit.targets.planted.kernel import HEAD_DIM, MARGIN, REACH, ROPE_THETA, window_key
from mikit.targets.planted.spec import DEFAULT, MAX_WITHIN
from mikit.targets.planted.truth import truths

WINDOW, TOKENS, DOCUMENT = 32, 49_152, 128
DOSES = (0.5, 1.0, 2.0, 4.0)
PEAK = 4.0
TRUTHS = truths()
DECLARED = [truth for truth in TRUTHS if truth.kind is not None and not truth.name.startswith(("companion_", "dead_"))]
MOVING = [truth for truth in TRUTHS if truth.promotes or truth.suppresses]


def named(truth):
    return truth.name


@pytest.fixture(scope="module")
def windows(planted):
    """As many windows as a run reads, cut as a run cuts them."""
    cut, read = [], 0
    for _, text in planted.own_documents:
        ids = planted.ids_of(text)[:DOCUMENT]
        cut += [part for start in range(0, len(ids), WINDOW) if len(part := ids[start : start + WINDOW]) >= 8]
        read += len(ids)
        if read >= TOKENS:
            return cut
    raise AssertionError("the corpus is smaller than what a run reads")


@pytest.fixture(scope="module")
def activations(planted, windows):
    """[window, 1 + 32, latent]; column 0 is BOS, and behind a short window stands 0."""
    acts = torch.zeros(len(windows), 1 + WINDOW, planted.sae.d_sae)
    for start in range(0, len(windows), 128):
        ids, mask = batch_of(planted, windows[start : start + 128])
        acts[start : start + len(ids), : ids.shape[1]] = (
            planted.sae.encode(read_residual(planted, ids, mask)) * mask[..., None]
        )
    return acts.numpy()


@pytest.fixture(scope="module")
def prompts(planted):
    return batch_of(planted, [planted.ids_of(text) for text in planted.own_prompts[:16]])


@pytest.fixture(scope="module")
def clean(planted, prompts):
    return last_logprobs(planted, prompts)


def last_logprobs(target, prompts, delta=None):
    """Log-probabilities of the next token, [prompt, vocab], with `delta` added at the last token."""
    ids, mask = prompts
    rows, last = torch.arange(len(ids)), mask.sum(1) - 1

    def edit(residual):
        edited = residual.clone()
        edited[rows, last] += delta
        return edited

    return logits(target, ids, mask, None if delta is None else edit)[rows, last].log_softmax(-1)


def divergence(clean, steered):
    """Mean KL(clean || steered), nats."""
    return float((clean.exp() * (clean - steered)).sum(-1).mean())


def steered(target, prompts, truth, dose):
    return last_logprobs(target, prompts, dose * PEAK * target.sae.W_dec[truth.index])


def texts_of(target, ids):
    return [target.tokenizer.decode([i]) for i in ids]


def firing_share(activations, truth):
    peaks = activations[:, 1:, truth.index].max(1)
    return float((peaks >= 0.25 * PEAK).mean())


# --- the model


def test_it_is_small(planted):
    assert sum(weight.numel() for weight in planted.model.parameters()) <= 1_000_000
    assert 900 <= planted.vocab_size <= 1200


def test_it_is_a_transformers_model_that_is_never_trained(planted):
    assert type(planted.model).__name__ == "LlamaForCausalLM"
    assert not planted.model.training
    assert not any(weight.requires_grad for weight in planted.model.parameters())


def test_it_is_the_same_for_the_same_seed(planted):
    again = load()
    assert (again.model_hash, again.tokenizer_hash, again.sae.hash) == (
        planted.model_hash,
        planted.tokenizer_hash,
        planted.sae.hash,
    )
    assert again.own_documents == planted.own_documents
    assert again.own_prompts == planted.own_prompts
    ours, theirs = planted.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_another_seed_makes_another_model_and_other_documents(planted):
    other = load(seed=1)
    assert other.model_hash != planted.model_hash
    assert other.sae.hash != planted.sae.hash
    assert other.own_documents != planted.own_documents


def test_loading_leaves_the_random_numbers_of_others_alone():
    state = torch.get_rng_state()
    load()
    assert torch.equal(torch.get_rng_state(), state)


def test_any_seed_keeps_the_features_where_they_are_declared():
    assert [truth.name for truth in truths(seed=5)] == [truth.name for truth in TRUTHS]
    assert module.LAYER == 0


# --- the words


def test_decoding_gives_back_what_was_encoded(planted):
    for _, text in planted.own_documents[:50]:
        assert planted.text_of(planted.ids_of(text)) == f" {text}"


def test_a_word_keeps_the_space_before_it_and_a_sign_has_none(planted):
    texts = texts_of(planted, planted.ids_of("the apple, 12 Anna."))
    assert texts == [" the", " apple", ",", " 12", " Anna", "."]


def test_a_text_is_read_alike_with_and_without_a_space_in_front(planted):
    assert planted.ids_of("apple pie") == planted.ids_of(" apple pie")


def test_words_that_the_language_lacks_are_left_out(planted):
    assert planted.ids_of("the zeitgeist <bos> apple") == planted.ids_of("the apple")
    assert planted.ids_of("") == []


def test_every_token_is_its_own_text(planted):
    texts = planted.token_strings(range(planted.vocab_size))
    assert len(set(texts)) == planted.vocab_size
    for i in set(range(planted.vocab_size)) - planted.special_ids:
        assert planted.ids_of(texts[i]) == [i]


def test_the_corpus_has_documents_for_every_split(planted, windows):
    assert len({identity for identity, _ in planted.own_documents}) == len(planted.own_documents) >= 1000
    assert 1400 <= len(windows) <= 2000
    assert all(24 <= len(planted.ids_of(text)) <= 160 for _, text in planted.own_documents[:100])


@pytest.mark.parametrize("truth", MOVING, ids=named)
def test_words_that_a_feature_moves_are_frequent_enough_to_be_scored(planted, windows, truth):
    counts = np.bincount(np.concatenate(windows), minlength=planted.vocab_size)
    rare = [text for i, text in enumerate(planted.token_strings(range(planted.vocab_size)))
            if text in truth.promotes | truth.suppresses and counts[i] < 5]  # fmt: skip
    assert rare == []


def test_prompts_are_short_distinct_and_neutral(planted):
    assert len(set(planted.own_prompts)) == 48
    for prompt in planted.own_prompts:
        texts = texts_of(planted, planted.ids_of(prompt))
        assert 4 <= len(texts) <= 12
        fires = {truth.name for truth in TRUTHS if truth.kind not in (None, "dense") and truth.active(texts)}
        assert fires == set()


# --- what fires


@pytest.mark.parametrize("truth", TRUTHS, ids=named)
def test_a_latent_is_active_exactly_where_its_truth_says(planted, windows, activations, truth):
    """Where it is not, its activation is 0 and not merely small; where it fires, it is above a quarter of the peak."""
    texts = planted.token_strings(range(planted.vocab_size))
    for ids, acts in zip(windows[:400], activations[:400, 1:, truth.index], strict=True):
        tokens = [texts[i] for i in ids]
        assert np.flatnonzero(acts >= 0.25 * PEAK).tolist() == truth.fires(tokens)
        assert set(np.flatnonzero(acts)) <= set(truth.active(tokens))


@pytest.mark.parametrize("truth", TRUTHS, ids=named)
def test_a_rule_says_what_its_truth_says(planted, windows, truth):
    texts = planted.token_strings(range(planted.vocab_size))
    for ids in windows[:60]:
        tokens = [texts[i] for i in ids]
        assert (matches(truth.rule, tokens) if truth.rule else []) == truth.fires(tokens)


@pytest.mark.parametrize("truth", [truth for truth in DECLARED if truth.cues], ids=named)
def test_a_cue_counts_in_long_texts_too(planted, truth):
    """Whole documents, up to 160 tokens, and every distance around the farthest that counts."""
    texts = planted.token_strings(range(planted.vocab_size))
    id_of = {text: i for i, text in enumerate(texts)}
    filler, word, cue = id_of[" the"], id_of[min(truth.own)], id_of[min(truth.cues)]
    rows = [[cue, *[filler] * (back - 1), word] for back in range(1, truth.within + 4)]
    rows += [[filler] * (155 - back) + [cue] + [filler] * (back - 1) + [word] for back in range(1, truth.within + 4)]
    rows += [planted.ids_of(text) for _, text in planted.own_documents[:40]]
    ids, mask = batch_of(planted, rows)
    acts = planted.sae.encode(read_residual(planted, ids, mask), torch.tensor([truth.index]))[..., 0]
    for row, ids in zip(acts[:, 1:], rows, strict=True):
        assert torch.nonzero(row[: len(ids)])[:, 0].tolist() == truth.fires([texts[i] for i in ids])


@pytest.mark.parametrize("truth", TRUTHS, ids=named)
def test_frequencies_fit_the_kinds(activations, truth):
    share = firing_share(activations, truth)
    n = share * len(activations)
    expected = {
        "dead": n == 0,
        "special_only": n == 0 and (activations[:, 0, truth.index] > 0).all(),
        "rare": 5 <= n <= 30,
        "dense": share > 0.2,
        "normal": n >= 90 and share <= 0.2,
        None: n > 0,
    }
    assert expected[truth.feature_kind], f"{n:.0f} windows, {share:.1%}"


def test_enough_latents_live_beside_the_declared_ones(activations):
    others = [truth for truth in TRUTHS if truth.kind == "class" and truth not in DECLARED]
    assert sum(firing_share(activations, truth) > 0 and bool(truth.promotes) for truth in others) >= 40


def test_activations_spread(activations):
    acts = activations[..., 3]
    low, high = np.quantile(acts[acts > 0], [0.1, 0.9])
    assert high > 1.3 * low


def test_few_latents_are_active_at_once_and_they_explain_the_residual(planted, windows, activations):
    ids, mask = batch_of(planted, windows[:200])
    mask[:, 0] = False
    x = read_residual(planted, ids, mask)[mask]
    error = (x - planted.sae.decode(planted.sae.encode(x))).square().sum()
    assert 1 - error / (x - x.mean(0)).square().sum() > 0.8
    assert 1 < (planted.sae.encode(x) > 0).sum(1).float().mean() < 5


def test_decoder_rows_have_norm_1_and_near_ones_are_the_declared_pair(planted):
    rows = planted.sae.W_dec
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))
    cosines = rows @ rows.T - torch.eye(len(rows))
    index = {truth.name: truth.index for truth in TRUTHS}
    assert divmod(int(cosines.argmax()), len(rows)) == (index["fruits"], index["berries"])
    assert cosines.max() == pytest.approx(0.6, abs=1e-5)


# --- what a latent does


@pytest.mark.parametrize("truth", [truth for truth in MOVING if truth.promotes], ids=named)
def test_steering_raises_its_words_most(planted, prompts, clean, truth):
    effect = (steered(planted, prompts, truth, 2.0) - clean).mean(0)
    most = texts_of(planted, effect.topk(len(truth.promotes)).indices.tolist())
    assert set(most) == truth.promotes


@pytest.mark.parametrize("truth", [truth for truth in MOVING if truth.suppresses], ids=named)
def test_steering_lowers_the_words_that_it_suppresses_most(planted, prompts, clean, truth):
    effect = (steered(planted, prompts, truth, 2.0) - clean).mean(0)
    most = texts_of(planted, (-effect).topk(len(truth.suppresses)).indices.tolist())
    assert set(most) == truth.suppresses


@pytest.mark.parametrize("truth", [truth for truth in DECLARED if truth in MOVING], ids=named)
def test_the_effect_grows_with_the_dose(planted, prompts, clean, truth):
    steps = [steered(planted, prompts, truth, dose) for dose in DOSES]
    moved = [
        i
        for i, text in enumerate(planted.token_strings(range(planted.vocab_size)))
        if text in truth.promotes | truth.suppresses
    ]
    sizes = [float((step - clean)[:, moved].abs().mean()) for step in steps]
    kls = [divergence(clean, step) for step in steps]
    assert all(low < high for low, high in itertools.pairwise(sizes))
    assert all(low < high for low, high in itertools.pairwise(kls))
    assert kls[0] < 0.05
    assert 0.05 < kls[-1] < 3.0


def test_the_default_feature_is_scored_at_a_middle_dose(planted, prompts, clean):
    kls = [divergence(clean, steered(planted, prompts, TRUTHS[3], dose)) for dose in DOSES]
    assert DOSES[int(np.argmin(np.abs(np.array(kls) - 0.25)))] == 2.0


@pytest.mark.parametrize("truth", [truth for truth in TRUTHS if truth.kind and truth not in MOVING], ids=named)
def test_a_feature_without_an_effect_moves_nothing(planted, prompts, clean, truth):
    assert max(divergence(clean, steered(planted, prompts, truth, dose)) for dose in DOSES) < 1e-4


def test_removing_a_feature_and_adding_it_again_restores_the_logits(planted, windows):
    ids, mask = batch_of(planted, windows[:32])
    latent, row = torch.tensor([3]), planted.sae.W_dec[3]
    own = planted.sae.encode(read_residual(planted, ids, mask), latent) * row
    assert own.abs().sum() > 0
    restored = logits(planted, ids, mask, edit=lambda x: (x - own) + own)
    torch.testing.assert_close(restored, logits(planted, ids, mask), rtol=0, atol=1e-5)


@pytest.mark.parametrize("truth", [truth for truth in DECLARED if truth.promotes and truth.rule], ids=named)
def test_in_running_text_a_feature_is_what_raises_its_words(planted, windows, activations, truth):
    """Without its own contribution where it fires, each of its words is less likely to come next."""
    firing = np.flatnonzero(activations[:, 1:, truth.index].max(1) > 0)[:16]
    ids, mask = batch_of(planted, [windows[i] for i in firing])
    acts = planted.sae.encode(read_residual(planted, ids, mask), torch.tensor([truth.index])) * mask[..., None]
    without = logits(planted, ids, mask, edit=lambda x: x - acts * planted.sae.W_dec[truth.index])
    fires = acts[..., 0] >= 0.25 * PEAK
    moved = [i for i, text in enumerate(planted.token_strings(range(planted.vocab_size))) if text in truth.promotes]
    change = (without.log_softmax(-1) - logits(planted, ids, mask).log_softmax(-1))[fires]
    assert (change[:, moved] < 0).all()
    others = [i for i in range(planted.vocab_size) if i not in moved]
    assert change[:, moved].mean() < change[:, others].mean() - 0.5


def test_promoted_words_follow_more_often_than_chance(planted):
    truth = TRUTHS[3]
    followed = total = chance = tokens = 0
    for _, text in planted.own_documents:
        texts = texts_of_document(text)
        for before, after in itertools.pairwise(texts):
            tokens += 1
            chance += after in truth.promotes
            total += before in truth.own
            followed += before in truth.own and after in truth.promotes
    assert followed / total > 3 * chance / tokens


def texts_of_document(text):
    return [f" {word.strip('.,;:!?-')}" for word in text.split()]


# --- the attention that looks for a cue


@pytest.mark.parametrize("within", range(1, MAX_WITHIN + 1))
def test_a_head_can_be_made_to_look_any_distance_back_and_no_farther(within):
    key = window_key(within)
    frequencies = ROPE_THETA ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    angles = np.outer(np.arange(REACH), frequencies)
    score = np.cos(angles) @ key[: HEAD_DIM // 2] + np.sin(angles) @ key[HEAD_DIM // 2 :]
    inside = np.isin(np.arange(REACH), np.arange(1, within + 1))
    assert score[inside].min() >= MARGIN - 1e-9
    assert score[~inside].max() <= -MARGIN + 1e-9


# --- planting others


@pytest.fixture
def spec():
    """The spec that ships here, to be edited."""
    return yaml.safe_load(DEFAULT.read_text("utf-8"))


def saved(spec, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False), "utf-8")
    return path


def test_a_feature_added_to_a_spec_is_planted(spec, tmp_path):
    spec["documents"] = {"count": 60}
    spec["features"].append(
        {
            "name": "mine",
            "kind": "cued",
            "fires_on": ["trees", "lantern"],
            "after": "colours",
            "within": 3,
            "promotes": "games",
        }
    )
    path = saved(spec, tmp_path)
    target = load(path)
    truth = truths(path)[len(spec["features"]) - 1]
    texts = [
        " the red old oak fell",
        " the red",
        " lantern",
        " blue lantern and oak",
        " oak blue very old and tall lantern",
    ]
    texts += [text for _, text in target.own_documents]
    ids, mask = batch_of(target, [target.ids_of(text) for text in texts])
    acts = target.sae.encode(read_residual(target, ids, mask), torch.tensor([truth.index]))[:, 1:, 0] * mask[:, 1:]
    for row, text in zip(acts, texts, strict=True):
        assert torch.nonzero(row)[:, 0].tolist() == truth.fires(texts_of(target, target.ids_of(text)))
    assert acts[0].max() > 0
    assert acts[2].max() == 0
    prompt = batch_of(target, [target.ids_of(target.own_prompts[0])])
    effect = steered(target, prompt, truth, 2.0) - last_logprobs(target, prompt)
    assert set(texts_of(target, effect[0].topk(10).indices.tolist())) == truth.promotes
    assert target.model_id == "planted:mine.yaml"


def test_a_spec_may_be_as_small_as_a_sentence(tmp_path):
    small = {
        "documents": {"count": 20},
        "roles": {
            "noun": {"next": {"verb": 1}, "classes": {"things": "sun moon star sky sea", "people": {"words": "king queen", "neutral": True}}},
            "verb": {"neutral": True, "next": {"noun": 1}, "classes": {"verbs": "sees hears likes finds knows meets"}},
        },
        "features": [{"name": "sky", "kind": "class", "fires_on": "things", "promotes": "people"}],
    }  # fmt: skip
    target = load(saved(small, tmp_path))
    assert target.sae.d_sae == 3
    assert len(target.own_prompts) == 48
    acts = target.sae.encode(
        read_residual(target, *batch_of(target, [target.ids_of("king sees moon")])), torch.tensor([0])
    )
    assert (acts[0, 1:, 0] > 0).tolist() == [False, False, True]


def _feature(**parts):
    return lambda spec: spec["features"].append({"name": "mine", "kind": "class", "fires_on": "trees", **parts})


def _without(*fields, **parts):
    def edit(spec):
        feature = {"name": "mine", "kind": "class", "fires_on": "trees", **parts}
        spec["features"].append({name: value for name, value in feature.items() if name not in fields})

    return edit


BAD_SPECS = {
    "unknown kind": (_feature(kind="clas"), r"unknown kind of feature 'mine' 'clas': did you mean 'class'\? valid: token"),
    "no kind": (_without("kind"), "unknown kind of feature 'mine' None"),
    "two features of one name": (_feature(name="fruits"), "feature 'fruits' is given twice"),
    "unknown word": (_feature(fires_on="xylophones"), "feature 'mine', fires_on: unknown word or class 'xylophones'"),
    "unknown promoted word": (_feature(promotes=["oak", "sequoia"]), "feature 'mine', promotes: unknown word or class 'sequoia'"),
    "unknown cue": (_feature(kind="cued", after="nothing"), "feature 'mine', after: unknown word or class 'nothing'"),
    "cue missing": (_feature(kind="cued"), "a feature of kind 'cued' needs after"),
    "cue not meant": (_feature(after="colours"), "a feature of kind 'class' has no after"),
    "nothing to fire on": (_without("fires_on"), "a feature of kind 'class' needs fires_on"),
    "a dead feature that fires": (_feature(kind="dead"), "a feature of kind 'dead' has no fires_on"),
    "a dead feature that promotes": (_without("fires_on", kind="dead", promotes="trees"), "'dead' has no promotes or suppresses"),
    "a form without a form": (_without("fires_on", kind="form"), "a feature of kind 'form' needs form or suffix"),
    "a form that no word has": (_without("fires_on", kind="form", suffix="zzz"), "no word of the language has the form 'zzz'"),
    "a token that is many": (_feature(kind="token"), "kind 'token' fires on 10 words: valid: 1"),
    "a union of one": (_feature(kind="union"), "two or more names"),
    "cue too far": (_feature(kind="cued", after="colours", within=9), "within: Input should be less than or equal to 8"),
    "up and down at once": (_feature(promotes="trees", suppresses="oak"), "'oak' is in promotes and in suppresses"),
    "faint and firing": (_feature(faint="oak"), "'oak' is in fires_on and in faint"),
    "near a stranger": (_feature(near="fruit"), "unknown earlier feature 'fruit': did you mean 'fruits'"),
    "unknown field": (_feature(promote="trees"), "promote: Extra inputs are not permitted"),
    "unknown part": (lambda spec: spec.update(rolls={}), "rolls: Extra inputs are not permitted"),
    "no features": (lambda spec: spec.update(features=[]), "features: Tuple should have at least 1 item"),
    "features that are no list": (lambda spec: spec.update(features=3), "features: "),
    "a word in two classes": (lambda spec: spec["roles"]["noun"]["classes"].update(mine="oak yew"), "word 'oak' is in class 'trees'"),
    "a class named as a word": (lambda spec: spec["roles"]["noun"]["classes"].update(oak="yew"), "'oak' is a class and a word"),
    "a class in two roles": (lambda spec: spec["roles"]["verb"]["classes"].update(trees="yew"), "class 'trees' is given twice"),
    "a word that is none": (lambda spec: spec["roles"]["noun"]["classes"].update(mine="o'clock"), "is no word"),
    "unknown role": (lambda spec: spec["roles"]["noun"]["next"].update(nuon=1), "unknown role 'nuon': did you mean 'noun'"),
    "no prompt possible": (lambda spec: spec["roles"]["noun"]["classes"].update(mine="yew") or spec["roles"]["det"].update(neutral=False, next={"det": 0}), "the chances of the next role"),
}  # fmt: skip


@pytest.mark.parametrize("edit, message", BAD_SPECS.values(), ids=BAD_SPECS)
def test_a_fault_in_a_spec_is_one_line(spec, tmp_path, edit, message):
    edit(spec)
    with pytest.raises(BadInput, match=message) as caught:
        load(saved(spec, tmp_path))
    assert "\n" not in str(caught.value)


def test_a_language_without_neutral_words_has_no_prompts(spec, tmp_path):
    for role in spec["roles"].values():
        role["neutral"] = False
        role["classes"] = {
            name: {**words, "neutral": False} if isinstance(words, dict) else words
            for name, words in role["classes"].items()
        }
    with pytest.raises(BadInput, match="no prompt can be made"):
        load(saved(spec, tmp_path))


def test_a_spec_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"none\.yaml"):
        load(tmp_path / "none.yaml")
