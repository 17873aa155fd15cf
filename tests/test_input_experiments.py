"""Texts are chosen from the hypothesis alone, scored without padding's help, and reward no trivial answer."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from builders import input_score, share
from hypothesis import given
from hypothesis import strategies as st

from mikit.evidence.corpora import Document, corpus_of
from mikit.evidence.observe import observe
from mikit.evidence.scan import scan
from mikit.evidence.store import open_store
from mikit.evidence.unseen import without
from mikit.evidence.vocabulary import vocabulary_of
from mikit.experiments.activation import peak_activations
from mikit.experiments.input_score import choose_input, fires, score_input
from mikit.experiments.near_tokens import NEAREST, by_embedding, by_spelling, nearest_tokens
from mikit.experiments.setting import Setting
from mikit.experiments.statistics import EMPTY
from mikit.experiments.texts import design_experiment, in_turns, origin_of, peak_tokens, rule_tokens
from mikit.explainers import get_explainer
from mikit.explainers.rules import predicts
from mikit.gates import judge_input
from mikit.settings import Params
from mikit.targets.base import Target
from mikit.targets.hooks import batch_of, read_residual
from mikit.targets.sae import Sae
from mikit.trace import GATED_STRATA, SPLITS, Clause, InputHypothesis, Rule

FRUIT = [" apple", " pear", " plum", " cherry", " melon", " grape"]
METAL = [" iron", " copper", " zinc", " silver", " tin", " lead"]
FORMS = [" walk", " walks", " walked", " walking", " Walk", " apples", " Apple", " pears", " Pear", " cherries"]
COMMON = [" the", " of", " and", " in", ",", ".", " was", " is", " a", " to"]
OTHER = [
    f" {first}{last}"
    for first in ("ba", "ko", "ti", "mu", "re", "sa", "lo", "vi")
    for last in ("den", "lis", "mor", "nat")
]
TEXTS = ["<bos>", *COMMON, *FRUIT, *METAL, *FORMS, *OTHER]
ID = {text: i for i, text in enumerate(TEXTS)}
WIDTH = 80
FRUITS, PEARS, BOS_LOVER, ALL_WORDS, GRADED, FRUITS_AGAIN = range(6)
"""Latents of the test's SAE."""


class Words:
    """A word-level tokenizer: a token is a word with the space before it, or a mark."""

    def __call__(self, text, add_special_tokens=False):
        return {"input_ids": [ID[word] for word in re.findall(r" \w+|[,.]", text)]}

    def decode(self, ids):
        return "".join(TEXTS[i] for i in ids)


def sae_of(embeddings):
    """Latents that read words off the residual stream: fruit, one fruit, BOS, every word, fruit by degrees, fruit again."""
    fruit = embeddings[[ID[word] for word in FRUIT]]
    degrees = torch.linspace(0.05, 1.0, len(FRUIT))[:, None]
    columns = [fruit.sum(0), fruit[1], embeddings[0], embeddings[1:].sum(0), (degrees * fruit).sum(0), fruit.sum(0)]
    W_enc = torch.stack(columns, dim=1)
    return Sae(
        id="words", architecture="standard", W_enc=W_enc, W_dec=torch.nn.functional.normalize(W_enc.T, dim=1),
        b_enc=torch.full((len(columns),), -0.01), b_dec=torch.zeros(WIDTH), threshold=torch.zeros(len(columns)),
        apply_b_dec_to_input=False, hash="0",
    )  # fmt: skip


def llama(seed=0):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TEXTS), hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def target_of(model, sae, documents=None):
    return Target(
        model=model, tokenizer=Words(), layer=0, hook_point="model.layers.0", bos_id=0, special_ids=frozenset([0]),
        model_id="tiny", model_hash="0", tokenizer_hash="0", name="tiny", sae=sae, default_corpus="tiny",
        own_documents=documents,
    )  # fmt: skip


