"""Directions are added where they should be, nowhere else, and the effect is measured as a difference by prompt."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import log_softmax

from mikit.experiments.steering import (
    Site,
    ablation_sites,
    adding,
    changes,
    continuations,
    following_kl,
    kl_divergence,
    prompt_sites,
    steered_logprobs,
)
from mikit.targets.base import LanguageModel, Target
from mikit.targets.hooks import batch_of, logits, read_residual
from mikit.targets.sae import Sae

VOCAB, WIDTH, LAYER = 60, 16, 1
PROMPTS = [[5, 6, 7], [8, 9, 10, 11], [12, 13], [14, 15, 16]]


def tiny_sae(architecture="jumprelu"):
    generator = torch.Generator().manual_seed(1)
    W_dec = torch.nn.functional.normalize(torch.randn(24, WIDTH, generator=generator), dim=1)
    return Sae(
        id="tiny",
        architecture=architecture,
        W_enc=W_dec.T.contiguous(),
        W_dec=2.0 * W_dec,
        b_enc=torch.zeros(24),
        b_dec=torch.zeros(WIDTH),
        threshold=torch.full((24,), 0.002),
        apply_b_dec_to_input=False,
        hash="0",
    )


@pytest.fixture(scope="module")
def tiny():
    """A random Llama of three blocks with an SAE behind the second."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    lm = LanguageModel(
        model=LlamaForCausalLM(config).eval().requires_grad_(False),
        tokenizer=None,
        layer=LAYER,
        hook_point=f"model.layers.{LAYER}",
        bos_id=0,
        special_ids=frozenset([0]),
        model_id="tiny",
        model_hash="0",
        tokenizer_hash="0",
    )
    return Target(**vars(lm), name="tiny", sae=tiny_sae(), default_corpus="none")


def clean_logprobs(lm, ids):
    return log_softmax(logits(lm, batch_of(lm, [ids])[0]), -1)[0]


def direction(scale=1.0, seed=2):
    return scale * torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("position", ["last_token", "all_tokens"])
def test_strength_zero_gives_bit_identical_logits(tiny, position):
    for site in prompt_sites(PROMPTS, position):
        ids, _ = batch_of(tiny, [site.ids])
        edit = adding(torch.tensor([(0.0, *site.weights)]), 0.0 * direction()[None])
        assert torch.equal(logits(tiny, ids, edit=edit), logits(tiny, ids))


@pytest.mark.parametrize("position", ["last_token", "all_tokens"])
def test_strength_zero_changes_nothing_and_more_strength_changes_more(tiny, position):
    vectors = torch.stack([dose * direction() for dose in (0.0, 0.01, 0.1, 1.0)])
    found = changes(tiny, prompt_sites(PROMPTS, position), vectors, np.arange(VOCAB), batch=8)
    assert (found.logprob[0] == 0).all()
    assert (np.diff(found.kl, axis=0) > 0).all()


@pytest.mark.parametrize("position", ["last_token", "all_tokens"])
@pytest.mark.parametrize("batch", [1, 5, 64])
def test_the_shared_beginning_gives_what_a_full_pass_gives(tiny, position, batch):
    vectors = torch.stack([direction(seed=seed) for seed in (2, 3)])
    found = changes(tiny, prompt_sites(PROMPTS, position), vectors, np.array([3, 40]), batch)
    for p, prompt in enumerate(PROMPTS):
        for v, vector in enumerate(vectors):
            start = 1 if position == "all_tokens" else len(prompt)

            def edit(residual, start=start, vector=vector):
                residual = residual.clone()
                residual[:, start:] += vector
                return residual

            steered = log_softmax(logits(tiny, batch_of(tiny, [prompt])[0], edit=edit), -1)[0, -1]
            expected = (steered - clean_logprobs(tiny, prompt)[-1])[[3, 40]]
            assert found.logprob[v, p] == pytest.approx(expected.numpy(), abs=1e-5)


def test_nothing_before_the_steered_token_changes(tiny):
    ids, _ = batch_of(tiny, [PROMPTS[1]])
    steered = logits(tiny, ids, edit=adding(torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]]), direction(10.0)[None]))
    clean = logits(tiny, ids)
    assert torch.equal(steered[:, :3], clean[:, :3])
    assert (steered[:, 3:] - clean[:, 3:]).abs().amax(-1).min() > 1e-3


