"""Every family of models is read, edited and looked through alike; where a model comes from, and what is refused."""

import json

import pytest
import tiny_gemma
import torch

from mikit.errors import BadInput
from mikit.targets import Options, load_target
from mikit.targets.anatomy import hook_path, n_blocks, through_final_norm
from mikit.targets.base import LanguageModel
from mikit.targets.hooks import batch_of, logits, read_residual
from mikit.targets.pretrained import load_language_model, resolve_device, source_of

VOCAB, WIDTH, BLOCKS = 50, 32, 3
COMMON = {"vocab_size": VOCAB, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "hidden_size": WIDTH}
LLAMA = COMMON | {"intermediate_size": 48, "num_key_value_heads": 2}
GEMMA = LLAMA | {"head_dim": 8}
FAMILIES = {
    "Llama": LLAMA,
    "Mistral": LLAMA,
    "Qwen2": LLAMA,
    "Qwen3": LLAMA | {"head_dim": 8},
    "Gemma": GEMMA,
    "Gemma2": GEMMA,
    "Gemma3": GEMMA,
    "Phi": LLAMA | {"num_key_value_heads": 4},
    "GPTNeoX": COMMON | {"intermediate_size": 48},
    "GPT2": {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": 4, "n_positions": 256},
    "GPTJ": {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": BLOCKS, "n_head": 4, "n_positions": 256, "rotary_dim": 4},
}
TEXTS = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15, 16]]


def model_of(family):
    """A tiny random model."""
    import transformers

    config_name = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, config_name)(**FAMILIES[family], pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}LMHeadModel" if family == "GPT2" else f"{family}ForCausalLM")(config)
        for name, weight in model.named_parameters():
            if "norm" in name or "ln_" in name:
                weight.data += 0.3 * torch.randn_like(weight)
    return model.eval().requires_grad_(False)


def language_model(model, layer):
    return LanguageModel(
        model=model, tokenizer=None, layer=layer, hook_point=hook_path(model, layer), bos_id=1,
        special_ids=frozenset([0, 1, 2]), model_id="tiny", model_hash="0", tokenizer_hash="0",
    )  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def model(request):
    return model_of(request.param)


@pytest.mark.parametrize("layer", range(BLOCKS))
def test_a_block_of_any_family_is_read_as_transformers_gives_it(model, layer):
    assert n_blocks(model) == BLOCKS
    lm = language_model(model, layer)
    ids, mask = batch_of(lm, [text[:2] for text in TEXTS])
    hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    read = read_residual(lm, ids, mask)
    if layer + 1 < BLOCKS:
        assert torch.equal(read, hidden[layer + 1])
    else:
        norm = {"GPT2": "transformer.ln_f", "GPTJ": "transformer.ln_f", "GPTNeoX": "gpt_neox.final_layer_norm"}
        family = type(model).__name__.removesuffix("LMHeadModel").removesuffix("ForCausalLM")
        path = norm.get(family, "model.final_layernorm" if family == "Phi" else "model.norm")
        torch.testing.assert_close(model.get_submodule(path)(read)[mask], hidden[-1][mask])