def made_documents(n=600, seed=0):
    """Random words: about one window in eight holds a fruit, as many a metal, and one in three another form of a word."""
    rng = np.random.default_rng(seed)
    parts = ((COMMON, 0.5), (FRUIT, 0.005), (METAL, 0.005), (FORMS, 0.015), (OTHER, 0.475))
    chances = np.concatenate([np.full(len(words), chance / len(words)) for words, chance in parts])
    texts = ["".join(rng.choice(TEXTS[1:], size=rng.integers(40, 110), p=chances)) for _ in range(n)]
    return tuple((f"d{i}", text) for i, text in enumerate(texts))


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """A model whose first block passes embeddings on unchanged, so that which words fire a latent is known."""
    model = llama()
    embeddings = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0][: len(TEXTS)]
    model.model.embed_tokens.weight.copy_(embeddings)
    model.model.layers[0].self_attn.o_proj.weight.zero_()
    model.model.layers[0].mlp.down_proj.weight.zero_()
    target = target_of(model, sae_of(embeddings), made_documents())
    params = Params(corpus_tokens=None, document_tokens=None)
    folder = tmp_path_factory.mktemp("evidence") / "store"
    scan(target, corpus_of("tiny", [Document(*pair) for pair in target.own_documents]), params, folder)
    store = open_store(folder)
    return Setting(
        target=target,
        store=store,
        vocabulary=vocabulary_of(target, store.token_counts),
        explainer=get_explainer("statistical"),
        prompts={},
        protocol=params.protocol,
        seed=0,
        batch=16,
    )


def hypothesis(*clauses, text="It fires.", identity="H1"):
    return InputHypothesis(id=identity, text=text, rule=Rule(any_of=list(clauses)))


ON_FRUIT = hypothesis(Clause(tokens=FRUIT))
ON_PEAR = hypothesis(Clause(tokens=[" pear"]), identity="narrow")
ON_FRUIT_AND_METAL = hypothesis(Clause(tokens=FRUIT + METAL), identity="broad")
AFTER_THE = hypothesis(Clause(tokens=FRUIT, after=[" the", " of"], within=3))
ALWAYS = hypothesis(Clause(form="word_start"), Clause(form="punctuation"))
NEVER = hypothesis(Clause(tokens=[" nowhere"]))


def scored(setting, given, feature=FRUITS, split="confirm", n=20, seen=None):
    seen = seen or observe(setting.target, setting.store, feature, setting.protocol, 0)
    return score_input(setting, feature, seen, given, design_experiment(setting, given, split, n))


def by_stratum(experiment):
    return {s: [case for case in experiment.cases if case.stratum == s] for s in (None, *GATED_STRATA, "random")}


def tokens_of(case):
    return [TEXTS[i] for i in case.ids]


# --- activations


@pytest.fixture(scope="module")
def attentive():
    """A random model whose activations depend on context."""
    model = llama(1)
    generator = torch.Generator().manual_seed(2)
    sae = sae_of(torch.randn(len(TEXTS), WIDTH, generator=generator))
    return target_of(model, sae)


texts = st.lists(st.lists(st.integers(1, len(TEXTS) - 1), min_size=1, max_size=32), min_size=1, max_size=12)


@given(texts, st.integers(1, 5))
def test_peaks_do_not_depend_on_what_shares_a_batch_and_keep_the_order_of_the_texts(attentive, given_texts, batch):
    latents = [4, 0, 2]
    peaks, where = peak_activations(attentive, latents, given_texts, batch)
    for row, ids in enumerate(given_texts):
        alone, _ = peak_activations(attentive, latents, [ids], 1)
        assert peaks[row] == pytest.approx(alone[0], abs=1e-4)
        acts = attentive.sae.encode(read_residual(attentive, *batch_of(attentive, [ids])))[0, 1:][:, latents].numpy()
        assert acts.max(0) == pytest.approx(peaks[row], abs=1e-4)
        assert acts[where[row], range(3)] == pytest.approx(peaks[row], abs=1e-4)
    assert peaks.dtype == np.float32


def test_neither_bos_nor_padding_ever_fires_a_text(setting):
    """BOS is also what texts are padded with: a latent that loves it stays silent."""
    assert setting.store.bos_max(BOS_LOVER) > 0.5
    peaks, where = peak_activations(setting.target, [BOS_LOVER], [[ID[" the"]], [ID[" pear"]] * 20], 2)
    assert peaks[:, 0] == pytest.approx([0, 0], abs=1e-5)
    assert (where[:, 0] < [1, 20]).all()


