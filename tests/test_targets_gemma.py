"""A tiny random Gemma-2 with a real-format Gemma Scope SAE: what is read, what is refused, and a run from end to end."""

import re
from dataclasses import replace

import numpy as np
import pytest
import tiny_gemma
import torch
from hypothesis import given
from hypothesis import strategies as st

import mikit
from mikit.errors import BadInput
from mikit.evidence.observe import logit_lens
from mikit.targets import Options, load_target
from mikit.targets.hooks import batch_of, logits, read_residual
from mikit.targets.preflight import checks, fit_of, require_fit
from mikit.targets.sae_files import load_sae
from mikit.targets.sample import sample_ids

LAYER = tiny_gemma.LAYER


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_gemma.write_model(tmp_path_factory.mktemp("gemma") / "gemma-2-tiny")


@pytest.fixture(scope="module")
def reference(folder):
    """The same folder loaded by transformers alone, and its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval().requires_grad_(False), AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def weights(reference):
    return tiny_gemma.token_saes(*reference)


@pytest.fixture(scope="module")
def root(weights, tmp_path_factory):
    root = tmp_path_factory.mktemp("scope")
    tiny_gemma.write_scope(root, weights[0])
    return root


@pytest.fixture(scope="module")
def gemma(folder, root):
    return load_target(str(folder), LAYER, Options(sae_root=str(root), device="cpu"))


@pytest.fixture(scope="module")
def batch(gemma):
    return batch_of(gemma, [text[: 32 - 3 * i] for i, text in enumerate(sample_ids(gemma)[:6])])


def failure(target, feature=None):
    """The name of the first check that does not hold, and its line."""
    for check in checks(target, feature):
        if not check.holds:
            return check.name, str(check)
    raise AssertionError("everything holds")


# --- the model


def test_attention_is_eager_and_scores_and_logits_are_soft_capped(gemma, batch):
    config = gemma.model.config
    assert config._attn_implementation == "eager"
    assert (config.attn_logit_softcapping, config.final_logit_softcapping) == (50.0, 30.0)
    assert logits(gemma, *batch).abs().max() <= 30.0
    before = read_residual(gemma, *batch)
    attention = gemma.model.model.layers[1].self_attn
    assert attention.attn_logit_softcapping == 50.0
    try:
        attention.attn_logit_softcapping = 0.01
        assert not torch.allclose(read_residual(gemma, *batch)[batch[1]], before[batch[1]])
    finally:
        attention.attn_logit_softcapping = 50.0


@pytest.mark.parametrize("layer", range(tiny_gemma.LAYERS))
def test_every_block_is_read_as_transformers_gives_it(gemma, reference, batch, layer):
    ids, seen = unpadded(batch), []
    model, _ = reference
    handle = model.model.layers[layer].register_forward_hook(lambda _m, _i, output: seen.append(output))
    hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    handle.remove()
    read = read_residual(replace(gemma, layer=layer, hook_point=f"model.layers.{layer}"), ids)
    assert torch.equal(read, seen[0])
    if layer + 1 < tiny_gemma.LAYERS:
        assert torch.equal(read, hidden[layer + 1])


def unpadded(batch):
    """The texts cut to the length of the shortest."""
    ids, mask = batch
    return ids[:, : int(mask.sum(1).min())]


@pytest.mark.parametrize("layer", range(1, tiny_gemma.LAYERS))
def test_a_block_adds_what_its_attention_and_mlp_give_behind_their_own_norms(gemma, batch, layer):
    block, seen = gemma.model.model.layers[layer], {}

    def keep(name):
        return lambda _module, _inputs, output: seen.__setitem__(name, output)

    handles = [
        block.post_attention_layernorm.register_forward_hook(keep("attention")),
        block.post_feedforward_layernorm.register_forward_hook(keep("mlp")),
    ]
    ids = unpadded(batch)
    at = [read_residual(replace(gemma, hook_point=f"model.layers.{i}"), ids) for i in (layer - 1, layer)]
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(at[0] + seen["attention"] + seen["mlp"], at[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("text", ["The river crossed", "<bos>The river crossed", "<bos><bos>The river<eos> crossed"])
def test_a_text_has_one_bos_however_it_begins(gemma, text):
    ids, _ = batch_of(gemma, [gemma.ids_of(text)])
    assert (ids[0] == gemma.bos_id).nonzero().flatten().tolist() == [0]
    assert gemma.text_of(ids[0, 1:].tolist()) == "The river crossed"
    assert gemma.tokenizer("The river crossed")["input_ids"] == ids[0].tolist()


def test_a_chat_prompt_has_one_bos_too(gemma):
    ids = gemma.ids_of("<bos><start_of_turn>user\nThe river crossed")
    assert not gemma.special_ids & set(ids)


def test_in_bfloat16_the_model_is_half_and_the_sae_is_not(folder, root, gemma, batch):
    half = load_target(str(folder), LAYER, Options(sae_root=str(root), dtype="bfloat16", device="cpu"))
    assert half.model.dtype == torch.bfloat16
    assert half.sae.W_enc.dtype == half.sae.threshold.dtype == torch.float32
    read, mask = read_residual(half, *batch), batch[1]
    assert read.dtype == torch.float32
    difference = (read - read_residual(gemma, *batch)).norm(dim=-1)[mask]
    assert difference.max() < 0.03 * read.norm(dim=-1)[mask].max()
    require_fit(half)
    ours, theirs = half.sae.encode(read[mask]) > 0, gemma.sae.encode(read_residual(gemma, *batch)[mask]) > 0
    assert (ours & theirs).sum() / (ours | theirs).sum() >= 0.95


def test_float16_is_refused_for_gemma_with_the_reason(folder, root, gemma):
    with pytest.raises(BadInput, match=r"float16.*65504.*overflow to infinity: valid: bfloat16, float32"):
        load_target(str(folder), LAYER, Options(sae_root=str(root), dtype="float16"))
    from transformers import AutoModelForCausalLM

    half = replace(gemma, model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16))
    assert failure(half)[0] == "model precision"


def test_the_lens_looks_through_a_norm_that_multiplies_by_one_plus_its_weight(gemma):
    row = gemma.sae.W_dec[7]
    scores = gemma.model.lm_head.weight @ (row * (1 + gemma.model.model.norm.weight))
    promoted, suppressed = logit_lens(gemma, 7)
    for token in (*promoted, *suppressed):
        assert token.value == pytest.approx(float(scores[token.id]), abs=1e-4)
    assert promoted[0].value >= promoted[-1].value > suppressed[0].value


# --- the SAE


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 17]), st.floats(0.1, 100))
def test_jumprelu_is_what_numpy_makes_of_the_published_formula(weights, root, seed, n, scale):
    """a = relu(pre) * (pre > threshold) with pre = x W_enc + b_enc."""
    w, sae = weights[0], load_sae(tiny_gemma.scope_folder(root))
    x = (scale * np.random.default_rng(seed).standard_normal((n, w["W_dec"].shape[1]))).astype(np.float32)
    pre = x.astype(np.float64) @ w["W_enc"].astype(np.float64) + w["b_enc"]
    # within rounding of a threshold either side is right
    near = np.abs(pre - w["threshold"]) < 1e-4 * (1 + np.abs(pre))
    expected = np.maximum(pre, 0) * (pre > w["threshold"])
    found = sae.encode(torch.from_numpy(x)).numpy()
    assert np.allclose(found[~near], expected[~near], rtol=1e-5, atol=1e-5 * (1 + scale))
    columns = torch.tensor([3, 0, 11])
    assert np.allclose(sae.encode(torch.from_numpy(x), columns).numpy(), found[:, columns], rtol=1e-5, atol=1e-4)


def test_the_folder_says_which_layer_and_l0_an_sae_has(gemma, folder, root):
    sae = gemma.sae
    assert (sae.layer, sae.expected_l0, sae.apply_b_dec_to_input) == (LAYER, 1.0, False)
    assert sae.id == f"layer_{LAYER}/width_16k/average_l0_1"
    place = str(tiny_gemma.scope_folder(root))
    assert mikit.load_target(str(folder), sae=place, device="cpu").layer == LAYER


# --- preflight


def test_a_target_that_fits_passes_every_check(gemma):
    names = [check.name for check in require_fit(gemma, 0)]
    assert len(names) >= 18
    assert {"hook tensor", "one BOS", "left padding", "right padding", "finite", "L0", "variance explained"} <= set(
        names
    )


@pytest.fixture(scope="module")
def mistakes(gemma, weights, folder):
    """Targets with one thing wrong each, and the check that stops them."""
    sae = gemma.sae
    narrow = replace(sae, W_enc=sae.W_enc[:32], W_dec=sae.W_dec[:, :32], b_dec=sae.b_dec[:32])
    broken = replace(sae, b_enc=torch.full_like(sae.b_enc, torch.nan))
    return {
        "apply_b_dec_to_input": replace(gemma, sae=replace(sae, apply_b_dec_to_input=True)),
        "hook tensor": replace(gemma, hook_point=f"model.layers.{LAYER}.mlp"),
        "layer": replace(gemma, layer=LAYER - 1, hook_point=f"model.layers.{LAYER - 1}"),
        "BOS": replace(gemma, bos_id=gemma.ids_of("river")[0]),
        "tokenizer's BOS": replace(gemma, bos_id=gemma.tokenizer.eos_token_id),
        "SAE precision": replace(gemma, sae=sae.to("cpu", torch.bfloat16)),
        "shapes": replace(gemma, sae=narrow),
        "finite": replace(gemma, sae=broken),
        "L0": replace(gemma, sae=replace(sae, threshold=torch.zeros_like(sae.threshold))),
    }


@pytest.mark.parametrize(
    "name, cause",
    [
        ("apply_b_dec_to_input", "the flag in the SAE's configuration is wrong"),
        ("hook tensor", "a hook point inside the block"),
        ("layer", "an SAE of another layer"),
        ("BOS", "a tokenizer that adds a BOS"),
        ("tokenizer's BOS", "the BOS of another model"),
        ("SAE precision", "cast to the model's precision"),
        ("shapes", "an SAE of another model, or a matrix with its axes the other way round"),
        ("finite", "an overflow in float16, or damaged weights"),
        ("L0", "read as ReLU"),
    ],
)
def test_preflight_stops_one_thing_that_is_wrong_in_a_line_with_the_cause(mistakes, name, cause):
    found, line = failure(mistakes[name])
    assert found == name
    assert cause in line and "\n" not in line
    with pytest.raises(BadInput, match="preflight of gemma-2-tiny: "):
        require_fit(mistakes[name])


@pytest.mark.parametrize("place", ["self_attn", "mlp", "post_feedforward_layernorm", "input_layernorm", "nowhere"])
def test_preflight_stops_every_wrong_hook_point(gemma, place):
    name, line = failure(replace(gemma, hook_point=f"model.layers.{LAYER}.{place}"))
    assert name in ("hook tensor", "hook point") and "inside the block" in line


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_preflight_stops_an_sae_at_another_layer(gemma, layer):
    assert failure(replace(gemma, layer=layer, hook_point=f"model.layers.{layer}"))[0] in ("layer", "L0")


def test_preflight_stops_an_index_beyond_the_width(gemma):
    name, line = failure(gemma, gemma.sae.d_sae)
    assert name == "index" and f"valid: 0 to {gemma.sae.d_sae - 1}" in line
    with pytest.raises(BadInput, match="out of range"):
        gemma.check_feature(gemma.sae.d_sae)


def test_preflight_stops_a_model_with_infinite_activations(gemma, folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight[0, 0] = torch.inf
    assert failure(replace(gemma, model=model))[0] in ("finite", "hook tensor")


def test_preflight_stops_a_topk_sae_that_is_read_as_plain_relu(gemma):
    sae = replace(gemma.sae, architecture="topk", k=1, threshold=torch.zeros_like(gemma.sae.threshold))
    require_fit(replace(gemma, sae=sae))
    name, line = failure(replace(gemma, sae=replace(sae, k=None)))
    assert name == "L0" and "TopK or JumpReLU read as ReLU" in line


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_variance_explained_is_a_fraction_whatever_the_norm_of_the_stream(gemma, batch, scale):
    """A mean squared error would grow with the layer."""
    sae, x = gemma.sae, read_residual(gemma, *batch)[batch[1]]
    scaled = replace(sae, **{name: scale * getattr(sae, name) for name in ("b_enc", "b_dec", "threshold")})
    fit, other = fit_of(sae, x), fit_of(scaled, scale * x)
    assert other.variance == pytest.approx(fit.variance, abs=1e-3) and other.l0 == pytest.approx(fit.l0, abs=0.02)


def test_preflight_stops_padding_that_is_attended_to(gemma, monkeypatch):
    from mikit.targets import hooks

    monkeypatch.setattr(hooks, "_attention", lambda _mask: {})
    assert failure(gemma)[0] == "left padding"


def test_preflight_stops_an_active_set_that_its_own_precision_does_not_resolve(gemma):
    """Thresholds so near to the activations that rounding decides which latents are active."""
    sae, (ids, mask) = gemma.sae, batch_of(gemma, sample_ids(gemma))
    acts = sae.encode(read_residual(gemma, ids, mask)[:, 1:][mask[:, 1:]])
    lowest = acts.where(acts > 0, torch.inf).amin(0)
    edge = torch.where(lowest.isfinite(), lowest - 1e-3, sae.threshold)
    near = replace(gemma, sae=replace(sae, threshold=edge, dtype=torch.bfloat16))
    name, line = failure(near)
    assert name == "active set" and "bfloat16" in line
    require_fit(replace(near, sae=replace(near.sae, dtype=torch.float32)))


# --- from end to end


def test_nine_steps_run_on_it_and_end_in_a_valid_trace(gemma, folder, root, weights, tmp_path):
    from mikit.runs import explain
    from mikit.runs.directory import RunDirectory
    from mikit.settings import make_params
    from mikit.trace import Trace

    corpus = tiny_gemma.write_corpus(tmp_path / "corpus.jsonl")
    feature = weights[1].index(gemma.ids_of(" the river")[-1])
    protocol = {"n_select": 4, "n_confirm": 6, "rare_windows": 10, "n_neighbours": 5, "n_output_tokens": 5}
    trace = explain(
        model=str(folder), layer=LAYER, feature=feature, run="tiny", sae_root=str(root), device="cpu",
        corpus=str(corpus), corpus_tokens=10_000, nulls=True, protocol=protocol,
    )  # fmt: skip
    written = Trace.model_validate_json(RunDirectory(make_params(trace.provenance.params)).trace_path.read_bytes())
    assert written.model_dump(mode="json") == trace.model_dump(mode="json")
    assert trace.meta.feature_kind == "normal"
    assert re.search("river", trace.meta.interpretations.input)
    facts = trace.provenance
    assert (facts.sae_id, facts.sae_hash) == (gemma.sae.id, gemma.sae.hash)
    assert (facts.hook_point, facts.bos_id, facts.dtype) == (f"model.layers.{LAYER}", 2, "float32")
    assert facts.params["sae_root"] == str(root)
