"""A model host that dies costs time alone, and leaves nothing behind, however it and its sweep end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from llm_server import scripted
from planted_writer import TRUTH, Writers

from mikit.errors import MikitError
from mikit.experiments.steering import changes, prompt_sites
from mikit.runs import host_keeper, work
from mikit.runs.host_keeper import HostKeeper
from mikit.runs.sweep import Sweep, run_sweep
from mikit.runs.sweep_spec import make_spec
from mikit.settings import make_params
from mikit.targets import Options
from mikit.targets.remote import served_target
from mikit.targets.remote.messages import send as client_send
from mikit.trace import without_times

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("outputs")]
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[1])}
NAMES = ("fruits", "royal_animals", "officials")


@pytest.fixture
def keeper(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    keeper = HostKeeper(tmp_path / "host.log", {"OMP_NUM_THREADS": "1"})
    yield keeper
    keeper.close()


def until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def status_of(pid):
    return psutil.Process(pid).status()


def test_a_request_in_flight_when_the_host_is_killed_is_answered_right(keeper, planted, monkeypatch):
    remote = served_target(keeper.address, "planted", None, Options())
    sites = prompt_sites([remote.ids_of("the quick red fox saw a river")], "all_tokens")
    vectors, tokens = 5 * planted.sae.W_dec[:3], np.arange(10, 60)
    first = keeper.pid
    os.kill(first, signal.SIGSTOP)
    until(lambda: status_of(first) == psutil.STATUS_STOPPED)
    found, sent = [], threading.Event()

    def noted(*message):
        client_send(*message)
        sent.set()

    monkeypatch.setattr("mikit.targets.remote.client.send", noted)
    asking = threading.Thread(target=lambda: found.append(changes(remote, sites, vectors, tokens, 8)))
    asking.start()
    assert sent.wait(60)
    os.kill(first, signal.SIGKILL)
    asking.join(120)
    expected = changes(planted, sites, vectors, tokens, 8)
    np.testing.assert_allclose(found[0].logprob, expected.logprob, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[0].kl, expected.kl, rtol=1e-5, atol=1e-5)
    assert keeper.started == 2 and keeper.pid != first


def test_a_host_that_comes_back_with_another_model_is_refused_in_one_line(keeper):
    remote = served_target(keeper.address, "planted", None, Options())
    client = remote.model.host_client
    client.wanted = client.wanted | {"options": client.wanted["options"] | {"planted_seed": 7}}
    os.kill(keeper.pid, signal.SIGKILL)
    with pytest.raises(MikitError, match="model, SAE or precision have changed") as raised:
        remote.ids_of("a new text")
    assert "\n" not in str(raised.value)


def test_a_host_that_dies_again_and_again_is_given_up_and_its_clients_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(host_keeper, "YOUNG_DEATHS", 2)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    keeper = HostKeeper(tmp_path / "host.log", {})
    folder = keeper.folder
    for n in (1, 2):
        until(lambda n=n: keeper.started == n and psutil.pid_exists(keeper.pid))
        os.kill(keeper.pid, signal.SIGKILL)
    until(lambda: not folder.exists())
    with pytest.raises(MikitError, match="has ended: start the sweep again"):
        served_target(keeper.address, "planted", None, Options())
    keeper.close()


HOLDER = """
import sys, time
from pathlib import Path
from mikit.runs.host_keeper import HostKeeper
keeper = HostKeeper(Path(sys.argv[1]), {})
print(keeper.pid, keeper.folder, flush=True)
time.sleep(600)
"""


def test_a_host_ends_with_the_process_that_started_it_however_that_ends(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "host.log")], stdout=subprocess.PIPE, text=True, env=environment
    )
    pid, folder = holder.stdout.readline().split()
    until((Path(folder) / "s").exists)
    holder.kill()
    holder.wait()
    until(lambda: not psutil.pid_exists(int(pid)) and not Path(folder).exists())


def test_what_a_host_left_that_was_killed_with_its_keeper_is_cleared_away_by_the_next(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "host.log")]
    dead, alive = (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
        for _ in range(2)
    )
    (pid, left), (_, kept) = (process.stdout.readline().split() for process in (dead, alive))
    try:
        # one that is stopped does nothing before it dies, too
        os.kill(int(pid), signal.SIGSTOP)
        dead.kill()
        os.kill(int(pid), signal.SIGKILL)
        dead.wait()
        assert Path(left).is_dir()
        host_keeper.clear_away()
        assert not Path(left).exists() and Path(kept).is_dir()
    finally:
        alive.kill()
        alive.wait()
    until(lambda: not Path(kept).exists())


# --- sweeps ---


def swept(outputs, url, run, in_flight, scheduler=None, names=NAMES, **others):
    """The traces of a sweep without times; nothing of it is left running."""
    params = make_params({"run": run, "explainer": "llm", "llm_model": "m", "llm_base_url": url, "nulls": False})
    features = [TRUTH[name].index for name in names]
    spec = make_spec({"name": run, "features": features, "in_flight": in_flight, **others}, params, "test")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    result = run_sweep(Sweep(params, spec), scheduler=scheduler)
    assert [entry.cause for entry in result.entries] == [None] * len(names)
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before and is_ours(child)]
    _gone, alive = psutil.wait_procs(left, timeout=30)
    assert not alive
    (outputs / "llm-cache").rename(outputs / f"llm-cache-{run}")
    traces = [json.loads((outputs / entry.folder / "trace.json").read_text()) for entry in result.entries]
    return [without_times(trace) for trace in traces]


def is_ours(child):
    """Dask's processes come with a helper of multiprocessing, which lives as long as this process."""
    try:
        return "multiprocessing.resource_tracker" not in " ".join(child.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_features_in_flight_end_in_the_traces_of_one_after_the_other_and_so_they_do_when_the_host_is_killed(outputs):
    writers, folders, due = Writers(NAMES), set(), [30, 15]

    def script(request):
        [host] = work.hosts()
        folders.add(host.folder)
        with server.lock:
            if due and len(server.requests) >= due[-1]:
                due.pop()
                os.kill(host.pid, signal.SIGKILL)
        return writers(request)

    with scripted(writers) as server:
        one_by_one = swept(outputs, server.url, "one", 1)
        assert all(trace["meta"]["confirmed"] for trace in one_by_one)
        server.requests.clear()
        server.script = script
        together = swept(outputs, server.url, "together", len(NAMES))
    assert together == one_by_one
    assert not due, "the host was killed twice"
    assert folders and not any(folder.exists() for folder in folders)


def test_a_sweep_without_a_model_host_finds_the_same(outputs):
    with scripted(Writers(NAMES)) as server:
        told = {"names": NAMES[:2], "llm_concurrency": 8}
        with_host = swept(outputs, server.url, "with", 2, **told)
        without = swept(outputs, server.url, "without", 2, model_host=False, **told)
    assert with_host == without


def test_a_worker_of_dask_has_one_model_host_for_the_features_that_it_has_in_flight(outputs):
    pytest.importorskip("distributed")
    writers, hosts = Writers(NAMES), set()

    def script(request):
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                hosts.update([child.pid] * ("mikit.runs.model_host" in child.cmdline()))
        return writers(request)

    with scripted(writers) as server:
        here = swept(outputs, server.url, "here", 1, names=NAMES[:2])
        server.script = script
        there = swept(outputs, server.url, "dask", 2, scheduler="local", names=NAMES[:2])
    assert there == here
    assert len(hosts) == 1
