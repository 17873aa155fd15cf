"""SAE files as public releases have them, how one is found among many, and what is refused in one line."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny_gemma import write_scope

from mikit import paths
from mikit.errors import BadInput
from mikit.targets.gemma_scope import find_sae
from mikit.targets.hook_points import block_of
from mikit.targets.lens_release import fetched
from mikit.targets.memory import GIB, Sizes, choose_dtype, fits, needed
from mikit.targets.sae_files import load_sae

D_IN, D_SAE = 8, 20
LENS = {"architecture": "standard", "apply_b_dec_to_input": True, "metadata": {"hook_name": "blocks.2.hook_resid_post"}}


def arrays(**changed):
    rng = np.random.default_rng(0)
    weights = {
        "W_enc": rng.standard_normal((D_IN, D_SAE)), "W_dec": rng.standard_normal((D_SAE, D_IN)),
        "b_enc": rng.standard_normal(D_SAE), "b_dec": rng.standard_normal(D_IN), "threshold": rng.random(D_SAE) + 0.1,
    }  # fmt: skip
    return {name: value.astype(np.float32) for name, value in (weights | changed).items() if value is not None}


def lower(weights):
    return {name.replace("W_", "w_"): value for name, value in weights.items()}


def write_lens(folder, config=None, weights=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cfg.json").write_text(json.dumps(LENS if config is None else LENS | config))
    weights = arrays(threshold=None) if weights is None else weights
    save_file({name: torch.from_numpy(value) for name, value in weights.items()}, folder / "sae_weights.safetensors")
    return folder


def write_second(folder, config=None, weights=None):
    """A folder as Gemma Scope 2 has them."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        plain = {
            "hf_hook_point_in": "model.layers.12.output", "hf_hook_point_out": "model.layers.12.output", "width": D_SAE,
            "model_name": "google/gemma-3-1b-it", "architecture": "jump_relu", "l0": 60, "affine_connection": False,
            "type": "sae",
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(plain | config))
    weights = lower(arrays()) if weights is None else weights
    save_file({name: torch.from_numpy(value) for name, value in weights.items()}, folder / "params.safetensors")
    return folder


def refusal(call, *args):
    with pytest.raises(BadInput) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- formats


def test_every_spelling_of_a_gemma_scope_file_gives_the_same_sae(tmp_path):
    weights = arrays()
    spellings = {
        "upper": weights,
        "lower": lower(weights),
        "scaled": lower(weights) | {"scaling_factor": np.ones(D_SAE, np.float32)},
        "log": {
            **{n: v for n, v in weights.items() if n != "threshold"},
            "log_threshold": np.log(weights["threshold"]),
        },
    }
    x = torch.randn(5, D_IN, generator=torch.Generator().manual_seed(0))
    found = [load_sae(write_scope(tmp_path / name, w, layer=3)) for name, w in spellings.items()]
    for sae in found:
        assert (sae.layer, sae.apply_b_dec_to_input, sae.architecture) == (3, False, "jumprelu")
        torch.testing.assert_close(sae.encode(x), found[0].encode(x))
        assert sae.threshold.dtype == torch.float32
    folder = tmp_path / "upper" / "layer_3" / "width_16k" / "average_l0_1"
    assert load_sae(folder / "params.npz").hash == load_sae(folder).hash


def test_the_same_weights_make_the_same_sae_in_every_format(tmp_path):
    x = torch.randn(5, D_IN, generator=torch.Generator().manual_seed(0))
    first = load_sae(write_scope(tmp_path, arrays(), layer=12))
    second = load_sae(write_second(tmp_path / "resid_post" / "layer_12_width_16k_l0_medium", {}))
    third = load_sae(
        write_lens(tmp_path / "lens", {"architecture": "jumprelu", "apply_b_dec_to_input": False}, arrays())
    )
    assert torch.equal(first.encode(x), second.encode(x)) and torch.equal(first.encode(x), third.encode(x))
    assert (second.layer, second.expected_l0) == (12, 60.0)
    assert second.id == "resid_post/layer_12_width_16k_l0_medium"


