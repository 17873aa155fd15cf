"""The OpenEnv server: what clients send and get, and that nothing they do breaks it."""

import asyncio
import importlib
import json
import shutil
import threading
import time
from pathlib import Path
from statistics import mean

import httpx
import nbformat
import psutil
import pytest
from arena_server import served
from websockets.sync.client import connect

pytest.importorskip("openenv")

from openenv.core.generic_client import GenericEnvClient

from mikit import paths
from mikit.arena import ArenaAction, ArenaClient
from mikit.arena.baselines import LOOK, POLICIES
from mikit.arena.environment import ArenaEnvironment
from mikit.arena.episode import Episode
from mikit.arena.server import make_app
from mikit.arena.settings import ArenaSettings, take_settings
from mikit.errors import BadInput
from mikit.sandbox import Limits, Sandbox
from mikit.tasks import TASKS, generate, make, solvers
from mikit.tasks.catalogue import PUBLIC

SETTINGS = ArenaSettings(limits=Limits(wall_s=4.0), sessions=40)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(SETTINGS.limits) as made:
        yield made
    assert not psutil.pid_exists(made.pid)


@pytest.fixture(scope="module")
def url(sandbox):
    with served(make_app(SETTINGS, sandbox)) as address:
        yield address


@pytest.fixture
def workers(sandbox):
    """How many workers there are; none may be left at the end of a test."""

    def count():
        return sum(child.is_running() for child in psutil.Process(sandbox.pid).children())

    yield count
    deadline = time.monotonic() + 20
    while count() and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    assert count() == 0


def answer_in(text: str) -> list[int]:
    """What the reference's code printed last."""
    return json.loads(text.strip().splitlines()[-1])


class Raw:
    """A websocket that speaks the protocol by hand."""

    def __init__(self, url: str) -> None:
        self._context = connect(url.replace("http", "ws") + "/ws")
        self._socket = self._context.__enter__()

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self._socket.close()

    def text(self, text: str) -> dict:
        self._socket.send(text)
        return json.loads(self._socket.recv(timeout=60))

    def send(self, kind: str, **data) -> dict:
        return self.text(json.dumps({"type": kind, **({"data": data} if kind != "state" else {})}))

    def vanish(self, **data) -> None:
        """Ask for a step, and be gone before its answer."""
        self._socket.send(json.dumps({"type": "step", "data": data}))
        self._socket.socket.close()


@pytest.fixture
def raw(url, workers):
    with Raw(url) as made:
        yield made


# Who plays.


def test_the_generic_client_plays_all_four_tasks(url, workers):
    with GenericEnvClient(base_url=url).sync() as env:
        for task in TASKS:
            seen = env.reset(task_id=task, seed=11)
            assert seen.observation["stdout_or_error"].startswith(f"# Task {TASKS[task].level}")
            seen = env.step({"python_code": LOOK[task]})
            seen = env.step({"solution_target": answer_in(seen.observation["stdout_or_error"])})
            assert seen.done and seen.observation["metadata"]["solved"] and seen.reward == pytest.approx(0.9899)


def test_the_generic_client_plays_all_four_tasks_asynchronously(url, workers):
    async def play(task):
        async with GenericEnvClient(base_url=url) as env:
            await env.reset(task_id=task, seed=12, difficulty="easy")
            seen = await env.step({"python_code": LOOK[task]})
            return await env.step({"solution_target": answer_in(seen.observation["stdout_or_error"])})

    async def all_tasks():
        return await asyncio.gather(*map(play, TASKS))

    assert [seen.observation["metadata"]["solved"] for seen in asyncio.run(all_tasks())] == [True] * 4


def test_a_raw_websocket_plays_all_four_tasks(raw):
    for task in TASKS:
        assert raw.send("reset", task_id=task, seed=13)["data"]["done"] is False
        text = raw.send("step", python_code=LOOK[task])["data"]["observation"]["stdout_or_error"]
        seen = raw.send("step", solution_target=answer_in(text))
        assert seen["type"] == "observation" and seen["data"]["observation"]["metadata"]["solved"]


