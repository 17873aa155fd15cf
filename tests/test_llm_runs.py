"""Whole runs with a language model through the real pipeline: against a real, small model, and what its log tells."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from llm_server import scripted
from planted_lab import TRUTH
from planted_writer import PerfectWriter

from mikit.cli import main
from mikit.targets.smollm2 import weights_folder
from mikit.trace import Trace

pytestmark = pytest.mark.slow
FEATURE = TRUTH["fruits"].index
KEY = "sk-kept-out-of-every-file"


@pytest.fixture(scope="module", autouse=True)
def outputs(tmp_path_factory):
    """One evidence pass serves all runs of this file; the reply cache is each test's own."""
    folder = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIKIT_OUTPUTS", str(folder))
        patch.setenv("LLM_API_KEY", KEY)
        yield folder


@pytest.fixture(autouse=True)
def isolated():
    """Stands in for the fixture of the same name that gives each test an outputs folder of its own."""


def command(server, run, *more):
    options = {
        "--feature": FEATURE,
        "--run": run,
        "--explainer": "llm",
        "--llm-model": "m",
        "--llm-base-url": server.url,
    }
    words = [str(word) for pair in options.items() for word in pair]
    return [sys.executable, "-m", "mikit.cli", "run", *words, "--no-nulls", "--set", "llm_concurrency=1",
            "--llm-api-key", KEY, *more]  # fmt: skip


def trace(outputs, run):
    return json.loads((outputs / "layer-0" / f"feature-{FEATURE}" / run / "trace.json").read_text())


@pytest.mark.smollm2
def test_a_run_against_a_served_small_model_ends_whatever_it_answers(outputs, tmp_path, capsys):
    """Weak answers are typed failures or failed gates, never a crash."""
    pytest.importorskip("fastapi", reason="transformers serve needs fastapi and uvicorn: pip install 'mikit[arena]'")
    served, port = str(weights_folder()), free_port()
    serve = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1", "--port", str(port),
             "--device", "cpu", served]  # fmt: skip
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(serve, stdout=log, stderr=log, start_new_session=True)
    try:
        assert _answers(process, f"http://127.0.0.1:{port}/health", 180), (tmp_path / "serve.log").read_text()[-2000:]
        small = ["protocol.n_select=2", "protocol.n_confirm=2", "max_hypotheses=1", "llm_max_tokens=80",
                 "llm_timeout=300", "llm_retries=1"]  # fmt: skip
        words = [word for each in small for word in ("--set", each)]
        arguments = ["--feature", str(FEATURE), "--run", "served", "--explainer", "llm", "--llm-model", served,
                     "--llm-base-url", f"http://127.0.0.1:{port}/v1", "--no-nulls", "--max-rounds", "1"]  # fmt: skip
        assert main(["run", *arguments, *words]) == 0
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
    found = Trace.model_validate_json(
        (outputs / "layer-0" / f"feature-{FEATURE}" / "served" / "trace.json").read_bytes()
    )
    cost = found.meta.token_cost
    assert found.meta.status == "complete" and not found.meta.confirmed
    assert cost.calls > 0 and cost.completion_tokens > 0 and cost.over_budget == 0
    replies = [json.loads(path.read_text()) for path in (outputs / "llm-cache").glob("??/*.json")]
    assert replies and not any(reply["failure"] for reply in replies), "every question was answered, however badly"
    with capsys.disabled():
        sys.stdout.write(f"\nserved: {cost.calls} calls, {cost.failed_calls} failed, {cost.total_tokens} tokens; "
                         f"{found.meta.gate_pass.reasons}\n")  # fmt: skip


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(process, url, seconds):
    end = time.monotonic() + seconds
    waiting = threading.Event()
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(url, timeout=5).status_code < 500:
                return True
        except httpx.HTTPError:
            waiting.wait(1)
    return False


def test_the_log_of_a_run_tells_no_key(outputs):
    with scripted(PerfectWriter("fruits")) as server:
        done = subprocess.run(
            [*command(server, "told")[:4], "--debug", *command(server, "told")[4:]], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr[-1500:]
    assert KEY not in done.stderr + done.stdout and re.search("fruits|fires", done.stdout)