def test_an_edit_in_any_family_reaches_the_logits_and_one_of_strength_0_does_not(model):
    lm = language_model(model, 1)
    ids, mask = batch_of(lm, TEXTS)
    clean = logits(lm, ids, mask)
    assert torch.equal(clean, model(input_ids=ids, attention_mask=mask.long()).logits)
    direction = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    assert torch.equal(logits(lm, ids, mask, edit=lambda x: x + 0.0 * direction), clean)
    assert (logits(lm, ids, mask, edit=lambda x: x + 5 * direction) != clean)[mask].any()


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_on_either_side_changes_nothing_in_any_family(model, side):
    lm = language_model(model, 1)
    ids, mask = batch_of(lm, TEXTS)
    if side == "left":
        shifts = (~mask).sum(1).tolist()
        ids = torch.stack([row.roll(n) for row, n in zip(ids, shifts, strict=True)])
        mask = torch.stack([row.roll(n) for row, n in zip(mask, shifts, strict=True)])
    together, scores = read_residual(lm, ids, mask), logits(lm, ids, mask)
    for row, text in enumerate(TEXTS):
        alone = batch_of(lm, [text])
        torch.testing.assert_close(together[row][mask[row]], read_residual(lm, *alone)[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(scores[row][mask[row]], logits(lm, *alone)[0], rtol=1e-4, atol=1e-5)


def test_a_direction_is_seen_through_the_final_norm_as_its_derivative_says(model):
    """At a point x of mean 0, far from 0, the norm of x + e d differs from that of x by e * J d; for d orthogonal to x
    nothing of it is lost to the scale."""
    norm = next(m for name, m in model.named_modules() if name in ("model.norm", "model.final_layernorm",
                "transformer.ln_f", "gpt_neox.final_layer_norm"))  # fmt: skip
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(WIDTH, generator=generator, dtype=torch.float64)
    x = (x - x.mean()) * 10
    d = torch.randn(WIDTH, generator=generator, dtype=torch.float64)
    d = d - x * (d @ x) / (x @ x)
    exact = norm.double()
    try:
        step = 1e-4
        moved = exact((x + step * d)[None])[0].double() - exact((x - step * d)[None])[0].double()
    finally:
        norm.float()
    expected = through_final_norm(model, d.float()).double()
    found = moved / (2 * step)
    cosine = found @ expected / found.norm() / expected.norm()
    assert cosine > 0.999


def test_a_layer_that_the_model_lacks_is_refused(model):
    with pytest.raises(BadInput, match=f"layer {BLOCKS} is out of range: .* has blocks 0 to {BLOCKS - 1}"):
        hook_path(model, BLOCKS)


def test_a_model_whose_blocks_lie_elsewhere_is_refused_in_one_line():
    with pytest.raises(BadInput, match=r"Linear has its blocks at no place that is known: valid: model.layers, "):
        n_blocks(torch.nn.Linear(2, 2))


# --- where models come from


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_gemma.write_model(tmp_path_factory.mktemp("models") / "gemma-2-2b")


@pytest.fixture(scope="module")
def root(folder, tmp_path_factory):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    weights, _ = tiny_gemma.token_saes(model, AutoTokenizer.from_pretrained(folder))
    root = tmp_path_factory.mktemp("scope")
    tiny_gemma.write_scope(root, weights)
    return root


@pytest.mark.parametrize("name", ["gemma-2-2b", "google/gemma-2-2b"])
@pytest.mark.parametrize("inside", [True, False])
def test_variables_say_where_gemma_and_its_saes_lie(folder, root, monkeypatch, name, inside):
    monkeypatch.setenv("SAE_MODEL_CHECKPOINT_PATH", str(folder.parent if inside else folder))
    monkeypatch.setenv("SAE_ROOT", str(root))
    target = load_target(name, tiny_gemma.LAYER)
    assert (target.name, target.model_id) == ("gemma-2-2b", "google/gemma-2-2b")
    assert target.sae.layer == target.layer == tiny_gemma.LAYER


def test_the_variable_for_gemma_moves_no_other_model(folder, monkeypatch):
    monkeypatch.setenv("SAE_MODEL_CHECKPOINT_PATH", str(folder))
    assert source_of("EleutherAI/pythia-70m").folder is None
    monkeypatch.setenv("SAE_MODEL_CHECKPOINT_PATH", str(folder / "nothing"))
    with pytest.raises(BadInput, match=r"SAE_MODEL_CHECKPOINT_PATH=.*config.json: valid: the transformers folder"):
        source_of("gemma-2-2b")


def test_the_variable_for_gemma_must_name_a_gemma(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setenv("SAE_MODEL_CHECKPOINT_PATH", str(tmp_path))
    with pytest.raises(BadInput, match="is llama: valid: a Gemma model, or unset"):
        source_of("gemma-2-2b")


def refusal(*args, **options):
    with pytest.raises(BadInput) as caught:
        load_target(*args, Options(**options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_no_model_is_refused_in_one_line(folder, root, tmp_path):
    scope = {"sae_root": str(root)}
    assert "unknown model 'gema'" in refusal("gema", 0)
    assert "a hub id (owner/name), a transformers folder" in refusal("nothing-here", 0)
    assert "is a folder without config.json" in refusal(str(tmp_path), 0, **scope)
    assert "no folder here, and the hub did not give it" in refusal("owner/none", tiny_gemma.LAYER, **scope)
    assert "HF_TOKEN" in refusal("owner/none", tiny_gemma.LAYER, **scope)
    assert "needs an SAE: give sae=FOLDER or sae=RELEASE/ID" in refusal(str(folder), 0)
    assert "SAE_ROOT" in refusal(str(folder), 0)
    assert "sae_root=/none: no such folder" in refusal(str(folder), 0, sae_root="/none")
    assert "name the layer" in refusal(str(folder), None, **scope)
    assert "no SAE for layer 1" in refusal(str(folder), 1, **scope)
    place = str(tiny_gemma.scope_folder(root))
    assert f"was trained on the output of block {tiny_gemma.LAYER}" in refusal(str(folder), 1, sae=place)


def test_a_device_that_is_not_there_is_refused():
    assert resolve_device("cpu").type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(BadInput, match="device 'cuda': torch finds none on this machine: valid: auto, cpu"):
            resolve_device("cuda")


def test_planted_brings_its_own_sae_and_place():
    assert "planted brings its SAE" in refusal("planted", 0, sae="elsewhere")
    assert "planted brings its SAE" in refusal("planted", 0, dtype="bfloat16")


def test_torn_weights_and_missing_ones_are_refused(folder, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    torn = tmp_path / "torn"
    shutil.copytree(folder, torn)
    weights = torn / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=r"model .*torn can't be loaded: "):
        load_language_model(str(torn), 0, Options())
    weights.write_bytes(whole)
    kept = {name: value for name, value in load_file(weights).items() if "layers.1.mlp.up_proj" not in name}
    save_file(kept, weights, metadata={"format": "pt"})
    with pytest.raises(BadInput, match=r"lacks model.layers.1.mlp.up_proj.weight .*random numbers would stand for it"):
        load_language_model(str(torn), 0, Options())


def test_a_tokenizer_without_any_beginning_is_refused(folder, tmp_path):
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    for name in ("tokenizer_config.json", "config.json"):
        values = json.loads((bare / name).read_text())
        for key in ("bos_token", "eos_token", "bos_token_id", "eos_token_id"):
            values[key] = None
        (bare / name).write_text(json.dumps(values))
    with pytest.raises(BadInput, match="names neither a bos nor an eos token"):
        load_language_model(str(bare), 0, Options())


def test_a_hub_id_is_taken_from_the_hubs_cache(folder, root, tmp_path, monkeypatch):
    """The cache is laid out as the hub lays it out; the network is off."""
    import shutil

    from huggingface_hub import constants

    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / commit
    shutil.copytree(folder, snapshot)
    refs = tmp_path / "models--someone--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    lm = load_language_model("someone/tiny", 1, Options())
    assert (lm.model_id, lm.hook_point) == ("someone/tiny", "model.layers.1")
    assert lm.model_hash == load_language_model(str(folder), 1, Options()).model_hash