def test_the_typed_client_gets_what_the_page_says(url, workers):
    with ArenaClient(base_url=url).sync() as env:
        seen = env.reset(task_id="task2", seed=3, difficulty="hard").observation
        assert (seen.task_level, seen.done, seen.reward) == (2, False, None)
        specimen = make("task2", 3, "hard").specimen
        expected = {"task_id": "task2", "difficulty": "hard", "seed": 3, "digest": specimen.digest(), "step": 0}
        expected |= {"steps_left": 30, "solved": False, "split": "train"}
        assert expected.items() <= seen.metadata.items()
        assert seen.metadata["isolation"] in ("full", "no-landlock")
        seen = env.step(ArenaAction(python_code="1 / 0")).observation
        assert seen.metadata["error"] == "ZeroDivisionError: division by zero" and seen.reward == 0.0
        state = env.state()
        assert (state.step_count, state.task_level, state.task_id) == (1, 2, "task2")


# Instances.


def test_a_seed_is_an_instance_and_without_one_it_is_random_and_told(raw):
    def reset(**given):
        return raw.send("reset", task_id="task1", **given)["data"]["observation"]["metadata"]

    assert reset(seed=1)["digest"] == reset(seed=1)["digest"] == make("task1", 1).specimen.digest()
    assert reset(seed=1)["digest"] != reset(seed=2)["digest"]
    assert len({reset()["seed"] for _ in range(3)}) == 3
    told = reset()
    assert reset(seed=told["seed"])["digest"] == told["digest"]


def test_the_test_split_is_made_with_the_secret_which_leaves_the_environment(sandbox):
    environment = {"MIKIT_TASKS_SECRET": "sixteen bytes or more"}
    settings = take_settings(environment)
    assert environment == {} and settings.split == "test"
    assert "sixteen" not in repr(settings)
    env = ArenaEnvironment(settings, sandbox)
    seen = env.reset(seed=4, task_id="task1")
    env.close()
    assert seen.metadata["digest"] == generate("task1", "classic", 4, b"sixteen bytes or more").specimen.digest()
    assert seen.metadata["digest"] != generate("task1", "classic", 4, PUBLIC).specimen.digest()


@pytest.mark.parametrize(
    "environment, said",
    [
        ({"MIKIT_ARENA_SPLIT": "test"}, "MIKIT_TASKS_SECRET"),
        ({"MIKIT_ARENA_SPLIT": "trian"}, "did you mean 'train'"),
        ({"MIKIT_ARENA_SESSIONS": "0"}, "from 1 to"),
        ({"MIKIT_ARENA_SUBMISSIONS": "²"}, "whole number"),
        ({"MIKIT_ARENA_ISOLATION": "none of it"}, "valid: full"),
        ({"MIKIT_ARENA_ALLOW_UNSAFE": "maybe"}, "valid: 1 or 0"),
        ({"MIKIT_TASKS_SECRET": "short"}, "16 bytes"),
    ],
)
def test_a_setting_that_there_is_none_of_is_refused(environment, said):
    with pytest.raises(BadInput, match=said):
        take_settings(environment)


# What is no action.


@pytest.mark.parametrize(
    "action, error",
    [
        ({}, "neither"),
        ({"python_code": "1", "solution_target": [1]}, "both"),
        ({"solution_target": []}, "empty"),
        ({"solution_target": "2, 5"}, "not_a_list"),
        ({"solution_target": [True]}, "not_an_integer"),
        ({"solution_target": [1.5]}, "not_an_integer"),
        ({"solution_target": ["²"]}, "not_an_integer"),
        ({"solution_target": [[1]]}, "not_an_integer"),
        ({"solution_target": [10**30]}, "out_of_range"),
        ({"solution_target": [-1]}, "out_of_range"),
        ({"solution_target": {"a": 1}}, "not_a_list"),
        ({"solution_target": [1] * 5000}, "too_long"),
    ],
)
def test_what_is_no_action_costs_a_step_and_not_the_submission(raw, action, error):
    raw.send("reset", task_id="task1", seed=1)
    seen = raw.send("step", **action)["data"]
    assert (seen["done"], seen["reward"], seen["observation"]["metadata"]["error"]) == (False, 0.0, error)
    assert raw.send("state")["data"]["step_count"] == 1
    solution = sorted(make("task1", 1).truth)
    assert raw.send("step", solution_target=solution)["data"]["observation"]["metadata"]["solved"]


