"""Runs killed with SIGKILL, through the real pipeline: nothing finished is repeated, and the trace is the same."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from mikit.trace import without_times

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("outputs")]
COMMAND = [sys.executable, "-m", "mikit.cli", "run", "--model", "planted", "--feature", "3"]
HALF_A_STEP = 0.6
"""CPU seconds: more than a kernel needs between two notebooks, less than one of the steps in which it is killed."""


@pytest.fixture(scope="module")
def undisturbed(outputs):
    """The trace of a run that nobody killed."""
    subprocess.run([*COMMAND, "--run", "undisturbed"], check=True, capture_output=True)
    return trace(outputs, "undisturbed")


def trace(outputs, run):
    return json.loads((outputs / "layer-0" / "feature-3" / run / "trace.json").read_text())


def started_steps(outputs, run):
    folder = outputs / "layer-0" / "feature-3" / run
    return {path.name: json.loads(path.read_text())["started_at"] for path in folder.glob("step*.json")}


def run_until_step(run, step):
    """A running process that has just begun the step: it tells when the one before has ended."""
    process = subprocess.Popen([*COMMAND, "--run", run], stderr=subprocess.PIPE, text=True, start_new_session=True)
    begun = "checks before" if step == 1 else f"step {step - 1} of 9"
    for line in process.stderr:
        if begun in line:
            return process
    raise AssertionError(f"step {step} never began")


def wait_until_busy(kernels):
    """A kernel that dies between two notebooks is replaced and nobody notices: wait until one is amid a step."""
    before = {kernel: kernel.cpu_times().user for kernel in kernels}
    while all(kernel.cpu_times().user < before[kernel] + HALF_A_STEP for kernel in kernels):
        psutil.wait_procs(kernels, timeout=0.01)


@pytest.mark.parametrize(
    ("victim", "step"), [*(("driver", step) for step in range(1, 10)), *(("kernel", step) for step in (1, 5, 9))]
)
def test_a_run_killed_in_any_step_goes_on_from_there(outputs, undisturbed, victim, step):
    run = f"{victim}-{step}"
    process = run_until_step(run, step)
    kernels = psutil.Process(process.pid).children(recursive=True)
    if victim == "kernel":
        wait_until_busy(kernels)
    for pid in [process.pid] if victim == "driver" else [kernel.pid for kernel in kernels]:
        os.kill(pid, signal.SIGKILL)
    assert process.wait() != 0
    finished = started_steps(outputs, run)
    assert set(finished) == {f"step{k}.json" for k in range(1, step)}
    psutil.wait_procs(kernels, timeout=30)
    subprocess.run([*COMMAND, "--run", run], check=True, capture_output=True)
    assert started_steps(outputs, run).items() >= finished.items()
    assert without_times(trace(outputs, run)) == without_times(undisturbed)
