"""Whatever takes long shows that it is at work: on a terminal, below a notebook's cell, and to whoever listens."""

import os
import pty
import subprocess
import sys

import builders
import pytest
import synthetic_sweep

import mikit
from mikit import paths
from mikit.cli import app
from mikit.progress import heard_by, track, working
from mikit.settings import make_params

GIVEN = {"model": "planted", "layer": 0, "feature": 3, "run": "progress"}


def heard(work) -> list[str]:
    """What is told while something is done."""
    lines: list[str] = []
    with heard_by(lambda what, _done, _total: lines.append(what)):
        work()
    return lines


def _scan_bos():
    from mikit.evidence.bos_tokens import scan_bos
    from mikit.runs.run import Run

    params = make_params(GIVEN)
    scan_bos(Run(params).target, params)


def _estimate():
    from mikit.evidence import estimate_evidence

    estimate_evidence(mikit.load_target("planted"), make_params(GIVEN))


def _sweep_report():
    from mikit.runs.sweep_report import write_sweep_report

    write_sweep_report(synthetic_sweep.make(3))


def _report():
    from mikit.runs.report import write_report

    write_report(builders.dead_trace(), paths.outputs() / "report.html")


def _doctor():
    from mikit.runs.leftovers import examine_outputs

    examine_outputs()


def _grade():
    from mikit.tasks.gradebook import grade_files

    (paths.outputs()).mkdir(parents=True)
    file = paths.outputs() / "x.json"
    file.write_text("{}")
    grade_files([file])


OPERATIONS = {
    "load_target": (lambda: mikit.load_target("planted"), ["loading planted"]),
    "scan-bos": (_scan_bos, ["loading planted", "tokens behind BOS"]),
    "scan --dry-run": (_estimate, ["measuring on a few batches"]),
    "report of a sweep": (_sweep_report, ["reading the runs", "drawing the report"]),
    "report": (_report, ["drawing the report"]),
    "doctor": (_doctor, ["looking through the outputs folder"]),
    "grade": (_grade, ["grading"]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_long_operation_says_what_it_is_at(name):
    from mikit.runs import run

    run._target.cache_clear()
    work, expected = OPERATIONS[name]
    lines = heard(work)
    assert [each for each in expected if not any(line.startswith(each) for line in lines)] == []


def test_a_run_names_each_of_its_steps_and_the_pass_over_the_corpus():
    lines = heard(lambda: mikit.explain_feature(**GIVEN, nulls=False))
    steps = [f"step {step} of 9" for step in range(1, 10)]
    assert [each for each in ["reading the corpus", *steps] if not any(line.startswith(each) for line in lines)] == []
    scored = heard(lambda: mikit.score_explanation('fires on "mango"', **{**GIVEN, "run": "score", "nulls": False}))
    assert any(line.startswith("scoring") for line in scored)


COMMANDS = {
    # what each shows is said above, or by the tests of logs.timed and of a sweep's display
    "run", "refine", "score", "scan", "scan_bos", "sweep", "fetch", "doctor", "report", "grade",
    # copy a few files, or wait for others
    "export", "lessons", "serve",
}  # fmt: skip


def test_no_command_was_forgotten_here():
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    known = COMMANDS | {name.replace("_", "-") for name in COMMANDS}
    assert {name for name in names if name not in known and name != "host"} == set()


PROGRAM = """
import time
from mikit.progress import track, working
with working("loading a model"):
    for _ in track(range(4), "reading the corpus", 4, unit="tokens"):
        time.sleep(0.12)
print("done")
"""


def on_a_terminal(program: str) -> str:
    """What a program writes on a terminal."""
    mine, its = pty.openpty()
    ran = subprocess.Popen(
        [sys.executable, "-c", program], stdout=its, stderr=its, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    )
    os.close(its)
    said = b""
    while True:
        try:
            piece = os.read(mine, 4096)
        except OSError:
            break
        if not piece:
            break
        said += piece
    os.close(mine)
    assert ran.wait(30) == 0
    return said.decode()


def test_on_a_terminal_work_and_the_work_inside_it_are_both_seen():
    said = on_a_terminal(PROGRAM)
    assert "loading a model" in said and "reading the corpus" in said and "tokens/s" in said
    assert said.rstrip().endswith("done")


def test_off_a_terminal_nothing_is_drawn():
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == ("done\n", "")


def outputs_of(code: str, metadata: dict) -> list[dict]:
    """What a real kernel sends while it runs a cell, asked as a front end asks, or as nbclient does."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        request = client.session.msg("execute_request", {"code": code, "silent": False}, metadata=metadata)
        client.shell_channel.send(request)
        found = []
        while True:
            message = client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
                continue
            found.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return found
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_below_a_cell_that_somebody_watches_there_is_a_bar_and_it_goes():
    shown = outputs_of(PROGRAM, {"cellId": "a"})
    pages = [m["content"]["data"].get("text/html", "") for m in shown if m["msg_type"] == "update_display_data"]
    assert any("loading a model" in page for page in pages)
    assert any("<progress" in page and "reading the corpus" in page for page in pages)
    assert pages[-1] == ""


def test_an_executed_notebook_keeps_nothing_of_it():
    shown = outputs_of(PROGRAM, {})
    assert {message["msg_type"] for message in shown} & {"display_data", "update_display_data"} == set()


def test_what_is_done_is_escaped(monkeypatch):
    from mikit import progress

    pages = []
    cell = progress._Cell(
        type("Place", (), {"update": staticmethod(lambda data, raw: pages.append(data["text/html"]))})
    )
    cell.show("<img src=x onerror=alert(1)>", 0, 0)
    assert pages == ["<span>&lt;img src=x onerror=alert(1)&gt; …</span>"]


def test_an_error_inside_work_is_passed_on_and_the_display_ends():
    with pytest.raises(ValueError, match="broken"), working("something"):
        for _ in track([1], "inner", 1):
            raise ValueError("broken")
    from mikit import progress

    assert progress._bars == []