@pytest.mark.parametrize(
    "message, code",
    [
        ("{", "INVALID_JSON"),
        ('{"type": "fly"}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"python_code": 3}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"solution": [1]}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": [1]}', "VALIDATION_ERROR"),
        ('{"type": "step"}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"task_id": "task5"}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"task_id": ["task1"]}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"seed": "7"}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"seed": true}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"difficulty": "trivial"}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"taks_id": "task1"}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"episode_id": 3}}', "EXECUTION_ERROR"),
    ],
)
def test_a_message_that_is_wrong_is_answered_by_its_kind_and_the_session_goes_on(raw, message, code):
    answer = raw.text(message)
    assert (answer["type"], answer["data"]["code"]) == ("error", code)
    if code == "EXECUTION_ERROR":
        assert "valid: " in answer["data"]["message"]
    assert raw.send("reset", task_id="task1")["type"] == "observation"


def test_a_message_that_is_no_object_is_answered_with_an_error(url, workers):
    for message in ("[1]", "[" * 5000, "3"):
        with Raw(url) as made:
            assert made.text(message)["type"] == "error"
    with Raw(url) as made:
        assert made.send("reset", task_id="task1")["type"] == "observation"


def test_a_step_before_a_reset_says_so(raw):
    seen = raw.send("step", python_code="1")["data"]
    assert seen["observation"]["metadata"]["error"] == "no_episode" and seen["reward"] == 0.0
    assert raw.send("state")["data"] == {
        "episode_id": None, "step_count": 0, "task_level": 1, "task_id": None, "done": False
    }  # fmt: skip


def test_after_the_end_nothing_changes(raw):
    raw.send("reset", task_id="task1", seed=1)
    raw.send("step", solution_target=[0])
    before = raw.send("state")["data"]
    truth = sorted(make("task1", 1).truth)
    for action in ({"solution_target": truth}, {"python_code": "1"}, {}):
        seen = raw.send("step", **action)["data"]
        assert (seen["done"], seen["reward"]) == (True, 0.0)
        assert seen["observation"]["metadata"]["solved"] is False
    assert raw.send("state")["data"] == before


def test_an_episode_ends_after_its_steps_without_a_reward(raw):
    raw.send("reset", task_id="task1", seed=1)
    seen = [raw.send("step", python_code="1")["data"] for _ in range(30)]
    assert [one["done"] for one in seen] == [False] * 29 + [True]
    assert {one["reward"] for one in seen} == {0.0}
    assert "no steps are left" in seen[-1]["observation"]["stdout_or_error"]


def test_a_worker_that_dies_is_one_observation_and_ends_the_episode(raw):
    raw.send("reset", task_id="task1", seed=1)
    seen = raw.send("step", python_code="import os; os._exit(1)")["data"]
    assert seen["done"] and seen["reward"] == 0.0 and "ended" in seen["observation"]["stdout_or_error"]
    assert raw.send("reset", task_id="task1")["data"]["done"] is False


def test_a_new_reset_ends_the_episode_before(raw, workers):
    for _ in range(3):
        raw.send("reset", task_id="task1")
        assert workers() == 1


