"""Whole runs with a language model through the real pipeline: against a real, small model, and what its log tells."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest
from llm_server import scripted
from planted_lab import TRUTH
from planted_writer import PerfectWriter

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


def test_a_run_against_a_served_small_model_ends_whatever_it_answers(outputs, tmp_path, smollm2):
    """Weak answers are typed failures or failed gates, never a crash."""
    served = tmp_path / "model"
    smollm2.model.save_pretrained(served)
    smollm2.tokenizer.save_pretrained(served)
    if not getattr(smollm2.tokenizer, "chat_template", None):
        pytest.skip("the tokenizer has no chat template to serve")
    port = 18000 + os.getpid() % 1000
    log = (tmp_path / "serve.log").open("wb")
    serve = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--port", str(port), "--host", "127.0.0.1"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(serve, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        if not _answers(process, f"http://127.0.0.1:{port}/health", 180):
            pytest.skip(f"transformers serve does not start here: {(tmp_path / 'serve.log').read_text()[-300:]}")
        url = f"http://127.0.0.1:{port}/v1"
        small = ["protocol.n_select=2", "protocol.n_confirm=2", "max_hypotheses=1", "llm_max_tokens=120",
                 "llm_timeout=600", "llm_retries=1"]  # fmt: skip
        words = [word for each in small for word in ("--set", each)]
        arguments = [sys.executable, "-m", "mikit.cli", "run", "--feature", str(FEATURE), "--run", "served", "--explainer",
                     "llm", "--llm-model", str(served), "--llm-base-url", url, "--no-nulls", *words]  # fmt: skip
        done = subprocess.run(arguments, capture_output=True, text=True)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
    assert done.returncode == 0, done.stderr[-2000:]
    found = trace(outputs, "served")
    assert found["meta"]["status"] == "complete"
    assert found["meta"]["token_cost"]["calls"] > 0
    assert not found["meta"]["confirmed"]


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