def test_no_texts_have_no_peaks(setting):
    peaks, where = peak_activations(setting.target, [0, 1], [], 8)
    assert peaks.shape == where.shape == (0, 2)


def test_a_window_has_the_peak_that_the_evidence_holds(setting):
    table = setting.store.table
    peaks, where = peak_activations(setting.target, [GRADED], [table.text(i) for i in range(len(table))], 16)
    firings = setting.store.firings(GRADED)
    assert peaks[firings.window, 0] == pytest.approx(firings.peak, abs=1e-4)
    assert (where[firings.window, 0] == firings.peak_index).all()


# --- near tokens


def test_the_nearest_tokens_are_other_forms_and_never_triggers(setting):
    triggers = [ID[" apple"], ID[" walk"]]
    found = nearest_tokens(setting.target, setting.vocabulary, triggers, np.arange(1, len(TEXTS)))
    assert {" Apple", " apples", " Walk", " walks"} <= {TEXTS[i] for i in found}
    assert len(found) == NEAREST
    assert not set(found) & set(triggers)


def test_spelling_puts_variants_of_case_before_inflections_and_leaves_out_strangers():
    names = [TEXTS[i] for i in by_spelling(TEXTS, [ID[" walk"]], np.arange(1, len(TEXTS)))]
    assert names[:2] == [" walk", " Walk"]
    assert set(names[2:]) == {" walks", " walked", " walking"}


def test_embeddings_find_words_of_the_class_and_not_words_that_are_merely_frequent(setting):
    """Frequent words and one metal share a large component, which would make them the nearest."""
    model, generator = llama(), torch.Generator().manual_seed(3)
    for words in (COMMON, FRUIT, METAL, FORMS):
        direction = 0.1 * torch.randn(WIDTH, generator=generator)
        model.model.embed_tokens.weight[[ID[word] for word in words]] += direction
    model.model.embed_tokens.weight[[ID[word] for word in (*COMMON, " iron")], 0] += 3.0
    found = by_embedding(
        replace(setting.target, model=model), [ID[" iron"]], np.setdiff1d(range(1, len(TEXTS)), ID[" iron"])
    )
    assert {TEXTS[i] for i in found[:5]} == set(METAL[1:])


def test_without_triggers_or_candidates_there_are_no_nearest_tokens(setting):
    assert nearest_tokens(setting.target, setting.vocabulary, [], np.array([1, 2])) == []
    assert nearest_tokens(setting.target, setting.vocabulary, [1], np.array([1])) == []


# --- design


@pytest.mark.parametrize("given", [ON_FRUIT, AFTER_THE])
def test_positives_are_predicted_to_fire_and_near_misses_to_stay_silent(setting, given):
    experiment = design_experiment(setting, given, "confirm", 12)
    for case in experiment.cases:
        assert predicts(given.rule, tokens_of(case)) == (case.role == "positive")
        assert case.text == "".join(tokens_of(case))


def test_each_stratum_holds_what_it_says(setting):
    strata = by_stratum(design_experiment(setting, AFTER_THE, "confirm", 12))
    near = {
        TEXTS[i]
        for i in nearest_tokens(setting.target, setting.vocabulary, [ID[w] for w in FRUIT], np.arange(1, len(TEXTS)))
    }
    assert [len(cases) for cases in strata.values()] == [12] * 5
    assert all(set(FRUIT) & set(tokens_of(case)) for case in strata["corpus"])
    assert all(near & set(tokens_of(case)) for case in strata["neighbour"])


def test_every_near_token_gets_its_turn(setting):
    cases = by_stratum(design_experiment(setting, ON_FRUIT, "explain", 20))["neighbour"]
    held = {word for case in cases for word in tokens_of(case)}
    assert {" apples", " Apple", " pears", " Pear"} <= held


def test_no_text_occurs_twice_and_few_share_a_document(setting):
    experiment = design_experiment(setting, AFTER_THE, "explain", 15)
    assert len({tuple(case.ids) for case in experiment.cases}) == len(experiment.cases)
    for cases in by_stratum(experiment).values():
        windows = [case.document for case in cases if case.document]
        assert len(set(windows)) > 0.8 * len(windows)