def test_nothing_that_is_told_before_the_end_depends_on_the_answer(sandbox):
    """Two instances with the same weights and other truths would be played alike: the texts come from sizes alone."""
    settings = ArenaSettings(submissions=3, limits=SETTINGS.limits)
    texts = []
    for answer in ([0], sorted(make("task1", 1).truth)):
        episode = Episode("x", make("task1", 1), settings, sandbox)
        texts.append([episode.opening, episode.step(None, answer).text, episode.step(None, answer).text])
        last = episode.step(None, answer)
        assert last.text.startswith("solved" if answer != [0] else "not solved") and episode.done
        assert last.reward == pytest.approx(0.9899 if answer != [0] else 0.0101, abs=1e-4)
    assert texts[0] == texts[1]


# HTTP.


def test_http_answers_and_never_with_a_server_error(url, workers):
    with httpx.Client(base_url=url, timeout=60) as client:
        assert client.get("/health").json() == {"status": "healthy"}
        about = client.get("/metadata").json()
        assert about["name"] == "mikit" and "Isolation: " in about["description"]
        assert client.post("/reset", json={"task_id": "task1", "seed": 3}).json()["done"] is False
        assert client.get("/state").status_code == 200
        assert {"action", "observation", "state"} <= client.get("/schema").json().keys()
        assert "task_level" in client.get("/schema").json()["observation"]["properties"]
        for body, status in (
            ({"task_id": "task5"}, 422),
            ({"seed": "x"}, 422),
            ({"seed": 1.5}, 422),
            ({"taks_id": "task1"}, 422),
            ({"seed": 2**64}, 422),
        ):
            assert client.post("/reset", json=body).status_code == status, body
        assert client.post("/reset", content=b"{").status_code == 422
        for body in ({"action": {"solution": 1}}, {}, {"action": 3}, {"action": {"python_code": 3}}):
            assert client.post("/step", json=body).status_code == 422, body
        told = client.post("/step", json={"action": {"python_code": "1"}})
        assert told.status_code == 200 and told.json()["metadata"]["error"] == "no_episode"
        assert client.get("/nowhere").status_code == 404
        assert client.get("/specimen", params={"task_id": "task9", "seed": 1}).status_code == 422
        assert client.post("/mcp", json={}).status_code == 200


def test_sessions_over_the_limit_are_refused_by_name_and_the_others_go_on(url, workers):
    open_sockets, refused = [], 0
    try:
        for _ in range(100):
            made = Raw(url)
            open_sockets.append(made)
            try:
                answer = made.send("state")
            except Exception:
                refused += 1
                continue
            refused += answer.get("data", {}).get("code") == "CAPACITY_REACHED"
        assert refused == 100 - SETTINGS.sessions
        assert open_sockets[0].send("reset", task_id="task1")["type"] == "observation"
    finally:
        for made in open_sockets:
            made.__exit__()


def test_a_client_that_vanishes_in_the_middle_of_a_step_leaves_no_worker(url, workers):
    gone = Raw(url)
    gone.send("reset", task_id="task1")
    gone.vanish(python_code="import time; time.sleep(2)")
    with Raw(url) as other:
        assert other.send("reset", task_id="task1")["type"] == "observation"


def test_a_session_that_spins_does_not_hold_up_another(url, workers):
    with Raw(url) as busy, Raw(url) as other:
        busy.send("reset", task_id="task1")
        other.send("reset", task_id="task1")
        thread = threading.Thread(target=busy.send, args=("step",), kwargs={"python_code": "while True: pass"})
        thread.start()
        started = time.monotonic()
        assert other.send("step", python_code="1")["data"]["observation"]["stdout_or_error"].strip().endswith("1")
        assert time.monotonic() - started < SETTINGS.limits.wall_s
        thread.join()


# What an agent that looks at nothing can get.


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("submissions", [1, 3])
def test_a_blind_hill_climber_gets_less_than_a_fifth(sandbox, task, submissions):
    env = ArenaEnvironment(ArenaSettings(submissions=submissions, limits=SETTINGS.limits), sandbox)
    rewards = [POLICIES["blind hill-climber"](env, task, "classic", seed) for seed in range(4)]
    env.close()
    assert mean(rewards) < 0.2


