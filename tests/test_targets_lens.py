"""SAEs that sae-lens saves are read, without it, as sae-lens itself reads them."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from lens_saes import D_SAE
from safetensors.torch import load_file

from mikit.errors import BadInput
from mikit.targets.gemma_scope import CANONICAL_L0
from mikit.targets.sae import Sae
from mikit.targets.sae_files import load_sae

KINDS = ("standard", "jumprelu", "topk", "gated")
COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def lens(tmp_path_factory):
    """One process with sae-lens writes all of it."""
    if importlib.util.find_spec("sae_lens") is None:
        pytest.skip("sae-lens is not installed: pip install 'mikit[train]'")
    folder = tmp_path_factory.mktemp("lens")
    hub = folder / "hub"
    place = hub / "models--someone--saes" / "snapshots" / COMMIT / "inner" / "jumprelu"
    place.mkdir(parents=True)
    demo = Path(__file__).parent.parent / "mikit" / "targets" / "demo_sae"
    for name in ("cfg.json", "sae_weights.safetensors"):
        shutil.copy(demo / name, place / name)
    refs = hub / "models--someone--saes" / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    environment = os.environ | {
        "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1", "MIKIT_CACHE": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # fmt: skip
    script = Path(__file__).with_name("lens_saes.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def reference(lens, name) -> tuple[Sae, dict]:
    return load_sae(lens / name), load_file(lens / name / "reference.safetensors")


def scale_of(sae, x):
    """From sae-lens' activations, of the normalised input, to those in units of the residual stream."""
    if sae.normalize == "layer_norm":
        return x.std(-1, keepdim=True)
    return x.norm(dim=-1, keepdim=True) / sae.d_in**0.5 if sae.normalize != "none" else torch.ones(1)


CASES = [
    *(f"{kind}-{case}" for kind in KINDS for case in (True, False, "layer_norm", "constant_norm_rescale", "scaled")),
    *(f"{kind}-folded" for kind in KINDS if kind != "topk"),
    "batchtopk",
]