def test_the_stream_is_edited_by_exactly_the_weighted_direction(tiny):
    weights, vector = torch.tensor([[0.0, 0.5, -2.0]]), direction()
    residual = read_residual(tiny, batch_of(tiny, [PROMPTS[2]])[0])
    edited = adding(weights, vector[None])(residual)
    assert torch.equal(edited[:, 0], residual[:, 0])
    assert torch.allclose(edited - residual, weights[..., None] * vector, atol=1e-6)


def test_kept_logits_are_the_last_ones(tiny):
    ids, _ = batch_of(tiny, [PROMPTS[1]])
    assert logits(tiny, ids, keep=2) == pytest.approx(logits(tiny, ids)[:, -2:], abs=1e-6)


def test_no_hook_is_left_on_the_model(tiny):
    before = clean_logprobs(tiny, PROMPTS[0])
    changes(tiny, prompt_sites(PROMPTS, "last_token"), direction(5.0)[None], np.arange(3), batch=8)
    assert not tiny.model.get_submodule(tiny.hook_point)._forward_hooks
    assert torch.equal(clean_logprobs(tiny, PROMPTS[0]), before)


def test_ablation_takes_away_the_feature_where_it_fires_and_adding_it_back_restores_the_logits(tiny):
    ids, _ = batch_of(tiny, PROMPTS[:1])
    acts = tiny.sae.encode(read_residual(tiny, ids))[0, 1:]
    feature = int(acts.sum(0).argmax())
    (site,) = ablation_sites(PROMPTS[:1], [acts[:, feature].numpy()])
    assert max(-weight for weight in site.weights) > 0
    weights, row = torch.tensor([(0.0, *site.weights)]), tiny.sae.W_dec[feature][None]
    ablate, restore = adding(weights, row), adding(-weights, row)
    lost = read_residual(tiny, ids) - ablate(read_residual(tiny, ids))
    assert lost[0, 1:] == pytest.approx(acts[:, feature, None] * row, abs=1e-6)
    assert (logits(tiny, ids, edit=ablate) - logits(tiny, ids)).abs().max() > 1e-5
    restored = logits(tiny, ids, edit=lambda stream: restore(ablate(stream)))
    assert restored == pytest.approx(logits(tiny, ids), abs=1e-5)


def test_ablating_a_silent_feature_changes_nothing(tiny):
    site = Site(tuple(PROMPTS[0]), (0.0, 0.0, 0.0))
    found = changes(tiny, [site], direction(9.0)[None], np.arange(VOCAB), batch=8)
    assert (found.logprob == 0).all()
    assert (found.kl == 0).all()


def test_continuations_are_the_greedy_ones_of_the_steered_model(tiny):
    sites, vector = prompt_sites(PROMPTS[:2], "last_token"), direction(8.0)
    for edit_vector in (None, vector):
        for site, found in zip(sites, continuations(tiny, sites, edit_vector, 4, batch=4), strict=True):
            ids = list(site.ids)
            for expected in found:
                weights = torch.tensor([(0.0, *site.weights, *(0.0,) * (len(ids) - len(site.ids)))])
                edit = None if edit_vector is None else adding(weights, edit_vector[None])
                assert int(logits(tiny, batch_of(tiny, [ids])[0], edit=edit)[0, -1].argmax()) == expected
                ids.append(expected)


def test_the_following_positions_are_read_behind_the_same_tokens(tiny):
    sites, written, vector = prompt_sites(PROMPTS[:1], "last_token"), [[20, 21]], direction(8.0)
    found = following_kl(tiny, sites, written, vector, batch=4)
    ids, _ = batch_of(tiny, [[*PROMPTS[0], 20, 21]])
    steered = logits(tiny, ids, edit=adding(torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]]), vector[None]))
    expected = kl_divergence(log_softmax(logits(tiny, ids), -1), log_softmax(steered, -1))[0, -2:]
    assert found == pytest.approx(expected.numpy(), abs=1e-5)


def test_log_probabilities_add_up_to_one(tiny):
    ids, _ = batch_of(tiny, PROMPTS[:1])
    found = steered_logprobs(tiny, ids, torch.tensor([[0.0, 0.0, 0.0, 1.0]]), direction(3.0)[None])
    assert found.shape == (1, 1, 1, VOCAB)
    assert found.exp().sum(-1).item() == pytest.approx(1.0, abs=1e-5)


@given(
    st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=4),
    st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=4),
)
def test_kl_is_not_negative_and_zero_on_itself(first, second):
    one, other = (log_softmax(torch.tensor(values), -1) for values in (first, second))
    assert kl_divergence(one, other) >= 0
    assert kl_divergence(one, one) == 0
