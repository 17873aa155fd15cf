"""The run's folder: step files that are whole or absent, what makes a step stale, and the lock."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mikit.errors import BadInput, MikitError
from mikit.files import fingerprint
from mikit.runs.directory import RunDirectory
from mikit.runs.freshness import READS, STEPS, descendants, inputs_of, is_fresh, sources_hash, stale_steps
from mikit.settings import make_params
from mikit.trace import StepFile

PARAMS = make_params({"layer": 6, "feature": 100, "run": "example"})


@pytest.fixture
def directory() -> RunDirectory:
    return RunDirectory(PARAMS)


def write(directory: RunDirectory, step: int, outputs=None, evidence="e") -> StepFile:
    return directory.write(step, outputs or {"found": step}, {"evidence": evidence}, seconds=0.1, started_at="now")


def chain_of_files(outputs: dict[int, dict]) -> dict[int, StepFile]:
    """Step files as a run would leave them, one after another."""
    files: dict[int, StepFile] = {}
    for step in STEPS:
        inputs = inputs_of(step, files) | {"evidence": "e", "sources": "s"}
        files[step] = StepFile(
            step=step, inputs=inputs, params_hash="p", params={}, outputs=outputs[step], seconds=0, started_at="now"
        )
    return files


FOUND = {step: {"found": step} for step in STEPS}
NOW = {"sources": "s"}


@given(st.sampled_from(list(STEPS)), st.dictionaries(st.text(), st.integers()))
def test_other_outputs_of_a_step_make_stale_exactly_what_depends_on_it(step, outputs):
    files = chain_of_files(FOUND)
    assert stale_steps(files, "p", NOW) == ()
    files[step] = files[step].model_copy(update={"outputs": {"other": outputs}})
    assert set(stale_steps(files, "p", NOW)) == descendants(step)


@given(st.sampled_from(list(STEPS)))
def test_a_missing_step_is_stale_with_what_depends_on_it(step):
    files = chain_of_files(FOUND)
    del files[step]
    assert set(stale_steps(files, "p", NOW)) == {step} | descendants(step)


def test_other_params_evidence_or_sources_make_every_step_stale():
    files = chain_of_files(FOUND)
    assert stale_steps(files, "q", NOW) == tuple(STEPS)
    assert stale_steps(files, "p", {"sources": "t"}) == tuple(STEPS)
    assert stale_steps(files, "p", NOW | {"evidence": "f"}) == tuple(STEPS)


def test_a_step_on_other_evidence_than_the_first_is_stale():
    files = chain_of_files(FOUND)
    files[5] = files[5].model_copy(update={"inputs": files[5].inputs | {"evidence": "old"}})
    assert not is_fresh(5, files, "p", NOW)
    assert set(stale_steps(files, "p", NOW)) == {5} | descendants(5)


def test_a_record_that_does_not_say_what_it_read_is_stale():
    files = chain_of_files(FOUND)
    files[4] = files[4].model_copy(update={"inputs": {"evidence": "e"}})
    assert not is_fresh(4, files, "p", NOW)


def test_a_step_reads_only_earlier_ones_and_the_last_reads_all():
    assert all(max(read, default=0) < step for step, read in READS.items())
    assert descendants(1) == set(range(2, 10))
    assert descendants(5) == {6, 7, 8, 9}
    assert descendants(9) == set()


def test_files_lie_under_layer_feature_and_run(directory, tmp_path):
    assert directory.path == tmp_path / "outputs" / "layer-6" / "feature-100" / "example"
    assert not directory.path.exists()
    write(directory, 1)
    assert [path.name for path in directory.path.iterdir()] == ["step1.json"]
    assert directory.read(1).outputs == {"found": 1}
    assert directory.read(2) is None


def test_a_torn_or_foreign_step_file_counts_as_absent_and_is_told(directory, caplog):
    write(directory, 1)
    whole = directory.step_path(1).read_text()
    for broken in (
        whole[: len(whole) // 2],
        "",
        "[]",
        json.dumps({"step": 1}),
        whole.replace('"seconds"', '"minutes"'),
    ):
        caplog.clear()
        directory.step_path(1).write_text(broken)
        assert directory.read(1) is None
        assert "step1.json is not a valid StepFile" in caplog.text
        assert directory.stale() == tuple(STEPS)


def test_writing_the_steps_in_order_makes_them_fresh(directory):
    for step in STEPS:
        assert directory.stale() == tuple(range(step, 10))
        write(directory, step)
    assert directory.stale() == ()
    assert not directory.finished(), "there is no trace"
    write(directory, 5, {"found": "something else"})
    assert directory.stale() == (6, 7, 8, 9)


def test_a_change_of_the_users_corpus_makes_a_run_stale(tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("one")
    params = make_params({"corpus": str(corpus)})
    write(RunDirectory(params), 1)
    assert RunDirectory(params).is_fresh(1)
    corpus.write_text("two")
    assert not RunDirectory(params).is_fresh(1)


def test_a_held_run_is_refused_in_one_line_and_let_go_when_its_holder_dies(directory):
    code = (
        "import os, sys\nfrom mikit.runs.directory import RunDirectory\nfrom mikit.settings import make_params\n"
        "with RunDirectory(make_params({'layer': 6, 'feature': 100, 'run': 'example'})).lock():\n"
        "    print('held', flush=True)\n    sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(MikitError, match=f"^process {holder.pid} is working on .*example: wait .*$"),
            directory.lock(),
        ):
            pass
        holder.kill()
    with directory.lock():
        assert (directory.path / ".lock-holder").read_text() == str(os.getpid())
    assert not (directory.path / ".lock-holder").exists()


def test_a_folder_that_cannot_be_made_is_bad_input(directory, tmp_path):
    (tmp_path / "outputs").write_text("a file")
    with pytest.raises(BadInput, match="can't be written"), directory.lock():
        pass


# --- a model and an SAE of the user's


@pytest.fixture
def users_own(tmp_path, monkeypatch):
    """A model in a folder, Gemma's checkpoint, and SAEs by folder and below a root; what is in the files does not matter."""
    for name in ("model", "gemma/gemma-2-2b", "sae", "root/layer_3/width_16k/average_l0_90"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("model/model.safetensors", "gemma/gemma-2-2b/config.json", "sae/sae_weights.safetensors",
                 "root/layer_3/width_16k/average_l0_90/params.npz"):  # fmt: skip
        (tmp_path / name).write_bytes(b"weights")
    monkeypatch.setenv("SAE_MODEL_CHECKPOINT_PATH", str(tmp_path / "gemma"))
    monkeypatch.setenv("SAE_ROOT", str(tmp_path / "root"))
    return tmp_path


OWN = [
    ({"model": "{}/model", "sae": "{}/sae"}, "model/model.safetensors"),
    ({"model": "{}/model", "sae": "{}/sae"}, "sae/sae_weights.safetensors"),
    ({"model": "gemma-2-2b", "layer": 3}, "gemma/gemma-2-2b/config.json"),
    ({"model": "gemma-2-2b", "layer": 3}, "root/layer_3/width_16k/average_l0_90/params.npz"),
    ({"model": "gemma-2-2b", "layer": 3, "sae_root": "{}/root"}, "root/layer_3/width_16k/average_l0_90/params.npz"),
]


@pytest.mark.parametrize("given, replaced", OWN)
def test_weights_replaced_in_place_make_a_run_stale(users_own, given, replaced):
    params = make_params({n: v.format(users_own) if isinstance(v, str) else v for n, v in given.items()})
    before = sources_hash(params)
    assert sources_hash(params) == before
    (users_own / replaced).write_bytes(b"others!")
    assert sources_hash(params) != before


def test_targets_that_bring_everything_read_nothing_of_the_users(users_own):
    before = sources_hash(make_params({}))
    (users_own / "root/layer_3/width_16k/average_l0_90/params.npz").write_bytes(b"others!")
    assert sources_hash(make_params({})) == before


@pytest.mark.parametrize("place", [0, 40 << 20, (80 << 20) - 1])
def test_a_large_file_is_told_from_another_by_a_few_blocks(tmp_path, place):
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.truncate(80 << 20)
    before = fingerprint(path)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"x")
    assert fingerprint(path) != before