# An episode as a notebook, and a lab against a server.


def test_an_episode_becomes_a_notebook_that_can_be_run_again(url, raw):
    raw.send("reset", task_id="task1", seed=5, episode_id="to-be-kept")
    raw.send("step", python_code="x = 3\nprint('<b>')\nx")
    raw.send("step")
    raw.send("step", solution_target=[1, 2])
    answer = httpx.get(f"{url}/episodes/to-be-kept/notebook")
    notebook = nbformat.reads(answer.text, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code[1].source == "x = 3\nprint('<b>')\nx" and "<b>" in code[1].outputs[0].text
    names = {}
    for cell in code[:2]:
        exec(cell.source, names)
    assert names["lab"].digest == make("task1", 5).specimen.digest() and names["x"] == 3
    assert code[2].source == "lab.submit([1, 2])"
    assert httpx.get(f"{url}/episodes/another/notebook").status_code == 404


def test_a_lab_against_a_server_has_the_same_model_and_is_graded_there(url, workers):
    from mikit.tasks import Lab

    lab, local = Lab("task1", seed=8, url=url), Lab("task1", seed=8)
    assert lab.digest == local.digest and lab.text == local.text
    assert (lab.model.layer.weight == local.model.layer.weight).all()
    assert lab.check("weight", solvers.probes.effective_weight(lab.model)).message
    assert not lab.submit([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]).solved
    assert "not a whole number" in repr(lab.submit([1.5]))
    assert lab.submit(solvers.solve("task1", lab.fresh())).solved
    with pytest.raises(BadInput, match="unknown task"):
        Lab("task9", url=url)
    with pytest.raises(BadInput, match="no server"):
        Lab("task1", seed=1, url="http://127.0.0.1:9")


# The official validation.


def test_openenv_validates_the_checkout(capsys):
    from openenv.validation import Level, Verdict, run_validation

    report = run_validation(paths.PROJECT, max_level=Level.STATIC)
    assert report.verdict is Verdict.PASS, report.results


def test_openenv_validates_the_running_server(url):
    from openenv.cli._validation import validate_running_environment

    report = validate_running_environment(url, timeout_s=30)
    assert report["passed"], [one for one in report["criteria"] if not one["passed"]]


@pytest.mark.slow
def test_openenvs_runtime_graders_pass_on_the_running_server(url, workers, tmp_path):
    from local_provider import LocalProvider
    from openenv.validation import CheckStatus, Level, run_validation

    # a copy: the graders refuse a folder in which other tests leave their caches meanwhile
    package = tmp_path / "package"
    for name in ("validation", "server", "tasks"):
        shutil.copytree(paths.PROJECT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("openenv.yaml", "Dockerfile", "pyproject.toml"):
        shutil.copy(paths.PROJECT / name, package / name)
    report = run_validation(package, max_level=Level.RUNTIME, provider=LocalProvider(url))
    found = {result.check_id: result for result in report.results}
    for check in ("static.manifest", "runtime.startup", "runtime.reward_well_formed", "runtime.observation_schema",
                  "runtime.state_contract"):  # fmt: skip
        assert found[check].status is CheckStatus.PASS, found[check]


def test_the_old_paths_of_the_graders_lead_to_the_tasks(monkeypatch):
    monkeypatch.syspath_prepend(str(paths.PROJECT))
    instance = make("task1", 1)
    for name, function in (("tasks.graders", "grade_task"), ("tasks.task1.grader", "grade")):
        grade = getattr(importlib.import_module(name), function)
        assert grade(sorted(instance.truth), instance).score == pytest.approx(0.9899)
    for number in "1234":
        module = importlib.import_module(f"tasks.task{number}.grader")
        assert module.grade is importlib.import_module(f"mikit.tasks.task{number}").grade
    assert Path(paths.PROJECT / "server" / "app.py").is_file()
