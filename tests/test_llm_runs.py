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


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Address of SmolLM2-135M behind transformers' own server, and its name there."""
    pytest.importorskip("fastapi", reason="transformers serve needs fastapi and uvicorn: pip install 'mikit[arena]'")
    model, port, told = str(weights_folder()), free_port(), tmp_path_factory.mktemp("served") / "serve.log"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1", "--port", str(port),
               "--device", "cpu", model]  # fmt: skip
    with told.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        assert _answers(process, f"http://127.0.0.1:{port}/health", 180), told.read_text()[-2000:]
        yield f"http://127.0.0.1:{port}/v1", model
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def small(served, n_tokens):
    address, model = served
    values = ["protocol.n_select=2", "protocol.n_confirm=2", f"llm_max_tokens={n_tokens}", "llm_timeout=300",
              "llm_retries=1"]  # fmt: skip
    words = [word for value in values for word in ("--set", value)]
    return ["--feature", str(FEATURE), "--no-nulls", "--llm-model", model, "--llm-base-url", address, *words]


@pytest.mark.smollm2
def test_a_run_against_a_served_small_model_ends_whatever_it_answers(outputs, served, capsys):
    """Weak answers are typed failures or failed gates, never a crash."""
    words = ["--run", "served", "--max-rounds", "1", "--set", "max_hypotheses=1", *small(served, 80)]
    assert main(["run", *words]) == 0
    found = Trace.model_validate_json(
        (outputs / "layer-0" / f"feature-{FEATURE}" / "served" / "trace.json").read_bytes()
    )
    cost = found.meta.token_cost
    assert found.meta.status == "complete" and not found.meta.confirmed and found.provenance.explainer == "llm"
    assert cost.calls >= cost.failed_calls and cost.completion_tokens > 0 and cost.over_budget == 0
    replies = [json.loads(path.read_text()) for path in (outputs / "llm-cache").glob("??/*.json")]
    assert replies and not any(reply["failure"] for reply in replies), "every question was answered, however badly"
    with capsys.disabled():
        sys.stdout.write(
            f"\nserved: {cost.calls} calls, {cost.failed_calls} without an answer; {cost.total_tokens} tokens\n"
        )


@pytest.mark.smollm2
def test_a_served_small_model_judges_an_explanation_that_is_brought(outputs, served, capsys):
    """All roles but the writer's: author, judges of windows and of tokens, plausibility."""
    before = len(list((outputs / "llm-cache").glob("??/*.json")))
    brought = ["--explanation", "It fires on words for fruit.", "--output", "It promotes words for food."]
    assert main(["score", *brought, *small(served, 32)]) == 0
    told = capsys.readouterr().out
    assert len(list((outputs / "llm-cache").glob("??/*.json"))) >= before + 10
    assert not re.search(r"(input|output) +pass", told)
    with capsys.disabled():
        sys.stdout.write("\n" + told)


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
