"""Whole runs with a language model through the real pipeline: killed in its steps, and against a real, small model."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import psutil
import pytest
from llm_server import Raw, scripted
from planted_lab import TRUTH
from planted_writer import PerfectWriter

from mikit.llm.ledger import Ledger

pytestmark = pytest.mark.slow
FEATURE = TRUTH["fruits"].index
TIMES = {"started_at", "seconds", "step_seconds", "run"}
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


def library(server, run):
    """The same in one process without kernels, which starts sooner."""
    given = {"feature": FEATURE, "run": run, "explainer": "llm", "llm_model": "m", "llm_base_url": server.url,
             "nulls": False, "llm_concurrency": 1}  # fmt: skip
    code = f"import json, mikit; mikit.explain_feature(**json.loads({json.dumps(given)!r}))"
    return [sys.executable, "-c", code]


def trace(outputs, run):
    return json.loads((outputs / "layer-0" / f"feature-{FEATURE}" / run / "trace.json").read_text())


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def test_ten_kills_in_the_steps_of_a_model_pay_no_reply_twice(outputs):
    good, victim, due = PerfectWriter("fruits"), {}, set()

    def script(request):
        n = len(server.requests)
        if n in due and "process" in victim:
            due.discard(n)
            process = victim.pop("process")
            for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                os.kill(each.pid, signal.SIGKILL)
            process.wait()
            return Raw(reset=True, body="")
        return good(request)

    with scripted(script) as server:
        due |= {1, 2, 4, 7, 9, 12, 15, 18, 20, 22}
        kills = len(due)
        for _ in range(kills):
            victim["process"] = process = subprocess.Popen(library(server, "killed"), stderr=subprocess.DEVNULL)
            if process.wait() == 0:
                break
        if process.returncode != 0:
            subprocess.run(library(server, "killed"), check=True, capture_output=True)
        killed = kills - len(due)
        assert killed >= 8
        ledger = Ledger(outputs / "layer-0" / f"feature-{FEATURE}" / "killed" / "llm-ledger.jsonl")
        assert ledger.sent == len(server.requests)
        assert ledger.spent_tokens == server.paid_tokens
        found = trace(outputs, "killed")
        assert found["meta"]["token_cost"]["total_tokens"] == server.paid_tokens
        assert len(server.requests) == server.paid_replies + killed
        bodies = [json.dumps(request, sort_keys=True) for request in server.requests]
        assert len(set(bodies)) == server.paid_replies
        subprocess.run(library(server, "undisturbed"), check=True, capture_output=True)
        assert len(server.requests) == server.paid_replies + killed, "everything was in the cache"
    assert without_times(found) == without_times(trace(outputs, "undisturbed"))
    files = [path for path in outputs.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


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
