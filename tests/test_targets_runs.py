"""What a run says of its target: parameters with their origins, checks before the first step, evidence that is its own."""

from dataclasses import replace

import pytest
import torch

from mikit import paths
from mikit.cli import main
from mikit.errors import BadInput
from mikit.evidence.corpora import load_corpus
from mikit.evidence.store import identity
from mikit.runs import target_check
from mikit.settings import Params, make_params
from mikit.targets.options import Options, options_of
from mikit.targets.preflight import checks, require_fit

GEMMA = str(paths.params() / "gemma-2-2b.yaml")


@pytest.fixture
def command(capsys):
    def call(*words):
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_the_options_of_a_target_are_those_of_the_run():
    params = make_params({"sae": "x", "sae_root": "y", "sae_width": "65k", "sae_l0": 72, "device": "cpu",
                          "dtype": "bfloat16", "batch": 8})  # fmt: skip
    assert options_of(params) == Options("x", "y", "65k", 72, "cpu", "bfloat16", batch=8)
    assert options_of(Params()) == Options()
    planted = make_params({"planted_spec": "my.yaml", "planted_seed": 3})
    assert options_of(planted) == Options(planted_spec="my.yaml", planted_seed=3)


@pytest.mark.parametrize(
    "values, said",
    [
        ({"sae_width": "16384"}, "sae_width = '16384'"),
        ({"sae_width": "16K"}, "sae_width = '16K'"),
        ({"sae_l0": 0}, "sae_l0 = 0: should be greater than or equal to 1"),
        ({"sae_l0": "82"}, "sae_l0 = '82': should be a valid integer"),
        ({"device": "gpu"}, "device = 'gpu': should be 'auto', 'cpu', 'cuda' or 'mps'"),
        ({"dtype": "fp16"}, "dtype = 'fp16': should be 'auto', 'float32', 'bfloat16' or 'float16'"),
        ({"sae": ""}, "sae = ''"),
        ({"model": ""}, "model = ''"),
    ],
)
def test_an_option_out_of_range_is_refused_in_one_line(values, said):
    with pytest.raises(BadInput) as caught:
        make_params(values)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_the_effective_options_are_shown_with_where_they_come_from(command, monkeypatch, tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text("model: gemma-2-2b\nlayer: 12\nsae_width: 65k\n")
    monkeypatch.setenv("SAE_ROOT", "/models/scope")
    monkeypatch.setenv("SAE_MODEL_CHECKPOINT_PATH", "/models/gemma")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("MIKIT_SAE_L0", "72")
    status, out, _ = command("run", "--params", str(file), "--show-params", "--device", "cpu")
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert status == 0
    assert rows["sae_width"] == ["'65k'", str(file)]
    assert rows["sae_l0"] == ["72", "environment MIKIT_SAE_L0"]
    assert rows["device"] == ["'cpu'", "command line"]
    assert rows["dtype"] == ["'auto'", "default"]
    assert rows["SAE_ROOT"] == ["/models/scope", "environment"]
    assert rows["SAE_MODEL_CHECKPOINT_PATH"] == ["/models/gemma", "environment"]
    assert "hf_secret" not in out and rows["HF_TOKEN"][0] == "********"


def test_the_parameters_for_gemma_are_valid_and_lack_only_the_users_files(command):
    status, out, _ = command("run", "--params", GEMMA, "--show-params")
    assert status == 0 and "'gemma-2-2b'" in out
    status, out, err = command("run", "--params", GEMMA)
    assert (status, out) == (2, "")
    assert "gemma-2-2b needs an SAE" in err and err.count("\n") == 1


def test_every_check_holds_on_the_planted_target(planted):
    assert all(check.holds for check in require_fit(planted, 3))


def test_every_check_holds_on_the_embedded_target(smollm2):
    found = {check.name: check for check in require_fit(smollm2, 170)}
    assert found["active set"].found.startswith("Jaccard 1.000")
    assert smollm2.sae.expected_l0 == pytest.approx(32.4, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, change",
    [
        ("apply_b_dec_to_input", lambda t: replace(t, sae=replace(t.sae, apply_b_dec_to_input=False))),
        ("layer", lambda t: replace(t, layer=11, hook_point="model.layers.11")),
        ("layer", lambda t: replace(t, layer=13, hook_point="model.layers.13")),
        ("L0", lambda t: replace(t, sae=replace(t.sae, threshold=torch.zeros_like(t.sae.threshold)))),
        ("hook tensor", lambda t: replace(t, hook_point="model.layers.12.mlp")),
        ("BOS", lambda t: replace(t, bos_id=500)),
    ],
    ids=["apply_b_dec_to_input", "one layer below", "one layer above", "plain ReLU", "the MLP", "a word for BOS"],
)
def test_the_same_mistakes_are_stopped_on_a_trained_sae(smollm2, name, change):
    assert [check.name for check in checks(change(smollm2)) if not check.holds] == [name]


def test_the_doctor_checks_a_target_and_names_what_does_not_hold(planted, monkeypatch):
    found = {finding.name: finding for finding in target_check.check_target(Params())}
    assert found["target"].state == found["hook tensor"].state == "ok"
    wrong = replace(planted, bos_id=planted.ids_of(" the")[0])
    monkeypatch.setattr(target_check, "load_target", lambda *_: wrong)
    last = target_check.check_target(Params())[-1]
    assert (last.name, last.state) == ("BOS", "missing") and last.remedy.startswith("the usual cause is")
    monkeypatch.undo()
    [only] = target_check.check_target(make_params({"model": "gemma-2-2b"}))
    assert only.state == "missing" and "needs an SAE" in only.detail


def test_a_run_stops_before_its_first_step_where_the_target_does_not_fit(planted, monkeypatch, tmp_path):
    from mikit.runs import explain, run

    run._target.cache_clear()
    wrong = replace(planted, hook_point="model.layers.0.mlp")
    monkeypatch.setattr(run, "load_target", lambda *_: wrong)
    with pytest.raises(BadInput, match="preflight of planted: hook tensor: .* the usual cause is a hook point inside"):
        explain(model="planted", layer=0, feature=3, run="wrong")
    run._target.cache_clear()
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: replace(t, sae=replace(t.sae, hash="other")),
        lambda t: replace(t, hook_point="model.layers.1"),
        lambda t: replace(t, bos_id=1),
        lambda t: replace(t, model_hash="other"),
    ],
    ids=["SAE", "hook point", "BOS", "model"],
)
def test_evidence_of_another_target_is_not_taken_for_its_own(planted, change):
    corpus = load_corpus("planted", planted)
    before = identity(planted, corpus, Params())
    assert before["dtype"] == "float32"
    assert identity(change(planted), corpus, Params()) != before
