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
from llm_server import refusal, scripted
from planted_lab import TRUTH
from planted_writer import PerfectWriter

from mikit import paths
from mikit.cli import main
from mikit.targets.smollm2 import weights_folder
from mikit.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("outputs")]
FEATURE = TRUTH["fruits"].index
KEY = "sk-kept-out-of-every-file"
ENVIRONMENT = {"LLM_API_KEY": KEY}


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


SECRETS = {name: f"secret-of-{name.lower()}-1234567" for name in ("NEURONPEDIA_API_KEY", "HF_TOKEN", "OPENAI_API_KEY")}


@pytest.mark.parametrize("way", ["environment", "file", "option"])
def test_a_key_is_in_no_byte_that_a_run_writes_or_says(outputs, tmp_path, way):
    """Notebooks, logs of kernels, caches, traces, reports and standard output, with all of them turned up."""
    key, path = f"sk-given-by-{way}-7654321", tmp_path / "key"
    path.write_text(f"{key}\n")
    given = {"environment": [], "file": ["--llm-api-key-file", str(path)], "option": ["--llm-api-key", key]}[way]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LLM_")} | SECRETS
    environment |= {"LLM_API_KEY": key} if way == "environment" else {}
    writer = PerfectWriter("fruits")

    def script(request):
        return writer(request) | {"your key": key}

    words = ["--debug", "run", "--feature", str(FEATURE), "--run", f"by-{way}", "--explainer", "llm", "--llm-model", "m",
             "--no-nulls", "--set", "max_hypotheses=1"]  # fmt: skip
    with scripted(script) as server:
        command = [sys.executable, "-m", "mikit.cli", *words, "--llm-base-url", server.url, *given]
        done = subprocess.run(command, capture_output=True, env=environment)
        assert done.returncode == 0, done.stderr[-1500:]
        assert set(server.keys) == {f"Bearer {key}"}
    secrets = [secret.encode() for secret in (key, *SECRETS.values())]
    assert b"Fires on" in done.stdout or b"fires on" in done.stdout
    assert not [secret for secret in secrets if secret in done.stdout + done.stderr]
    files = [file for file in [*outputs.rglob("*"), *paths.cache().glob("*")] if file.is_file()]
    assert {"trace.json", "report.html", ".kernel.log", "llm-ledger.jsonl"} <= {file.name for file in files}
    assert [file for file in files if any(secret in file.read_bytes() for secret in secrets)] == []


def test_a_key_that_is_refused_is_one_line_and_one_question(outputs, monkeypatch):
    key = "sk-refused-by-its-server-99"
    said = refusal(401, f"Incorrect API key provided: {key}.")
    with scripted(lambda _: said) as server:
        words = ["run", "--feature", str(FEATURE), "--run", "refused", "--explainer", "llm", "--llm-model", "m"]
        command = [sys.executable, "-m", "mikit.cli", *words, "--llm-base-url", server.url]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LLM_API_KEY": key})
    assert done.returncode == 2 and len(server.requests) == 1
    [line] = [line for line in done.stderr.splitlines() if line.startswith("mikit: ")]
    assert "refuses the key" in line and "LLM_API_KEY" in line
    assert key not in done.stdout + done.stderr
    assert not [file for file in outputs.rglob("*") if file.is_file() and key.encode() in file.read_bytes()]
