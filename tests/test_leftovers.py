"""The doctor finds what a crash, a full disk or a careless hand left in the outputs folder, and says what to do."""

import json
import shutil

import pytest

import mikit
from mikit import paths
from mikit.evidence.store import FILES
from mikit.runs.leftovers import examine_outputs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The outputs of one finished run, on little text."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIKIT_OUTPUTS", str(folder))
        mikit.explain_feature(
            model="planted", feature=2, run="done", corpus_tokens=20_000, nulls=False, protocol={"n_confirm": 4}
        )
    return folder


@pytest.fixture
def folder(finished, isolated):
    shutil.copytree(finished, paths.outputs(), dirs_exist_ok=True)
    return paths.outputs()


def faults():
    return {(finding.name, finding.detail): finding.remedy for finding in examine_outputs() if finding.state != "ok"}


def test_a_finished_run_and_whole_evidence_are_no_fault(folder):
    assert faults() == {}
    assert next(finding.detail.split(" in ")[0] for finding in examine_outputs()) == "1"


def test_nothing_at_all_is_no_fault():
    assert faults() == {}


def run_of(folder):
    return folder / "layer-0" / "feature-2" / "done"


@pytest.mark.parametrize("name", [*(f"step{i}.json" for i in range(1, 10)), "trace.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"step": 1}', "\x00" * 100])
def test_a_torn_file_is_named(folder, name, content):
    (run_of(folder) / name).write_text(content)
    [((where, detail), remedy)] = faults().items()
    assert where == "run layer-0/feature-2/done"
    assert name in detail
    assert "what is whole is kept" in remedy


def test_a_run_that_was_stopped_says_how_far_it_came(folder):
    for step in range(5, 10):
        (run_of(folder) / f"step{step}.json").unlink()
    (run_of(folder) / "trace.json").unlink()
    assert faults() == {}, "what scoring needed of a feature is no run"
    (run_of(folder) / "step4_score_input_experiments.ipynb").write_text("{}")
    (run_of(folder) / ".step5.json.x1.tmp").write_text("half")
    assert {detail for _, detail in faults()} == {
        "stopped after 4 of 9 steps",
        "1 files that were being written when it was stopped",
    }


def test_a_failed_notebook_is_named(folder):
    (run_of(folder) / "step9_x.failed.ipynb").write_text("{}")
    assert [detail for _, detail in faults()] == ["a notebook failed: step9_x.failed.ipynb"]


@pytest.mark.parametrize("name", [*FILES, "meta.json"])
def test_damaged_evidence_is_named_with_its_file(folder, name):
    [store] = [path for path in (folder / "evidence").iterdir() if path.is_dir()]
    content = bytearray((store / name).read_bytes())
    content[-1] ^= 1
    (store / name).write_bytes(content[:-1] if name == "meta.json" else content)
    if name == "meta.json":
        (store / name).write_text(json.dumps({}))
    [((where, detail), remedy)] = faults().items()
    assert where == f"evidence {store.name}"
    assert detail.startswith(name)
    assert "made again" in remedy


def test_a_scan_that_was_stopped_is_told(folder):
    (folder / "evidence" / ".planted-x.unfinished").mkdir()
    assert [name for name, _ in faults()] == ["evidence planted-x"]