def test_a_gemma_scope_2_folder_without_a_config_says_its_layer_by_its_name(tmp_path):
    assert load_sae(write_second(tmp_path / "resid_post_all" / "layer_7_width_16k_l0_big")).layer == 7


def test_topk_as_sae_lens_wrote_it_before_version_6_is_topk(tmp_path):
    config = {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 3}}
    sae = load_sae(write_lens(tmp_path / "old", config))
    assert (sae.architecture, sae.k) == ("topk", 3)
    assert (sae.encode(torch.randn(9, D_IN)) > 0).sum(1).max() <= 3


@pytest.mark.parametrize("flag", ["apply_b_dec_to_input", "normalize_activations"])
def test_a_changed_configuration_changes_the_hash(tmp_path, flag):
    before = load_sae(write_lens(tmp_path / "a"))
    after = load_sae(write_lens(tmp_path / "b", {flag: "layer_norm" if flag.startswith("n") else False}))
    assert before.hash != after.hash
    assert before.hash == load_sae(write_lens(tmp_path / "c")).hash


# --- what is refused


@pytest.mark.parametrize(
    "hook, block",
    [
        ("blocks.12.hook_resid_post", 12),
        ("blocks.12.hook_resid_pre", 11),
        ("model.layers.12.output", 12),
        ("model.layers.12", 12),
        ("model.language_model.layers.3.output", 3),
        ("transformer.h.5", 5),
        ("gpt_neox.layers.0", 0),
    ],
)
def test_the_output_of_a_block_is_known_by_each_of_its_names(hook, block):
    assert block_of(hook, "SAE") == block


@pytest.mark.parametrize(
    "hook, said",
    [
        ("blocks.0.hook_resid_pre", "the embedding"),
        ("blocks.3.hook_mlp_out", "an MLP output"),
        ("blocks.3.attn.hook_z", "an attention output"),
        ("blocks.3.hook_attn_out", "an attention output"),
        ("model.layers.3.self_attn.o_proj.input", "an attention output"),
        ("model.layers.3.post_feedforward_layernorm.output", "an MLP output"),
        ("model.layers.3.pre_feedforward_layernorm.output", "a transcoder's input"),
        ("blocks.3.hook_mlp_in", "a transcoder's input"),
        ("blocks.3.ln2.hook_normalized", "a transcoder's input"),
        ("blocks.3.hook_resid_mid", "the middle of a block"),
        ("hook_embed", "the embedding"),
        ("somewhere", "no known hook point"),
    ],
)
def test_any_other_hook_point_is_refused_in_one_line_that_says_which_are_supported(hook, said, tmp_path):
    line = refusal(load_sae, write_lens(tmp_path / "x", {"metadata": {"hook_name": hook}}))
    assert said in line and "supported: SAEs on resid_post of a block, which is resid_pre of the next" in line


@pytest.mark.parametrize(
    "place, said",
    [
        ("attn_out_all", "an SAE on attention outputs"),
        ("mlp_out", "an SAE on MLP outputs"),
        ("transcoder_all", "a transcoder"),
        ("clt", "a transcoder"),
        ("crosscoder", "a crosscoder"),
        ("gemma-scope-2b-pt-att", "an SAE on attention outputs"),
        ("gemma-scope-2b-pt-mlp", "an SAE on MLP outputs"),
        ("gemma-scope-2b-pt-transcoders", "a transcoder"),
        ("embedding", "an SAE on embeddings"),
    ],
)
def test_a_folder_of_something_else_is_refused_by_its_name(tmp_path, place, said):
    second = write_second(tmp_path / place / "layer_12_width_16k_l0_medium")
    assert f"is {said}: supported" in refusal(load_sae, second)
    first = write_scope(tmp_path / "b" / place, arrays(), layer=12)
    assert f"is {said}: supported" in refusal(load_sae, first)