def test_an_experiment_follows_from_its_seed(setting):
    first = design_experiment(setting, AFTER_THE, "select", 10)
    assert first == design_experiment(setting, AFTER_THE, "select", 10)
    assert first.cases != design_experiment(replace(setting, seed=1), AFTER_THE, "select", 10).cases


def test_no_window_is_chosen_by_its_activation(setting):
    """The same experiment comes out of a store that holds no activation at all."""
    blind = replace(setting, store=replace(setting.store, arrays={}, firing_counts=np.zeros(0)))
    assert design_experiment(blind, AFTER_THE, "confirm", 12) == design_experiment(setting, AFTER_THE, "confirm", 12)


def test_no_document_is_in_two_splits_or_was_shown_to_the_writer(setting):
    shown = {window.document for window in observe(setting.target, setting.store, FRUITS, setting.protocol, 0).windows}
    used = {
        split: {case.document for case in design_experiment(setting, AFTER_THE, split, 20).cases} - {None}
        for split in SPLITS
    }
    assert all(used.values())
    assert not used["select"] & used["confirm"]
    assert not shown & (used["select"] | used["confirm"])


def test_texts_written_from_a_window_are_known_to_be_of_its_document(setting):
    strata = by_stratum(design_experiment(setting, AFTER_THE, "confirm", 12))
    assert all(case.document is not None for case in [*strata[None], *strata["authored"]])


def test_nothing_is_drawn_from_documents_that_are_left_out(setting):
    first = {case.document for case in design_experiment(setting, AFTER_THE, "confirm", 8).cases} - {None}
    left = replace(setting, unseen=without(setting.store, first))
    second = {case.document for case in design_experiment(left, AFTER_THE, "confirm", 8).cases} - {None}
    assert first and second and not first & second


def test_short_windows_are_left_out_where_most_are_whole(setting):
    assert {len(case.ids) for case in design_experiment(setting, AFTER_THE, "confirm", 20).cases} == {32}


def test_short_windows_are_used_where_there_are_hardly_others(setting):
    table = setting.store.table
    short = replace(table, lengths=np.where(np.arange(len(table)) % 3, 9, table.lengths))
    brief = replace(setting, store=replace(setting.store, table=short))
    assert 9 in {len(case.ids) for case in design_experiment(brief, ON_FRUIT, "confirm", 20).cases}


def test_what_can_not_be_found_is_reported_and_not_filled_up(setting):
    experiment = design_experiment(setting, ON_FRUIT, "confirm", 10)
    assert experiment.shortfall == {"corpus": 10}
    assert not by_stratum(experiment)["corpus"]


def test_a_hypothesis_without_a_rule_is_tested_around_the_tokens_it_is_given_with(setting):
    written = InputHypothesis(id="H1", text="It fires on fruit after an article.", rule=None)

    class Reader(type(setting.explainer)):
        def predicts(self, _hypothesis, windows):
            return super().predicts(AFTER_THE, windows)

    reading = replace(setting, explainer=Reader())
    strata = by_stratum(design_experiment(reading, written, "confirm", 8, trigger_ids=[ID[word] for word in FRUIT]))
    assert all(set(FRUIT) & set(tokens_of(case)) for case in strata["corpus"])
    assert len(strata["corpus"]) == len(strata["neighbour"]) == 8


def test_a_rule_that_names_cues_alone_is_tested_around_them(setting):
    assert rule_tokens(Rule(any_of=[Clause(after=[" the"])]), setting.vocabulary) == [ID[" the"]]
    both = Rule(any_of=[Clause(after=[" the"]), Clause(tokens=[" tin"], after=[" of"])])
    assert rule_tokens(both, setting.vocabulary) == [ID[" tin"]]


def test_peak_tokens_are_those_of_windows_that_fire(setting):
    seen = observe(setting.target, setting.store, FRUITS, setting.protocol, 0)
    assert {TEXTS[i] for i in peak_tokens(seen)} == set(FRUIT)
    assert peak_tokens(seen.model_copy(update={"tau": 0.0})) == []


def test_windows_of_each_group_take_turns():
    assert in_turns(np.array([5, 3, 8, 1]), ["a", "a", "b", "a"]).tolist() == [5, 8, 3, 1]


