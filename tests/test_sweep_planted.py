"""Sweeps of the real notebooks on planted features: warm kernels find what cold ones find, and kills cost nothing twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from mikit import paths
from mikit.runs import sweep as sweeping
from mikit.runs.directory import RunDirectory
from mikit.runs.engine import NOTEBOOKS, notebook_parameters
from mikit.runs.kernel import KERNEL_NAME, kernel_environment
from mikit.runs.manifest import folder_of, read_manifest
from mikit.runs.sweep_spec import make_spec
from mikit.settings import make_params
from mikit.trace import Trace, without_times

pytestmark = pytest.mark.slow
LIGHT = {
    "model": "planted",
    "run": "light",
    "nulls": False,
    "corpus_tokens": 16384,
    "protocol": {"n_select": 4, "n_confirm": 8, "n_output_tokens": 8},
}
"""A run of the nine notebooks that takes seconds."""


def records():
    """What each step and the run recorded, by file."""
    directory = RunDirectory(make_params(LIGHT))
    files = [*(directory.step_path(step) for step in range(1, 10)), directory.trace_path]
    found = {path.name: without_times(json.loads(path.read_text())) for path in files}
    for each in found.values():
        if "inputs" in each:
            # names of what was read alone: the hashes cover the time that it took
            each["inputs"] = sorted(each["inputs"])
    return found


def test_every_notebook_leaves_the_same_record_in_a_warm_kernel_as_in_a_cold_one(monkeypatch, tmp_path):
    import papermill

    params = make_params(LIGHT)
    spec = make_spec({"name": "warm", "features": [5, 0, 3]}, params, "test")
    assert not sweeping.run_sweep(sweeping.Sweep(params, spec)).failed
    warm = records()
    for name, value in (kernel_environment() | {"MIKIT_OUTPUTS": str(tmp_path / "cold")}).items():
        monkeypatch.setenv(name, value)
    for name in NOTEBOOKS:
        papermill.execute_notebook(
            str(paths.notebooks() / "pipeline" / f"{name}.ipynb"), None, notebook_parameters(params),
            kernel_name=KERNEL_NAME, language="python", progress_bar=False,
        )  # fmt: skip
    cold = records()
    for name, found in warm.items():
        assert found == cold[name], name


def features(n):
    return [RunDirectory(make_params(LIGHT | {"feature": feature})) for feature in range(n)]


def done(n):
    """When each finished feature was finished."""
    return {d.params.feature: d.trace_path.stat().st_mtime_ns for d in features(n) if d.trace_path.exists()}


def steps(n):
    """When each step that is recorded was recorded, of features that are not finished."""
    return {
        (d.params.feature, step): d.step_path(step).stat().st_mtime_ns
        for d in features(n)
        for step in range(1, 10)
        if d.step_path(step).exists() and not d.trace_path.exists()
    }


def below(process, name):
    """Processes that it started, by a part of their command line."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        try:
            if name in " ".join(each.cmdline()):
                found.append(each)
        except psutil.NoSuchProcess:
            continue
    return found


def test_whatever_is_killed_each_of_sixty_features_is_done_once_and_the_manifest_agrees(tmp_path):
    n, rng = 60, random.Random(0)
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(LIGHT | {"sweep": {"name": "kills", "features": {"range": [0, n]}, "workers": 2}}))
    command = [sys.executable, "-m", "mikit.cli", "sweep", str(file)]

    def start(*options):
        return subprocess.Popen(
            [*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def until(reached, process):
        end = time.monotonic() + 300
        while len(done(n)) < reached and process.poll() is None:
            assert time.monotonic() < end, f"{len(done(n))} of {n}"
            time.sleep(0.05)

    finished, killed = {}, []
    # each time another victim, then the sweep itself, all at a moment that nobody chose
    for options, victim in (
        ([], "ipykernel"),
        (["--scheduler", "local"], "ipykernel"),
        (["--scheduler", "local"], "worker"),
        (["--in-flight", "4"], "mikit.runs.model_host"),
    ):
        process = start(*options)
        until(len(finished) + rng.randint(5, 8), process)
        alive = below(process, "ipykernel")
        targets = list({kernel.parent() for kernel in alive}) if victim == "worker" else below(process, victim)
        assert process.poll() is None and targets
        target = rng.choice(targets)
        target.kill()
        killed.append(victim)
        until(len(done(n)) + rng.randint(4, 7), process)
        assert process.poll() is None
        everything = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        killed.append("sweep")
        # kernels and workers see that their parent is gone
        _, left = psutil.wait_procs(everything, timeout=60)
        assert not left, f"{victim}: processes outlive the sweep: {left}"
        assert done(n).items() >= finished.items(), "a finished feature was done again"
        finished = done(n)
    begun = steps(n)
    assert start().wait(900) == 0
    assert done(n).items() >= finished.items()
    for (feature, step), at in begun.items():
        path = RunDirectory(make_params(LIGHT | {"feature": feature})).step_path(step)
        assert path.stat().st_mtime_ns == at, f"feature {feature}, step {step} was done again"
    assert len(killed) == 8
    manifest = read_manifest(folder_of("kills"))
    assert [entry.state for entry in manifest.entries] == ["done"] * n
    for directory in features(n):
        assert directory.finished()
        assert Trace.model_validate_json(directory.trace_path.read_bytes()).meta.status in ("complete", "dead")
