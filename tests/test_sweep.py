"""Sweeps: which features, how far each is, and that a failure, a kill or an interrupt of one costs no other anything.

The notebooks are made by the tests, as in `test_engine`: no model is loaded.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import test_engine
from hypothesis import given
from hypothesis import strategies as st

from mikit.errors import BadInput, MikitError
from mikit.runs import sweep as sweeping
from mikit.runs import work
from mikit.runs.directory import RunDirectory
from mikit.runs.manifest import folder_of, held, read_manifest
from mikit.runs.sweep_spec import choose, make_spec
from mikit.settings import make_params

PARAMS = make_params({"run": "s"})
D_SAE = 50


def spec(features, **others):
    return make_spec({"name": "s", "features": features, **others}, PARAMS, "x.yaml")


def chosen(features, density=None, live=None, layer=0, seed=0):
    wanted = spec(features).features
    density = np.linspace(0, 0.1, D_SAE) if density is None else density
    return choose(wanted, layer, D_SAE, density, np.arange(D_SAE) % 2 == 0 if live is None else live, seed)


# --- which ---


def test_features_are_taken_by_list_range_csv_sample_and_density(tmp_path):
    table = tmp_path / "f.csv"
    table.write_text("layer,feature,note\n0,7,a\n1,8,b\n0,9,c\n0,7,d\n")
    assert chosen([3, 1, 3]) == [3, 1]
    assert chosen({"range": [4, 7], "exclude": [5]}) == [4, 6]
    assert chosen({"csv": str(table)}) == [7, 9]
    assert chosen({"csv": str(table)}, layer=1) == [8]
    assert all(0.02 <= latent * 0.1 / (D_SAE - 1) <= 0.03 for latent in chosen({"density": [0.02, 0.03]}))
    assert chosen(5) == chosen(5) != chosen(5, seed=1)
    assert all(latent % 2 == 0 for latent in chosen(5)), "a sample is of live features"
    assert chosen({}) == list(range(D_SAE))


@given(st.sets(st.integers(0, D_SAE - 1), min_size=1), st.integers(1, 60), st.integers(0, 3))
def test_a_sample_is_of_its_pool_without_repeats_and_as_large_as_can_be(pool, n, seed):
    found = chosen({"list": sorted(pool), "sample": n}, seed=seed)
    assert set(found) <= pool and len(found) == len(set(found)) == min(n, len(pool))


@pytest.mark.parametrize(
    "told, fault",
    [
        ({"features": {"lst": [1]}}, "unknown 'sweep.features.lst': valid: list, range"),
        ({"features": {"list": [1], "range": [0, 2]}}, "list and range are given"),
        ({"features": {"range": [5, 5]}}, "a larger one after the last"),
        ({"features": {"list": [-1]}}, "sweep.features.list.0 = -1"),
        ({"features": {"density": [0.5, 0.1]}}, "two shares, the smaller first"),
        ({"workers": 0}, "sweep.workers = 0"),
        ({"name": "../up"}, "sweep.name = '../up'"),
        (None, "no section 'sweep'"),
        ("all", "sweep = 'all'"),
    ],
)
def test_what_is_told_wrongly_is_one_line(told, fault):
    with pytest.raises(BadInput, match="^x.yaml: ") as raised:
        make_spec(told, PARAMS, "x.yaml")
    assert fault in str(raised.value) and "\n" not in str(raised.value)


def test_an_index_that_is_out_of_range_and_an_empty_choice_are_one_line(tmp_path):
    with pytest.raises(BadInput, match="50 is out of range: the SAE of layer 0 has latents 0 to 49"):
        chosen([50])
    with pytest.raises(BadInput, match="none of layer 0's 50 latents is left"):
        chosen({"density": [0.9, 1.0]})
    with pytest.raises(BadInput, match="999999999 is out of range: the SAE of layer 0 has latents 0 to 49"):
        chosen({"range": [0, 1_000_000_000]})
    with pytest.raises(BadInput, match="can't be read as CSV"):
        chosen({"csv": "a\0b"})
    table = tmp_path / "f.csv"
    table.write_text("feature\nx\n")
    with pytest.raises(BadInput, match="line 2: feature = 'x'"):
        chosen({"csv": str(table)})


# --- running ---


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    monkeypatch.setenv("MIKIT_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setattr(work, "prepare", lambda job: list(job["features"]["list"]))
    return test_engine.Pipeline(tmp_path)


def sweep_of(pipeline, features=(0, 1, 2), workers=1, **others):
    return sweeping.Sweep(PARAMS, spec(list(features), workers=workers, **others), pipeline.folder, preflight="")


def states(result):
    return {entry.feature: entry.state for entry in result.entries}


FAIL_ONE = "if feature == 1:\n    raise ValueError('bad <b>luck</b>')"


def test_a_failing_feature_leaves_its_notebook_and_one_line_and_the_others_finish(pipeline):
    pipeline.notebook(2, extra=FAIL_ONE)
    result = sweeping.run_sweep(sweep_of(pipeline))
    assert states(result) == {0: "done", 1: "failed", 2: "done"}
    [failed] = result.failed
    assert (failed.step, failed.cause) == (2, "ValueError: bad <b>luck</b>")
    assert "layer 0, feature 1 failed, step 2: ValueError: bad <b>luck</b>" in "\n".join(sweeping.summary(result))
    folder = RunDirectory(PARAMS.model_copy(update={"feature": 1})).path
    [partial] = folder.glob("*.failed.ipynb")
    assert "An Exception was encountered" in partial.read_text()
    assert read_manifest(result.folder).entries == result.entries
    pipeline.ran()
    # nothing is done again; what failed waits until it is asked for
    assert states(sweeping.run_sweep(sweep_of(pipeline))) == states(result)
    assert pipeline.ran() == []
    pipeline.notebook(2)
    assert set(states(sweeping.run_sweep(sweep_of(pipeline), retry_failed=True)).values()) == {"done"}
    assert pipeline.ran() == list(range(2, 10))


def test_a_manifest_of_other_features_is_refused_and_a_lost_trace_is_made_again(pipeline):
    sweeping.run_sweep(sweep_of(pipeline, [0]))
    with pytest.raises(BadInput, match="is of other features, parameters or files"):
        sweeping.run_sweep(sweep_of(pipeline, [0, 1]))
    RunDirectory(PARAMS.model_copy(update={"feature": 0})).trace_path.unlink()
    pipeline.ran()
    assert states(sweeping.run_sweep(sweep_of(pipeline, [0]))) == {0: "done"}
    assert pipeline.ran() == [9]


def test_one_process_at_a_time_runs_a_sweep(tmp_path):
    lock = held(folder_of("s"))
    with pytest.raises(MikitError, match="another process runs the sweep"):
        held(folder_of("s"))
    lock.release()


def test_an_estimate_rests_on_runs_that_are_done(tmp_path):
    import synthetic_sweep

    wanted = sweeping.Sweep(make_params({"run": "s"}), spec(list(range(10)), workers=2, layers=[0]))
    assert "not known before one feature" in sweeping.estimate(wanted).lines()[0]
    synthetic_sweep.make(8, failed=0)
    found = sweeping.estimate(wanted)
    assert (found.features, found.runs, found.usd) == (10, 4, None)
    assert 5 * 10 / 2 <= found.seconds <= 60 * 10 / 2


# --- kills and interrupts ---

DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_sweep
from mikit.runs import sweep as sweeping, work
from mikit.runs.logs import configure_logging
configure_logging()
class P: folder = Path(sys.argv[1])
work.prepare = lambda job: list(job["features"]["list"])
result = sweeping.run_sweep(test_sweep.sweep_of(P, range(int(sys.argv[2])), workers=int(sys.argv[3])))
sys.exit(130 if result.is_stopped else 0)
"""