def test_a_text_of_its_own_comes_from_no_document(setting):
    table = setting.store.table
    edited = table.text(7)
    edited[2] = ID[" melon"]
    assert origin_of(edited, table, np.arange(len(table))) == table.document_of(7)
    assert origin_of([ID[" tin"]] * table.lengths[7], table, np.arange(len(table))) is None
    assert origin_of([1], table, np.arange(len(table))) is None


def form_of(case):
    """What can be seen of a text without reading it: length, marks, capitals, and where they stand."""
    words = tokens_of(case)
    marks = [i for i, word in enumerate(words) if word in (",", ".")]
    return [
        len(words), len(case.text), len(marks) / len(words), (marks or [0])[0], (marks or [0])[-1],
        sum(word.strip()[:1].isupper() for word in words), words[0] in (",", "."), words[-1] in (",", "."),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "stratum"),
    [(ON_FRUIT, "authored"), (ON_FRUIT, "neighbour"), *((AFTER_THE, stratum) for stratum in GATED_STRATA)],
)
def test_near_misses_are_not_recognisable_by_form_or_position(setting, given, stratum):
    """A linear classifier of form alone, fitted on one set of documents, is near chance on the next."""

    def cases_of(split):
        experiments = [design_experiment(replace(setting, seed=seed), given, split, 40) for seed in range(4)]
        return [case for experiment in experiments for case in experiment.cases if case.stratum in (None, stratum)]

    train, test = cases_of("explain"), cases_of("confirm")

    def data(part):
        x = np.array([[*form_of(case), 1.0] for case in part], float)
        is_near = np.array([case.stratum is not None for case in part])
        return x, is_near

    (x, y), (x_test, y_test) = data(train), data(test)
    balance = np.where(y, 1 / y.sum(), 1 / (~y).sum()) ** 0.5
    weights = np.linalg.lstsq(x * balance[:, None], np.where(y, 1.0, -1.0) * balance, rcond=None)[0]
    right = (x_test @ weights > 0) == y_test
    # seeds draw from the same windows, so that balanced accuracy has a standard error of about 0.04
    assert (right[y_test].mean() + right[~y_test].mean()) / 2 < 0.65


# --- scores


def test_a_true_explanation_scores_full_marks(setting):
    score = scored(setting, ON_FRUIT)
    full = [score.coverage, score.rejection, score.recall, score.precision, score.strata["random"]]
    assert [found.value for found in full] == [1.0] * 5
    assert score.auroc == score.balanced_accuracy == 1.0
    assert score.strata["corpus"] == EMPTY
    assert len(score.cases) == score.coverage.n + sum(found.n for found in score.strata.values())


def test_a_narrow_explanation_has_coverage_without_recall_and_a_broad_one_recall_without_coverage(setting):
    narrow, broad = scored(setting, ON_PEAR), scored(setting, ON_FRUIT_AND_METAL)
    assert narrow.coverage.value == narrow.precision.value == 1.0
    assert narrow.recall.value < 0.5
    assert broad.recall.value == 1.0
    assert max(broad.coverage.value, broad.precision.value) < 0.9
    assert choose_input([narrow, broad, scored(setting, ON_FRUIT)]) == "H1"


def test_an_explanation_without_the_context_it_needs_shows_in_coverage(setting):
    """The latent fires on fruit anywhere: asking for a cue as well is found out by windows that hold fruit without it."""
    score = scored(setting, AFTER_THE)
    assert score.coverage.value == 1.0
    assert score.strata["corpus"].value == 0.0
    assert score.rejection.value < 0.8


def test_another_features_explanation_fails(setting):
    metal = hypothesis(Clause(tokens=METAL))
    seen = observe(setting.target, setting.store, FRUITS, setting.protocol, 0)
    assert judge_input(seen, scored(setting, metal, seen=seen), setting.protocol)[0] == "fail"


def test_scores_follow_from_the_cases(setting):
    seen = observe(setting.target, setting.store, GRADED, setting.protocol, 0)
    score = scored(setting, ON_FRUIT, feature=GRADED, seen=seen)
    positives = [case for case in score.cases if case.role == "positive"]
    grey = [case for case in score.cases if 0 < case.activation < seen.tau]
    assert score.coverage.value == np.mean([case.activation >= seen.tau for case in positives])
    assert score.coverage.value < score.coverage_above_zero.value == 1.0
    assert score.grey_share == pytest.approx(len(grey) / len(score.cases))
    assert grey
    assert all(case.fires == (case.activation >= seen.tau) for case in score.cases)
    gated = [score.strata[stratum].value for stratum in GATED_STRATA if score.strata[stratum].n]
    assert score.rejection.value == pytest.approx(np.mean(gated))