@pytest.mark.parametrize(
    "config, said",
    [
        ({"type": "crosscoder", "hf_hook_point_in": ["model.layers.1.output"]}, "is a crosscoder"),
        ({"type": "transcoder"}, "is a transcoder"),
        ({"affine_connection": True}, "is a transcoder"),
        ({"hf_hook_point_out": "model.layers.12.mlp.output"}, "is a transcoder"),
        ({"hf_hook_point_in": ["model.layers.1.output"]}, "crosscoder"),
        ({"architecture": "top_k"}, "supported in this format: jump_relu"),
    ],
)
def test_a_gemma_scope_2_folder_of_something_else_is_refused_by_its_config(tmp_path, config, said):
    assert said in refusal(load_sae, write_second(tmp_path / "layer_12_width_16k_l0_medium", config))


@pytest.mark.parametrize(
    "config, said",
    [
        ({"architecture": "skip_transcoder"}, "is a skip transcoder: supported: SAEs on resid_post"),
        ({"architecture": "jumprelu_transcoder"}, "is a jumprelu transcoder"),
        ({"architecture": "temporal"}, "is 'temporal': supported: jumprelu, standard, topk, gated, and BatchTopK"),
        ({"architecture": "topk"}, "a topk SAE without its k"),
        ({"architecture": "topk", "k": 0}, "a topk SAE without its k"),
        ({"architecture": "jumprelu"}, "threshold is missing: it has W_dec, W_enc, b_dec, b_enc"),
        ({"architecture": "gated"}, "b_gate is missing"),
        ({"normalize_activations": "expected_average_only_in"}, "fold_activation_norm_scaling_factor"),
        ({"normalize_activations": True}, "fold_activation_norm_scaling_factor"),
        ({"normalize_activations": "covariance_whitening"}, "supported: none, layer_norm"),
        ({"reshape_activations": "hook_z"}, "on reshaped activations (hook_z)"),
    ],
)
def test_a_sae_lens_folder_that_cant_be_read_as_it_was_meant_is_refused(tmp_path, config, said):
    assert said in refusal(load_sae, write_lens(tmp_path / "x", config))


@pytest.mark.parametrize(
    "changed, said",
    [
        (
            {"W_dec": arrays()["W_dec"].T},
            "W_enc is (8, 20), and W_dec (8, 20) needs (20, 8): the usual cause is a matrix",
        ),
        ({"W_enc": arrays()["W_enc"].T}, "its axes the other way round"),
        ({"b_enc": np.zeros(D_SAE + 1, np.float32)}, "b_enc is (21,), and W_dec (20, 8) needs (20,)"),
        ({"b_dec": np.zeros(1, np.float32)}, "b_dec is (1,)"),
        ({"threshold": np.zeros((D_SAE, 1), np.float32)}, "threshold is (20, 1)"),
        ({"W_dec": np.zeros(3, np.float32)}, "W_dec is (3,): valid: latents by width"),
        ({"W_enc": None}, "W_enc is missing"),
        ({"b_dec": None}, "b_dec is missing"),
        ({"threshold": None}, "threshold is missing"),
        ({"b_enc": np.full(D_SAE, np.nan, np.float32)}, "b_enc holds a value that is not finite"),
        ({"W_dec": np.full((D_SAE, D_IN), np.inf, np.float32)}, "W_dec holds a value that is not finite"),
        ({"scaling_factor": np.full(D_SAE, 2, np.float32)}, "scaling_factor that is not 1"),
    ],
)
def test_weights_that_do_not_fit_each_other_are_refused(tmp_path, changed, said):
    assert said in refusal(load_sae, write_scope(tmp_path, arrays(**changed), layer=1))