def start(pipeline, n, workers):
    code = DRIVER.format(tests=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(pipeline.folder), str(n), str(workers)], stderr=subprocess.PIPE, text=True
    )


def until(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def records(n):
    """When each step of each feature was recorded."""
    found = {}
    for feature in range(n):
        directory = RunDirectory(PARAMS.model_copy(update={"feature": feature}))
        found |= {
            (feature, step): directory.step_path(step).stat().st_mtime_ns
            for step in range(1, 10)
            if directory.step_path(step).exists()
        }
    return found


@pytest.mark.slow
def test_an_interrupt_lets_running_steps_end_and_the_next_sweep_repeats_none(pipeline):
    process = start(pipeline, 4, 1)
    until(lambda: len(records(4)) >= 12)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    assert "stopping after the steps that are running" in process.stderr.read()
    before = records(4)
    assert 12 <= len(before) < 36
    assert not list(folder_of("s").parent.parent.rglob("*.failed.ipynb")), "no step was cut short"
    assert start(pipeline, 4, 1).wait(240) == 0
    assert records(4).items() >= before.items() and len(records(4)) == 36


@pytest.mark.slow
def test_a_second_interrupt_stops_at_once(pipeline):
    pipeline.notebook(3, extra=f"import time; Path({str(pipeline.tmp / 'here')!r}).touch(); time.sleep(500)")
    process = start(pipeline, 2, 1)
    until((pipeline.tmp / "here").exists)
    process.send_signal(signal.SIGINT)
    until((folder_of("s") / ".stop").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0


@pytest.mark.slow
def test_kills_at_random_leave_every_feature_done_once_and_the_manifest_true(pipeline):
    import random

    import psutil

    n, rng = 12, random.Random(0)
    pipeline.notebook(4, extra="import time; time.sleep(0.05)")
    done_once: dict = {}
    for _ in range(3):
        process = start(pipeline, n, 2)
        reached = len(records(n)) + rng.randint(5, 20)
        until(lambda reached=reached, process=process: len(records(n)) >= reached or process.poll() is not None)
        kernels = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        if kernels:
            kernels[rng.randrange(len(kernels))].kill()
        until(lambda reached=reached, process=process: len(records(n)) >= reached + 5 or process.poll() is not None)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        psutil.wait_procs(kernels, timeout=30)
        finished = {key: at for key, at in records(n).items() if (key[0], 9) in records(n)}
        assert finished.items() >= done_once.items(), "a finished feature was done again"
        done_once = finished
    assert start(pipeline, n, 2).wait(400) == 0
    assert records(n).items() >= done_once.items()
    manifest = read_manifest(folder_of("s"))
    assert [entry.state for entry in manifest.entries] == ["done"] * n
    for feature in range(n):
        assert RunDirectory(PARAMS.model_copy(update={"feature": feature})).finished()


@pytest.mark.slow
def test_two_sweeps_of_the_same_features_at_once_leave_each_done_once(pipeline, monkeypatch):
    process = start(pipeline, 3, 1)
    until(lambda: len(records(3)) >= 1)
    other = sweeping.Sweep(PARAMS, spec([0, 1, 2], name="other"), pipeline.folder, preflight="")
    assert set(states(sweeping.run_sweep(other)).values()) == {"done"}
    assert process.wait(240) == 0
    assert sorted(pipeline.ran()) == sorted([*range(1, 10)] * 3)


@pytest.mark.slow
def test_a_sweep_on_a_local_cluster_survives_the_loss_of_a_worker(pipeline, monkeypatch):
    pytest.importorskip("distributed")
    import threading

    import psutil

    lost = []

    def kill_a_worker():
        until(lambda: len(records(6)) >= 10)
        workers = [p for p in psutil.Process().children(recursive=True) if "ipykernel" in " ".join(p.cmdline())]
        victim = workers[0].parent()
        lost.append(victim.pid)
        victim.kill()

    killer = threading.Thread(target=kill_a_worker)
    killer.start()
    wanted = sweep_of(pipeline, range(6), workers=2)
    monkeypatch.setattr(sweeping, "choose_features", lambda _sweep, _pool: [(0, feature) for feature in range(6)])
    result = sweeping.run_sweep(wanted, scheduler="local")
    killer.join()
    assert lost and set(states(result).values()) == {"done"}


def test_a_scheduler_that_nobody_answers_at_is_one_line():
    pytest.importorskip("distributed")
    from mikit.runs import cluster

    with pytest.raises(BadInput, match="--scheduler nonsense: nobody answers"), cluster.connected("nonsense", 1):
        pass


def test_each_worker_gets_a_gpu_of_its_own_where_there_are_several(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert [work.gpu_environment(slot, "auto") for slot in range(3)] == [
        {"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": "2"},
    ]  # fmt: skip
    assert work.gpu_environment(0, "cpu") == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert work.gpu_environment(1, "cuda") == {}, "there is nothing to choose"


def test_a_manifest_that_is_torn_is_one_line(tmp_path):
    folder = folder_of("torn")
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(BadInput, match="is no valid manifest"):
        read_manifest(folder)