def test_specificity_counts_a_tie_as_no_win_and_judges_each_neighbour_at_its_own_tau(setting):
    seen = observe(setting.target, setting.store, FRUITS, setting.protocol, 0)

    def against(*neighbours):
        return scored(setting, ON_FRUIT, seen=seen.model_copy(update={"neighbours": list(neighbours)})).specificity

    assert against(FRUITS_AGAIN).value == 0.0
    assert against(PEARS).value == 1.0
    assert against(PEARS, FRUITS_AGAIN, ALL_WORDS).value == pytest.approx(1 / 3)
    assert against() == EMPTY


def test_random_texts_are_reported_and_not_gated(setting):
    """A random text is no near miss: its share is in `strata`, and not in the mean."""
    experiment = design_experiment(setting, ON_FRUIT, "confirm", 20)
    seen = observe(setting.target, setting.store, ALL_WORDS, setting.protocol, 0)
    kept = experiment.model_copy(update={"cases": [c for c in experiment.cases if c.stratum in (None, "random")]})
    score = score_input(setting, ALL_WORDS, seen, ON_FRUIT, kept)
    assert score.strata["random"].value == 0.0
    assert score.rejection == score.rejection_above_zero == EMPTY
    assert score.auroc is None


def test_a_silent_text_does_not_fire_a_feature_without_a_scale():
    assert not fires(0.0, 0.0)
    assert fires(0.1, 0.0)
    assert fires(2.0, 2.0)
    assert not fires(1.9, 2.0)


# --- trivial answers


def test_an_explanation_that_always_says_yes_finds_no_near_miss_and_fails(setting):
    seen = observe(setting.target, setting.store, ALL_WORDS, setting.protocol, 0).model_copy(
        update={"feature_kind": "normal"}
    )
    experiment = design_experiment(setting, ALWAYS, "confirm", 10)
    score = score_input(setting, ALL_WORDS, seen, ALWAYS, experiment)
    assert score.coverage.value == 1.0
    assert {*experiment.shortfall} == {"authored", "corpus", "neighbour", "random"}
    assert judge_input(seen, score, setting.protocol)[0] == "fail"
    assert score.recall.value in (1.0, None)
    assert score.balanced_accuracy in (0.5, None)


def test_an_explanation_that_never_says_yes_finds_no_positive_and_fails(setting):
    seen = observe(setting.target, setting.store, FRUITS, setting.protocol, 0)
    score = scored(setting, NEVER, seen=seen)
    assert score.coverage == EMPTY
    assert (score.recall.value, score.balanced_accuracy) == (0.0, 0.5)
    assert judge_input(seen, score, setting.protocol)[0] == "fail"


@pytest.mark.parametrize("answer", [True, False, None])
def test_a_judge_that_gives_one_answer_passes_nothing(setting, answer):
    class Constant(type(setting.explainer)):
        def author(self, *_arguments):
            return []

        def predicts(self, _hypothesis, windows):
            return [answer] * len(windows)

    constant = replace(setting, explainer=Constant())
    seen = observe(setting.target, setting.store, FRUITS, setting.protocol, 0)
    score = scored(constant, ON_FRUIT, seen=seen)
    assert judge_input(seen, score, setting.protocol)[0] != "pass"
    assert score.balanced_accuracy == (None if answer is None else 0.5)
    assert (score.recall.n > 0) == (answer is not None)


def test_a_judge_that_says_yes_to_everything_is_not_saved_by_texts_that_do_fire(setting):
    """With positives written by rule and a judge that always says yes, no near miss is left to reject."""

    class Credulous(type(setting.explainer)):
        def predicts(self, _hypothesis, windows):
            return [True] * len(windows)

        def author(self, *arguments):
            return [case for case in super().author(*arguments) if case.role == "positive"]

    seen = observe(setting.target, setting.store, FRUITS, setting.protocol, 0)
    score = scored(replace(setting, explainer=Credulous()), ON_FRUIT, seen=seen)
    assert score.coverage.value == 1.0
    assert judge_input(seen, score, setting.protocol)[0] == "fail"


