"""Runs that meet a full disk, a clock that jumps, and odd parameters: one line, nothing lost, nothing done twice."""

import json
import os
import random
import resource
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_kills import trace, without_times

from mikit import explain_feature, paths
from mikit.errors import BadInput
from mikit.runs.directory import RunDirectory
from mikit.settings import NAMES, Params, make_params
from mikit.settings_sources import parse
from mikit.trace import StepFile

LITTLE = {"model": "planted", "feature": 2, "corpus_tokens": 20_000, "nulls": False}
SETTINGS = ["--feature", "2", "--set", "corpus_tokens=20000", "--set", "nulls=false"]


def mikit(*words, limit=None, **options):
    """The command in a process of its own, perhaps with a limit on the size of any file."""

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", "mikit.cli", *words]
    return subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limited if limit else None, check=False, **options
    )


# --- disks


@pytest.mark.parametrize("limit", [pytest.param(1_000, marks=pytest.mark.slow), 30_000])
def test_a_write_that_the_system_refuses_is_one_line_and_the_next_call_goes_on(limit):
    words = ["scan", "--set", "corpus_tokens=20000"]
    refused = mikit(*words, limit=limit)
    assert refused.returncode == 1
    assert [line for line in refused.stderr.splitlines() if line.startswith("mikit: ")] == [
        refused.stderr.splitlines()[-1]
    ]
    assert "ulimit -f" in refused.stderr.splitlines()[-1]
    assert not [path for path in (paths.outputs() / "evidence").glob("[!.]*") if path.is_dir()]
    assert mikit(*words).returncode == 0


def test_a_step_file_that_cannot_be_written_leaves_the_old_one_whole(monkeypatch):
    explain_feature(**LITTLE)
    directory = RunDirectory(make_params(LITTLE))
    before = directory.step_path(9).read_bytes()

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "fsync", full)
        directory.write(9, {}, {}, 1.0, "2026-01-01T00:00:00+00:00")
    assert directory.step_path(9).read_bytes() == before
    assert [path.name for path in directory.path.glob(".*.tmp")] == []


# --- clocks


@pytest.mark.parametrize("when", ["1970-01-01T00:00:00+00:00", "2199-01-01T00:00:00+00:00"])
def test_a_clock_that_jumps_makes_nothing_stale_and_no_time_negative(when):
    first = explain_feature(**LITTLE)
    directory = RunDirectory(make_params(LITTLE))
    for step in (1, 5):
        path = directory.step_path(step)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"started_at": when}))
        os.utime(path, (0, 0))
    assert directory.finished()
    directory.step_path(9).unlink()
    again = explain_feature(**LITTLE)
    assert again.meta.interpretations == first.meta.interpretations
    assert again.meta.seconds >= 0
    assert StepFile.model_validate_json(directory.step_path(9).read_bytes()).seconds >= 0


# --- parameters

odd_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)  # fmt: skip
plain_names = st.sampled_from([name for name in NAMES if "." not in name])


@given(st.dictionaries(plain_names | st.text(max_size=12), odd_values, max_size=4))
def test_any_parameters_are_taken_whole_or_refused_in_one_line(values):
    try:
        params = make_params(values)
    except BadInput as refused:
        assert "\n" not in str(refused)
        assert str(refused).startswith("parameters: ")
    else:
        assert make_params(params.model_dump()) == params
        assert {name: getattr(params, name) for name in values if name != "protocol"} == {
            name: value for name, value in values.items() if name != "protocol"
        }


@given(st.sampled_from(list(NAMES)), st.text(max_size=20))
def test_any_text_for_a_parameter_is_a_value_or_one_line(name, text):
    try:
        parse(name, text, f"--{name}")
    except BadInput as refused:
        assert "\n" not in str(refused)


@given(st.integers(0, 10**6), st.integers(1, 64), st.sampled_from(["statistical"]))
def test_parameters_survive_json(seed, batch, explainer):
    params = Params(seed=seed, batch=batch, explainer=explainer)
    assert Params.model_validate_json(params.model_dump_json()) == params


# --- kills

STEPS = "from mikit import explain_feature; explain_feature(model='planted', feature=3, run={run!r})"


@pytest.mark.slow
def test_ten_kills_at_random_moments_of_the_step_runner_repeat_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("MIKIT_OUTPUTS", str(tmp_path))

    def explain(run, **options):
        return subprocess.Popen([sys.executable, "-c", STEPS.format(run=run)], stderr=subprocess.DEVNULL, **options)

    assert explain("undisturbed").wait() == 0
    seconds = trace(tmp_path, "undisturbed")["meta"]["seconds"]
    chance, kills, done = random.Random(0), 0, {}
    folder = tmp_path / "layer-0" / "feature-3" / "killed"
    while kills < 10:
        process = explain("killed")
        try:
            # imports come first, then as long as all steps take
            ended = process.wait(timeout=4 + chance.random() * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            ended = process.wait()
        kills += ended != 0
        now = {path.name: json.loads(path.read_text())["started_at"] for path in folder.glob("step*.json")}
        assert now.items() >= done.items()
        done = now
        if ended == 0:
            assert without_times(trace(tmp_path, "killed")) == without_times(trace(tmp_path, "undisturbed"))
            for path in folder.iterdir():
                path.unlink()
            done = {}