@pytest.mark.parametrize("name", CASES)
def test_activations_and_reconstruction_are_those_of_sae_lens(lens, name):
    sae, found = reference(lens, name)
    x = found["x"]
    acts = sae.encode(x)
    torch.testing.assert_close(acts, found["acts"] * scale_of(sae, x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sae.decode(acts, x), found["decoded"], rtol=1e-4, atol=1e-4)
    assert 0 < (acts > 0).float().mean() < 0.9


@pytest.mark.parametrize("name", [*CASES, "topk-rescaled"])
def test_a_few_latents_are_what_they_are_among_all(lens, name):
    sae, found = reference(lens, name)
    chosen = torch.tensor([7, 0, D_SAE - 1])
    torch.testing.assert_close(sae.encode(found["x"], chosen), sae.encode(found["x"])[:, chosen])
    torch.testing.assert_close(sae.encode(found["x"], slice(3, 6)), sae.encode(found["x"])[:, 3:6])


@pytest.mark.parametrize("name", ["topk-True", "topk-rescaled"])
def test_topk_has_k_latents_at_a_position_whichever_are_asked_for(lens, name):
    """Alone, each of these latents would be among the k largest."""
    sae, found = reference(lens, name)
    assert (sae.architecture, sae.k, sae.expected_l0) == ("topk", 5, 5)
    alone = torch.cat([sae.encode(found["x"], torch.tensor([i])) for i in range(D_SAE)], dim=1)
    assert (alone > 0).sum(1).max() <= 5
    assert torch.equal(alone > 0, sae.encode(found["x"]) > 0)


@pytest.mark.parametrize("name", CASES)
def test_what_a_latent_contributes_is_its_activation_times_its_decoder_row(lens, name):
    """Taking a latent's contribution away changes the reconstruction as much as silencing it."""
    sae, found = reference(lens, name)
    x = found["x"]
    acts = sae.encode(x)
    latent = int((acts > 0).sum(0).argmax())
    silenced = acts.clone()
    silenced[:, latent] = 0
    expected = sae.decode(acts, x) - acts[:, latent, None] * sae.W_dec[latent]
    torch.testing.assert_close(sae.decode(silenced, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "topk"])
def test_folding_decoder_norms_changes_nothing_that_is_contributed(lens, kind):
    (plain, found), (folded, _) = reference(lens, f"{kind}-True"), reference(lens, f"{kind}-folded")
    x = found["x"]
    torch.testing.assert_close(folded.W_dec.norm(dim=1), torch.ones(D_SAE))
    before, after = plain.encode(x), folded.encode(x)
    near = (before - after / plain.W_dec.norm(dim=1)).abs() < 1e-4
    assert near.all()
    assert torch.equal(before > 1e-5, after > 1e-5)
    torch.testing.assert_close(before[..., None] * plain.W_dec, after[..., None] * folded.W_dec, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_folding_the_scale_of_the_activations_keeps_active_set_and_reconstruction(lens, kind):
    """b_dec is folded along with the rest."""
    sae, found = reference(lens, f"{kind}-scaled")
    acts = sae.encode(found["x"])
    assert torch.equal(acts > 1e-6, found["acts_before"] > 1e-6)
    torch.testing.assert_close(sae.decode(acts), found["decoded_before"], rtol=1e-4, atol=1e-4)
    with pytest.raises(BadInput, match="reads activations that were scaled, and the folder doesn't say by what"):
        load_sae(lens / f"{kind}-unscaled")


def test_a_rescaling_topk_sae_contributes_what_sae_lens_adds(lens):
    sae, found = reference(lens, "topk-rescaled")
    acts = sae.encode(found["x"])
    torch.testing.assert_close(acts, found["acts"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sae.decode(acts), found["decoded"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sae.W_dec.norm(dim=1), torch.ones(D_SAE))


@pytest.mark.parametrize("kind", KINDS)
def test_an_sae_in_bfloat16_is_computed_with_in_float32(lens, kind):
    sae, found = reference(lens, f"{kind}-bfloat16")
    assert sae.dtype == torch.bfloat16
    assert {value.dtype for value in vars(sae).values() if isinstance(value, torch.Tensor)} == {torch.float32}
    stored = load_file(lens / f"{kind}-bfloat16" / "sae_weights.safetensors")
    read = (found["x"].numpy() - stored["b_dec"].float().numpy()).astype(np.float64) @ stored["W_enc"].double().numpy()
    if kind == "gated":
        size = np.maximum(read * np.exp(stored["r_mag"].double().numpy()) + stored["b_mag"].double().numpy(), 0)
        expected = size * (read + stored["b_gate"].double().numpy() > 0)
    else:
        pre = read + stored["b_enc"].double().numpy()
        limit = stored["threshold"].double().numpy() if kind == "jumprelu" else 0.0
        limit = np.sort(pre)[:, -sae.k][:, None] if kind == "topk" else limit
        expected = np.maximum(pre, 0) * ((pre >= limit) if kind == "topk" else (pre > limit))
    assert np.allclose(sae.encode(found["x"]).numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_threshold_is_float32_in_whatever_precision_the_weights_were_trained(lens):
    sae = load_sae(lens / "jumprelu-trained")
    assert (sae.threshold.dtype, sae.dtype, sae.architecture) == (torch.float32, torch.bfloat16, "jumprelu")
    assert sae.to("cpu", torch.bfloat16).threshold.dtype == torch.float32
    stored = load_file(lens / "jumprelu-trained" / "sae_weights.safetensors")["threshold"]
    assert torch.equal(sae.threshold, stored.float())


def test_batchtopk_is_read_as_the_jumprelu_that_it_is_saved_as(lens):
    sae = load_sae(lens / "batchtopk")
    assert (sae.architecture, sae.k) == ("jumprelu", None)
    assert (sae.threshold > 0).all()
    with pytest.raises(BadInput, match="training checkpoint of batchtopk: save it with save_inference_model"):
        load_sae(lens / "batchtopk-checkpoint")


def test_the_layer_comes_from_the_hook_point_in_the_folder(lens):
    assert load_sae(lens / "standard-True").layer == 2
    assert load_sae(lens / "batchtopk").layer is None


def test_a_transcoder_is_refused(lens):
    with pytest.raises(BadInput, match="is a transcoder: supported: SAEs on resid_post of a block"):
        load_sae(lens / "transcoder")


def test_a_release_is_fetched_once_into_the_local_format(lens):
    folder = Path(json.loads((lens / "fetched.json").read_text()))
    assert folder == lens / "cache" / "saes" / "someone" / "saes" / "inner" / "jumprelu"
    fetched, shipped = load_sae(folder), load_sae(Path(__file__).parent.parent / "mikit" / "targets" / "demo_sae")
    for name in ("W_enc", "W_dec", "b_enc", "b_dec", "threshold"):
        assert torch.equal(getattr(fetched, name), getattr(shipped, name))
    assert fetched.apply_b_dec_to_input == shipped.apply_b_dec_to_input


def test_everything_that_is_called_of_sae_lens_is_there(lens):
    found = json.loads((lens / "symbols.json").read_text())
    assert found["from_pretrained"][:3] == ["release", "sae_id", "device"]
    assert found["save_model"] == ["self", "path"]
    assert found["releases"] == [True, True] and found["trainer"] == ["fit"] and found["save_inference_model"]
    logging, trainer, batchtopk = found["fields"]
    assert "log_to_wandb" in logging
    assert {"total_training_samples", "train_batch_size_samples", "lr", "lr_end", "lr_warm_up_steps", "lr_decay_steps",
            "dead_feature_window", "n_batches_for_norm_estimate", "logger"} <= set(trainer)  # fmt: skip
    assert {"d_in", "d_sae", "k", "normalize_activations"} <= set(batchtopk)


def test_the_canonical_sae_of_every_layer_is_the_one_whose_l0_is_nearest_100(lens):
    found = json.loads((lens / "symbols.json").read_text())
    pattern = re.compile(r"layer_(\d+)/width_(\w+)/average_l0_(\d+)")
    places = [match.groups() for path in found["all"].values() if (match := pattern.fullmatch(path))]
    canonical = [pattern.fullmatch(path).groups() for path in found["canonical"].values()]
    assert len(canonical) >= 50
    for layer, width, l0 in canonical:
        rivals = [int(n) for where, wide, n in places if (where, wide) == (layer, width)]
        assert int(l0) == min(rivals, key=lambda n: abs(n - CANONICAL_L0["params.npz"]))
