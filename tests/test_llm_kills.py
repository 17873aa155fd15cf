"""Runs with a language model killed with SIGKILL at random points: no reply is paid twice, and the account is right."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from forking_driver import Driver
from llm_server import Raw, scripted
from planted_lab import TRUTH
from planted_writer import PerfectWriter

from mikit.llm.ledger import Ledger
from mikit.trace import without_times

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("outputs")]
FEATURE = TRUTH["fruits"].index
KEY = "sk-kept-out-of-every-file"
ENVIRONMENT = {"LLM_API_KEY": KEY}
KILLS = 10
A_RUN = 50
"""Questions of a run of this feature."""
LONGEST_PAUSE = 0.2
"""Seconds between a reply that is kept and a kill: the work in between."""


@pytest.fixture(scope="module")
def driver(outputs):
    warm = Driver(feature=FEATURE, explainer="statistical")
    yield warm
    warm.close()


def settings(server, run, **more):
    return {"feature": FEATURE, "run": run, "explainer": "llm", "llm_model": "m", "llm_base_url": server.url,
            "nulls": False, "llm_concurrency": 1} | more  # fmt: skip


def folder_of(outputs, run):
    return outputs / "layer-0" / f"feature-{FEATURE}" / run


def trace(outputs, run):
    return json.loads((folder_of(outputs, run) / "trace.json").read_text())


def comparable(found):
    return without_times(found, {"llm_replay", "llm_base_url", "llm_token_budget"})


class Killer:
    """A script that kills the run that asks: with a question in its hand, or some time after a reply was kept.

    While it kills, every other question waits, and is not answered: a reply on its way to a dead process would be paid
    and lost, which nobody can help.
    """

    def __init__(self, good, driver, cache, points):
        self.good, self.driver, self.cache = good, driver, cache
        self.points = sorted(points)
        self.turn, self.random = threading.Condition(), random.Random(1)
        self.kills, self.lost, self.paid = 0, 0, []
        self.is_pending = False

    def __call__(self, request):
        child = self.driver.child
        with self.turn:
            self.turn.wait_for(lambda: not self.is_pending)
            is_due = _lives(child) and len(self.paid) + 1 >= min(self.points, default=math.inf)
            if is_due:
                self.points.pop(0)
                if self.random.random() < 0.5:
                    self._kill(child)
            if not _lives(child):
                self.lost += 1
                return Raw(reset=True)
            self.paid.append(json.dumps(request, sort_keys=True))
            if is_due:
                self.is_pending = True
                threading.Thread(target=self._kill_later, args=(child,), daemon=True).start()
        return self.good(request)

    def _kill_later(self, child):
        pause = threading.Event()
        while len(list(self.cache.glob("??/*.json"))) < len(self.paid):
            pause.wait(0.002)
        pause.wait(self.random.uniform(0, LONGEST_PAUSE))
        with self.turn:
            self._kill(child)
            self.is_pending = False
            self.turn.notify_all()

    def _kill(self, child):
        os.kill(child, signal.SIGKILL)
        while _lives(child):
            threading.Event().wait(0.002)
        self.kills += 1


def _lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_to_its_end(driver, **params):
    """Start again as often as it is killed."""
    starts = 1
    while (status := driver.run(**params)) == -signal.SIGKILL:
        starts += 1
    assert status == 0
    return starts


def test_ten_kills_at_random_points_pay_no_reply_twice_and_the_ledger_is_the_servers_count(outputs, driver):
    points = random.Random(3).sample(range(1, A_RUN - 5), KILLS)
    killer = Killer(PerfectWriter("fruits"), driver, outputs / "llm-cache", points)
    with scripted(killer) as server:
        starts = run_to_its_end(driver, **settings(server, "killed"))
        assert server.paid_replies == A_RUN
        assert killer.kills == KILLS == starts - 1
        assert len(killer.paid) == len(set(killer.paid)) == server.paid_replies
        assert len(server.requests) == server.paid_replies + killer.lost
        ledger, found = Ledger(folder_of(outputs, "killed") / "llm-ledger.jsonl"), trace(outputs, "killed")
        assert ledger.spent_tokens == server.paid_tokens == found["meta"]["token_cost"]["total_tokens"]
        # a question may be written down whose process died before it was sent
        assert 0 <= ledger.sent - len(server.requests) <= KILLS
        asked = len(server.requests)
        assert driver.run(**settings(server, "undisturbed")) == 0
        assert len(server.requests) == asked, "everything was in the cache"
    assert comparable(found) == comparable(trace(outputs, "undisturbed"))
    address = server.url
    assert driver.run(**settings(server, "replayed", llm_replay=True)) == 0, f"{address} is gone, and was asked"
    assert comparable(found) == comparable(trace(outputs, "replayed"))
    files = [path for path in outputs.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.parametrize("budget", [2_000, 4_000])
def test_a_budget_is_kept_over_kills_and_with_more_of_it_the_run_goes_on(outputs, driver, budget):
    calls, tokens = 4, 110
    points = random.Random(budget).sample(range(1, budget // tokens // 2), 4)
    killer = Killer(PerfectWriter("fruits"), driver, outputs / "llm-cache", points)
    run = f"budget-{budget}"
    with scripted(killer) as server:
        given = settings(server, run, llm_concurrency=calls, seed=budget)
        run_to_its_end(driver, **given, llm_token_budget=budget)
        assert killer.kills == 4 and trace(outputs, run)["meta"]["status"] == "budget"
        at_most = Ledger(folder_of(outputs, run) / "llm-ledger.jsonl").most_tokens
        assert budget <= at_most < budget + calls * tokens and server.paid_tokens <= at_most
        run_to_its_end(driver, **given)
        assert trace(outputs, run)["meta"]["status"] == "complete"
        assert trace(outputs, run)["meta"]["gate_pass"]["input"] == "pass"
        ledger = Ledger(folder_of(outputs, run) / "llm-ledger.jsonl")
        assert ledger.lost <= killer.kills * calls
        # a reply that was on its way to a process that was killed may be paid, and is asked for again
        assert ledger.spent_tokens <= server.paid_tokens <= ledger.most_tokens
        assert len(set(killer.paid)) >= len(killer.paid) - ledger.lost


def command(server, run):
    options = {
        "--feature": FEATURE,
        "--run": run,
        "--explainer": "llm",
        "--llm-model": "m",
        "--llm-base-url": server.url,
    }
    words = [str(word) for pair in options.items() for word in pair]
    return [sys.executable, "-m", "mikit.cli", "run", *words, "--no-nulls", "--set", "llm_concurrency=1"]


def test_a_command_whose_kernel_and_then_itself_is_killed_with_a_question_out_pays_no_reply_twice(outputs):
    good, victims, killed = PerfectWriter("fruits"), {}, []

    def script(request):
        n = len(server.requests)
        if n in (3, 20):
            process = psutil.Process(victims["command"].pid)
            kernels = process.children(recursive=True)
            for victim in kernels if n == 3 else [process, *kernels]:
                victim.kill()
            psutil.wait_procs(kernels, timeout=30)
            killed.append(n)
            return Raw(reset=True)
        return good(request)

    with scripted(script) as server:
        for status in (1, -signal.SIGKILL, 0):
            victims["command"] = subprocess.Popen(command(server, "typed"), stderr=subprocess.PIPE, text=True)
            told = victims["command"].communicate()[1]
            assert victims["command"].returncode == status, told
        assert killed == [3, 20] and len(server.requests) == server.paid_replies + 2
        ledger = Ledger(folder_of(outputs, "typed") / "llm-ledger.jsonl")
        assert (ledger.sent, ledger.spent_tokens) == (len(server.requests), server.paid_tokens)
    bodies = [json.dumps(request, sort_keys=True) for request in server.requests]
    assert len(set(bodies)) == server.paid_replies
    assert trace(outputs, "typed")["meta"]["token_cost"]["total_tokens"] == server.paid_tokens