def test_no_sae_and_files_that_are_torn_are_refused(tmp_path):
    assert "no SAE at" in refusal(load_sae, tmp_path)
    assert "cfg.json is missing; valid: a folder of sae-lens" in refusal(load_sae, tmp_path)
    for make, name in ((write_lens, "sae_weights.safetensors"), (write_second, "params.safetensors")):
        folder = make(tmp_path / name)
        whole = (folder / name).read_bytes()
        for part in (b"", whole[:4], whole[: len(whole) // 2], b"\x00" * len(whole)):
            (folder / name).write_bytes(part)
            assert "can't be read, it may be torn" in refusal(load_sae, folder)
    folder = write_scope(tmp_path, arrays(), layer=0)
    whole = (folder / "params.npz").read_bytes()
    for part in (b"", whole[:40], whole[: len(whole) // 2], b"\x00" * len(whole), b"not an archive"):
        (folder / "params.npz").write_bytes(part)
        assert "can't be read, it may be torn" in refusal(load_sae, folder)
    for text in ("", "{", "[]", "nul"):
        (write_lens(tmp_path / "y") / "cfg.json").write_text(text)
        assert "cfg.json can't be read" in refusal(load_sae, tmp_path / "y")


def test_a_pickle_inside_an_archive_is_not_opened(tmp_path):
    folder = write_scope(tmp_path, arrays(), layer=0)
    np.savez(folder / "params.npz", **arrays(), extra=np.array([{"a": 1}], dtype=object))
    assert "can't be read" in refusal(load_sae, folder)


@pytest.mark.parametrize("name", ["nothing", "/no/such", "../up/one", "~/none", "a//b", "a/../../b", "./here"])
def test_a_name_that_is_no_folder_and_no_release_is_refused(name):
    assert "is no folder that is there, and no sae-lens RELEASE/ID, such as gemma-scope-2b" in refusal(fetched, name)


# --- one among many


@pytest.fixture
def tree(tmp_path):
    """Layers 11 and 12 in two widths."""
    for layer, width, l0 in ((12, "16k", 22), (12, "16k", 82), (12, "16k", 176), (12, "65k", 72), (11, "16k", 80)):
        write_scope(tmp_path / "root", arrays(), layer=layer, width=width, l0=l0)
    return tmp_path / "root"


@pytest.mark.parametrize(
    "asked, found",
    [
        ((12,), "layer_12/width_16k/average_l0_82"),
        ((12, "16k"), "layer_12/width_16k/average_l0_82"),
        ((12, "16k", 176), "layer_12/width_16k/average_l0_176"),
        ((12, "65k"), "layer_12/width_65k/average_l0_72"),
        ((11,), "layer_11/width_16k/average_l0_80"),
    ],
)
def test_the_canonical_sae_of_a_layer_and_width_is_found_or_the_l0_that_is_asked_for(tree, asked, found):
    assert find_sae(tree, *asked) == tree / found
    assert find_sae(tree, *asked) == find_sae(tree, *asked)


@pytest.mark.parametrize(
    "asked, nearest",
    [
        ((13,), "layer_12/width_16k/average_l0_82 (layer=12 sae_width=16k sae_l0=82)"),
        ((0,), "layer_11/width_16k/average_l0_80 (layer=11 sae_width=16k sae_l0=80)"),
        ((12, "131k"), "layer_12/width_65k/average_l0_72 (layer=12 sae_width=65k sae_l0=72)"),
        ((12, "1m"), "layer_12/width_65k/average_l0_72 (layer=12 sae_width=65k sae_l0=72)"),
        ((12, "16k", 80), "layer_12/width_16k/average_l0_82 (layer=12 sae_width=16k sae_l0=82)"),
        ((12, "16k", 5), "layer_12/width_16k/average_l0_22 (layer=12 sae_width=16k sae_l0=22)"),
    ],
)
def test_what_is_not_there_is_refused_with_the_nearest_folder_that_is(tree, asked, nearest):
    line = refusal(find_sae, tree, *asked)
    assert f"the nearest is {tree}/{nearest}" in line
    assert find_sae(tree, *[int(value) if value.isdigit() else value for value in _named(line)]).is_dir()


def _named(line):
    """Layer, width and L0 that a line recommends."""
    given = dict(part.split("=") for part in line.rpartition("(")[2].rstrip(")").split())
    return given["layer"], given["sae_width"], given["sae_l0"]


def test_the_root_may_be_the_folder_around_a_release_on_the_residual_stream(tree):
    above = tree.parent / "above"
    above.mkdir()
    tree.rename(above / "gemma-scope-2b-pt-res")
    write_scope(above / "gemma-scope-2b-pt-mlp", arrays(), layer=12)
    assert find_sae(above, 12) == above / "gemma-scope-2b-pt-res" / "layer_12" / "width_16k" / "average_l0_82"
    write_scope(above / "gemma-scope-9b-pt-res", arrays(), layer=12)
    assert "holds several releases: name one of them in sae_root: gemma-scope-2b-pt-res" in refusal(find_sae, above, 12)


def test_gemma_scope_2_is_found_by_layer_width_and_l0(tmp_path):
    for size, l0 in (("small", 10), ("medium", 60), ("big", 150)):
        write_second(tmp_path / "resid_post" / f"layer_12_width_16k_l0_{size}", {"l0": l0})
    write_second(tmp_path / "attn_out" / "layer_12_width_65k_l0_medium", {"l0": 60})
    assert find_sae(tmp_path, 12).name == "layer_12_width_16k_l0_medium"
    assert find_sae(tmp_path, 12, "16k", 150).name == "layer_12_width_16k_l0_big"
    assert "layer_12_width_16k_l0_medium" in refusal(find_sae, tmp_path, 12, "65k")


def test_an_empty_root_is_refused_with_what_belongs_there(tmp_path):
    assert "valid: a folder with layer_L/width_W/average_l0_N/params.npz" in refusal(find_sae, tmp_path, 12)
    (tmp_path / "layer_x" / "width_y" / "average_l0_z").mkdir(parents=True)
    (tmp_path / "layer_x" / "width_y" / "average_l0_z" / "params.npz").touch()
    assert "no SAE below" in refusal(find_sae, tmp_path, 12)


# --- what fits

GEMMA_2B = {"parameters": 2_614_341_888, "vocab": 256_000, "d_in": 2304}
GEMMA_9B = {"parameters": 9_241_705_984, "vocab": 256_000, "d_in": 3584}


GEMMAS = {"gemma-2-2b": GEMMA_2B, "gemma-2-9b": GEMMA_9B}
WIDTHS = {"16k": 16_384, "65k": 65_536}


def documented():
    """The table of docs/targets.md: model, SAE, GiB in float32 and bfloat16, and what 8, 16 and 24 GB allow."""
    lines = (paths.PROJECT / "docs" / "targets.md").read_text("utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| gemma-2-")]
    return [row for row in rows if row[1] in WIDTHS]


@pytest.mark.parametrize("row", documented(), ids=lambda row: f"{row[0]} {row[1]}")
def test_precision_follows_from_the_memory_of_a_gpu_as_the_documents_say(row):
    model, width, full, half, *allowed = row
    sizes = Sizes(**GEMMAS[model], d_sae=WIDTHS[width])
    assert [full, half] == [f"{needed(sizes, dtype) / GIB:.1f} GiB" for dtype in ("float32", "bfloat16")]
    for gigabytes, expected in zip((8, 16, 24), allowed, strict=True):
        if expected == "does not fit":
            with pytest.raises(BadInput, match="needs .* GiB and the device has .*: valid: .*sae_width, or device=cpu"):
                choose_dtype(sizes, gigabytes * GIB, "auto")
        else:
            assert choose_dtype(sizes, gigabytes * GIB, "auto") == expected


def test_the_documents_say_it_for_two_models_and_two_widths():
    assert {(row[0], row[1]) for row in documented()} == {(model, width) for model in GEMMAS for width in WIDTHS}


def test_what_is_asked_for_is_taken_or_refused_and_never_changed():
    sizes = Sizes(**GEMMA_2B, d_sae=16_384)
    assert choose_dtype(sizes, 24 * GIB, "bfloat16") == "bfloat16"
    with pytest.raises(BadInput, match=r"float32 needs 11\.\d GiB and the device has 8.0: valid: dtype=bfloat16, "):
        choose_dtype(sizes, 8 * GIB, "float32")


@given(
    st.builds(
        Sizes, parameters=st.integers(1, 10**11), vocab=st.integers(1, 10**6), d_in=st.integers(1, 10**4),
        d_sae=st.integers(0, 10**6), batch=st.integers(1, 512),
    ),
    st.floats(0, 1e12),
)  # fmt: skip
def test_half_precision_never_needs_more_and_what_fits_goes_on_fitting(sizes, memory):
    assert needed(sizes, "bfloat16") <= needed(sizes, "float32")
    assert fits(sizes, "bfloat16", memory) or not fits(sizes, "float32", memory)
    assert fits(sizes, "float32", 2 * memory) or not fits(sizes, "float32", memory)
