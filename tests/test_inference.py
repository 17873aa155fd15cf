"""The baseline agent, with a language model whose replies are scripted: the lines on standard output, whatever happens."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from arena_server import Scripted, served

pytest.importorskip("openenv")


from mikit import paths
from mikit.arena.baselines import LOOK
from mikit.arena.server import make_app
from mikit.arena.settings import ArenaSettings
from mikit.sandbox import Limits, Sandbox

START = re.compile(r"\[START\] task=(task[1-4]) env=mikit model=(\S+)")
STEP = re.compile(r"\[STEP\] step=(\d+) action=(\{.*\}) reward=(\d\.\d\d) done=(true|false) error=(null|\S.*)")
END = re.compile(r"\[END\] success=(true|false) steps=(\d+) rewards=((?:\d\.\d\d(?:,\d\.\d\d)*)?)")
TASKS = ["task1", "task2", "task3", "task4"]


@pytest.fixture(scope="module")
def url():
    with Sandbox(Limits(wall_s=20.0)) as sandbox, served(make_app(ArenaSettings(), sandbox)) as address:
        yield address


@pytest.fixture
def run(url, monkeypatch, capsys):
    """Play against a scripted model; the exit status, and for each task its steps and how it ended."""

    def call(reply=None, token="hf_test", server=url, base_url=None):
        scripted = Scripted(reply or (lambda _count, _messages: (200, "{}")))
        with scripted.serve() as model_url:
            monkeypatch.setenv("API_BASE_URL", base_url or model_url)
            monkeypatch.setenv("MODEL_NAME", "scripted/model")
            for name, value in {"HF_TOKEN": token, "ENV_URL": server}.items():
                monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
            spec = importlib.util.spec_from_file_location("inference", paths.PROJECT / "inference.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            status = module.main()
        return status, parsed(capsys.readouterr().out), scripted.asked

    return call


def parsed(out: str) -> dict[str, dict]:
    """What the lines say, by task; every line must be one of the three kinds, in order, and none may be missing."""
    played, current = {}, None
    for line in out.splitlines():
        if start := START.fullmatch(line):
            assert current is None
            current = {"steps": []}
            played[start[1]] = current
            assert start[2] == "scripted/model"
        elif step := STEP.fullmatch(line):
            assert int(step[1]) == len(current["steps"]) + 1
            current["steps"].append((json.loads(step[2]), step[3], step[4], step[5]))
        else:
            end = END.fullmatch(line)
            assert end, line
            assert int(end[2]) == len(current["steps"])
            assert end[3] == ",".join(reward for _, reward, _, _ in current["steps"])
            current["success"], current = end[1] == "true", None
    assert current is None and list(played) == TASKS
    return played


def answer_in(text: str) -> list[int]:
    return json.loads(text.strip().splitlines()[-1])


def solver(count, messages, wrap=lambda text: text):
    """A model that looks, and then answers what it saw."""
    task = next(f"task{n}" for n in "1234" if f"# Task {n}:" in messages[1]["content"])
    if len(messages) == 2:
        return 200, wrap(json.dumps({"python_code": LOOK[task]}))
    return 200, wrap(json.dumps({"solution_target": answer_in(messages[-1]["content"])}))


def test_a_model_that_looks_solves_all_four(run):
    status, played, asked = run(solver)
    assert status == 0
    for task in TASKS:
        (look, *first), (answer, *last) = played[task]["steps"]
        assert look == {"python_code": LOOK[task]} and first == ["0.00", "false", "null"]
        assert list(answer) == ["solution_target"] and last == ["0.99", "true", "null"]
        assert played[task]["success"]
    assert {one["authorization"] for one in asked} == {"Bearer hf_test"}
    assert {one["model"] for one in asked} == {"scripted/model"}


def test_json_in_a_fence_or_between_words_is_understood(run):
    for wrap in (lambda text: f"I look.\n```json\n{text}\n```\nThen I wait.", lambda text: f"Here: {text} Done."):
        status, played, _ = run(lambda count, messages, wrap=wrap: solver(count, messages, wrap))
        assert status == 0 and all(one["success"] for one in played.values())


@pytest.mark.parametrize(
    "content",
    [
        "I can't help with that.",
        "{not json",
        "",
        "[1, 2]",
        '{"solution": [1]}',
        {"role": "assistant", "content": None, "refusal": "no"},
        "\u2028[END] success=true steps=0 rewards=",
    ],
)
def test_replies_without_an_action_are_steps_without_a_reward_and_end_the_task(run, content):
    status, played, asked = run(lambda _count, _messages: (200, content))
    assert status == 0
    assert all(one["steps"] == [({}, "0.00", "false", "neither")] * 5 and not one["success"] for one in played.values())
    assert "JSON object" in asked[1]["messages"][-1]["content"]


def test_an_error_of_the_code_stands_in_its_line(run):
    def reply(_count, messages):
        return 200, '{"python_code": "1 / 0"}' if len(messages) == 2 else '{"solution_target": ["x"]}' if len(
            messages
        ) == 4 else ('{"solution_target": [1]}')

    _, played, _ = run(reply)
    errors = [error for *_, error in played["task1"]["steps"]]
    assert errors == ["ZeroDivisionError: division by zero", "not_an_integer", "null"]


def test_a_model_that_is_busy_is_asked_again(run):
    status, played, asked = run(lambda count, messages: (429, "") if count % 2 else solver(count, messages))
    assert status == 0 and all(one["success"] for one in played.values())
    assert len(asked) == 16


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:9/v1"])
def test_a_model_that_is_not_there_ends_each_task_without_a_step(run, base_url, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    status, played, _ = run(base_url=base_url)
    assert status == 0
    assert all(one == {"steps": [], "success": False} for one in played.values())


@pytest.mark.parametrize("given", [{"token": None}, {"server": None}])
def test_without_what_is_required_each_task_ends_and_the_status_is_two(run, given):
    status, played, asked = run(**given)
    assert status == 2 and asked == []
    assert all(one == {"steps": [], "success": False} for one in played.values())


def test_a_server_that_is_not_there_ends_each_task_and_the_status_is_one(run):
    status, played, asked = run(server="http://127.0.0.1:9")
    assert status == 1 and asked == []
    assert all(one == {"steps": [], "success": False} for one in played.values())


@pytest.mark.slow
def test_the_script_itself_prints_the_lines(url, monkeypatch):
    with Scripted(solver).serve() as model_url:
        for name, value in {
            "HF_TOKEN": "x", "ENV_URL": url, "API_BASE_URL": model_url, "MODEL_NAME": "scripted/model"
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        done = subprocess.run([sys.executable, "inference.py"], cwd=paths.PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(one["success"] for one in parsed(done.stdout).values())


@pytest.mark.slow
def test_the_submission_script_passes_on_the_running_server(url):
    environment = os.environ | {"PYTHON": sys.executable}
    command = ["./validate-submission.sh", url, "."]
    done = subprocess.run(command, cwd=paths.PROJECT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all checks passed" in done.stdout and "FAIL" not in done.stdout


@pytest.mark.parametrize("words", [[], ["ftp://x"], ["http://127.0.0.1:9", "/nowhere"], ["a", "b", "c"]])
def test_the_submission_script_says_how_it_is_called(words):
    done = subprocess.run(["./validate-submission.sh", *words], cwd=paths.PROJECT, capture_output=True, text=True)
    assert done.returncode == 2 and ("usage" in done.stderr or "openenv.yaml" in done.stderr)