# --- planted features


@pytest.fixture(scope="module")
def planted_setting(planted, tmp_path_factory):
    """The planted model with a part of its corpus."""
    folder = tmp_path_factory.mktemp("planted") / "store"
    params = Params(corpus_tokens=24_000)
    scan(planted, corpus_of("planted", [Document(*pair) for pair in planted.own_documents]), params, folder)
    store = open_store(folder)
    vocabulary = vocabulary_of(planted, store.token_counts)
    return Setting(planted, store, vocabulary, get_explainer("statistical"), {}, params.protocol, 0, 32)


def truth_of(name):
    from mikit.targets.planted.truth import truths

    return next(truth for truth in truths() if truth.name == name)


@pytest.mark.parametrize("name", ["fruits", "royal_animals", "vehicles_repaired", "bank_of_a_river"])
def test_what_was_planted_passes_the_input_gate(planted_setting, name):
    truth = truth_of(name)
    seen = observe(planted_setting.target, planted_setting.store, truth.index, planted_setting.protocol, 0)
    given = InputHypothesis(id="H1", text="the truth", rule=truth.rule)
    score = scored(planted_setting, given, feature=truth.index, seen=seen)
    verdict, reason = judge_input(seen, score, planted_setting.protocol)
    assert verdict == "pass", reason
    assert score.recall.value == score.precision.value == 1.0


@pytest.mark.parametrize(
    ("name", "other"), [("fruits", "berries"), ("bank_of_a_river", "bank_of_money"), ("metals", "fruits")]
)
def test_what_was_planted_elsewhere_does_not(planted_setting, name, other):
    truth = truth_of(name)
    seen = observe(planted_setting.target, planted_setting.store, truth.index, planted_setting.protocol, 0)
    given = InputHypothesis(id="H1", text="another's truth", rule=truth_of(other).rule)
    score = scored(planted_setting, given, feature=truth.index, seen=seen)
    assert judge_input(seen, score, planted_setting.protocol)[0] == "fail"


def test_a_trigger_without_its_cue_is_found_out_by_windows_of_the_corpus(planted_setting):
    """Words that fire only behind a cue: the words alone cover too little, and the hypothesis with its cue is chosen."""
    truth = truth_of("royal_animals")
    seen = observe(planted_setting.target, planted_setting.store, truth.index, planted_setting.protocol, 0)
    whole = InputHypothesis(id="whole", text="the truth", rule=truth.rule)
    part = InputHypothesis(id="part", text="a part of it", rule=Rule(any_of=[Clause(tokens=sorted(truth.own))]))
    scores = [
        scored(planted_setting, given, feature=truth.index, split="select", n=10, seen=seen) for given in (part, whole)
    ]
    assert judge_input(seen, scores[0], planted_setting.protocol)[0] == "fail"
    assert scores[0].recall.value == 1.0
    assert choose_input(scores) == "whole"


# --- choosing


def test_nothing_is_chosen_from_nothing():
    assert choose_input([]) is None


def test_recall_decides_between_explanations_that_pass_both_gates():
    narrow = input_score("narrow", coverage=share(10, 10), rejection=share(30, 30), recall=share(16, 60))
    wide = input_score("wide", coverage=share(9, 10), rejection=share(27, 30), recall=share(50, 60))
    assert choose_input([narrow, wide]) == choose_input([wide, narrow]) == "wide"


def test_an_explanation_that_could_be_confirmed_comes_before_one_that_could_not():
    fails = input_score("fails", coverage=share(7, 10), recall=share(58, 60), precision=share(59, 60))
    passes = input_score("passes", coverage=share(8, 10), rejection=share(25, 30), recall=share(31, 60))
    assert choose_input([fails, passes]) == "passes"


def test_of_equal_explanations_the_writers_first_is_chosen_and_an_unscored_one_is_last():
    empty = input_score("empty", coverage=share(0, 0))
    assert choose_input([empty, input_score("first"), input_score("second")]) == "first"
