"""The `mikit` command: statuses, one line for each failure, and help that is quick."""

import errno
import logging
import os
import signal
import subprocess
import sys

import pytest

from mikit import __version__
from mikit.cli import main
from mikit.errors import BadInput, MikitError, StepFailed
from mikit.runs import doctor, engine, fetch
from mikit.settings import Params


@pytest.fixture
def command(capsys):
    def call(*words):
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    yield call
    logging.getLogger().handlers.clear()


@pytest.fixture
def ends_with(monkeypatch):
    """Make running the pipeline end in an exception, or do something."""

    def ends(outcome):
        def run_pipeline(*_args, **_options):
            if isinstance(outcome, BaseException):
                raise outcome
            outcome()

        monkeypatch.setattr(engine, "run_pipeline", run_pipeline)

    return ends


@pytest.mark.parametrize(
    "words, said",
    [
        (["run", "--featur", "3"], "--feature"),
        (["rum"], "Did you mean 'run'"),
        (["run", "extra"], "unexpected extra argument"),
        (["run", "--params"], "requires an argument"),
        (["run", "--params", "none.yaml"], "none.yaml: No such file"),
        (["run", "--feature", "6_650"], "--feature: '6_650'"),
        (["run", "--feature", "three"], "command line: feature = 'three': should be a valid integer"),
        (["run", "--feature", "-1"], "greater than or equal to 0"),
        (["run", "--run", "../x"], "run = '../x'"),
        (["run", "--run", "a/b"], "run = 'a/b'"),
        (["run", "--set", "seed"], "valid: name=value"),
        (["run", "--model", "smollm2-135m", "--planted-seed", "1"], "planted_seed is given with model 'smollm2-135m'"),
        (["run", "--planted-spec", "none.yaml"], "there is no file none.yaml: valid: a YAML file like"),
        (["run", "--set", "protocol.n_selct=3"], "did you mean 'protocol.n_select'"),
        (["run", "--set", "seed=3", "--seed", "4"], "also given as --seed"),
        (["fetch", "corpse"], "did you mean 'corpus'"),
        (["fetch"], "Missing argument"),
        (["report", "nowhere"], "nowhere holds no valid trace.json"),
    ],
)
def test_bad_input_is_one_line_and_status_2(command, words, said):
    status, out, err = command(*words)
    assert (status, out) == (2, "")
    assert err.startswith("mikit: ") and err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    "outcome, status, said",
    [
        (BadInput("feature 9 is out of range"), 2, "mikit: feature 9 is out of range\n"),
        (StepFailed("step 3 failed"), 1, "mikit: step 3 failed\n"),
        (MikitError("process 7 is working on it"), 1, "mikit: process 7 is working on it\n"),
        (KeyboardInterrupt(), 130, "mikit: interrupted; what is done is kept: the same command goes on from there\n"),
        (ZeroDivisionError("two\nlines"), 1, "mikit: ZeroDivisionError: two lines (--debug shows where)\n"),
    ],
)
def test_each_kind_of_failure_has_its_status_and_its_line(command, ends_with, outcome, status, said):
    ends_with(outcome)
    assert command("run") == (status, "", said)


@pytest.mark.parametrize(
    "number, said",
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "can be written"),
        (errno.EACCES, "make it writable"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "mend the cause"),
    ],
)
def test_what_the_system_refuses_is_one_line_with_a_remedy(command, ends_with, number, said):
    ends_with(OSError(number, os.strerror(number), "/some/where"))
    status, _, err = command("run")
    assert (status, len(err.splitlines())) == (1, 1)
    assert f"/some/where: {os.strerror(number)}: " in err
    assert said in err
    assert "what was finished is kept" in err


def test_a_request_to_terminate_ends_like_an_interrupt(command, ends_with):
    ends_with(lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    assert command("run")[0] == 130
    assert signal.getsignal(signal.SIGTERM) is before


def test_debug_shows_the_traceback_wherever_it_stands(command, ends_with):
    ends_with(ZeroDivisionError("here"))
    assert command("run", "--debug")[0] == 1
    status, _, err = command("--debug", "run")
    assert status == 1 and "Traceback" in err and "in run_pipeline" in err


def test_show_params_prints_values_with_their_origin_and_runs_nothing(command, ends_with, monkeypatch, tmp_path):
    ends_with(AssertionError("it ran"))
    file = tmp_path / "p.yaml"
    file.write_text("seed: 4\nlayer: 1\n")
    monkeypatch.setenv("MIKIT_LAYER", "2")
    monkeypatch.setenv("HF_TOKEN", "secret")
    words = ["run", "--params", str(file), "--set", "protocol.n_select=5", "--corpus-tokens", "null", "--show-params"]
    status, out, err = command(*words)
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in out.splitlines()}
    assert (status, err) == (0, "")
    assert rows["seed"] == ["4", str(file)]
    assert rows["layer"] == ["2", "environment MIKIT_LAYER"]
    assert rows["protocol.n_select"] == ["5", "command line"]
    assert rows["corpus_tokens"] == ["None", "command line"]
    assert rows["model"] == ["'planted'", "default"]
    assert "HF_TOKEN" in out and "secret" not in out


def test_every_parameter_has_an_option_or_can_be_set(command):
    status, out, _ = command("run", "--help")
    assert status == 0
    assert "Example: mikit run" in out
    without = {name for name in Params.model_fields if f"--{name.replace('_', '-')}" not in out}
    assert "protocol" in without
    assert not without & {"model", "layer", "feature", "run", "seed", "source", "explainer", "llm_model"}
    status, shown, _ = command("run", "--show-params")
    assert status == 0
    assert {name for name in without if not any(line.startswith(name) for line in shown.splitlines())} == set()


def test_help_and_version_are_quick_and_import_nothing_heavy(command):
    assert command("--version")[:2] == (0, f"mikit {__version__}\n")
    assert "Commands:" in command()[1]
    code = (
        "import sys, mikit.cli\nstatus = mikit.cli.main(['--help'])\n"
        "heavy = {'torch', 'papermill', 'nbformat', 'numpy', 'matplotlib', 'transformers'} & set(sys.modules)\n"
        "sys.exit(status or len(heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_planted_pipeline_ends_with_a_trace_a_report_and_nothing_to_do_again(command, tmp_path):
    words = ["run", "--run", "whole", "--require-gates", "--set", "protocol.n_confirm=20"]
    status, out, err = command(*words)
    assert status == 0, err
    folder = tmp_path / "outputs" / "layer-0" / "feature-3" / "whole"
    assert "planted, layer 0, feature 3: complete, normal" in out and f"report: {folder / 'report.html'}" in out
    assert sorted(path.name for path in folder.glob("[!.]*")) == sorted(
        [
            *(f"{name}.ipynb" for name in engine.NOTEBOOKS),
            *(f"step{step}.json" for step in range(1, 10)),
            "report.html",
            "trace.json",
        ]
    )
    (folder / "report.html").unlink()
    assert command("report", str(folder))[:2] == (0, f"{folder / 'report.html'}\n")
    assert command(*words)[::2] == (0, "up to date and kept: step 1, 2, 3, 4, 5, 6, 7, 8, 9\n")


def test_an_index_that_the_sae_lacks_is_refused_before_any_notebook_runs(command, tmp_path):
    status, _, err = command("run", "--feature", "100000")
    assert status == 2
    assert err.splitlines()[-1].startswith("mikit: feature 100000 is out of range")
    assert not list(tmp_path.rglob("*.ipynb"))


def test_the_doctor_ends_with_status_1_and_a_remedy_if_something_needed_is_missing(command, monkeypatch):
    findings = [doctor.Finding("python", "ok", "3.11"), doctor.Finding("disk", "note", "1 GiB free", "make room")]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert command("doctor")[0] == 0
    findings.append(doctor.Finding("corpus", "missing", "not installed", "mikit fetch corpus"))
    status, out, err = command("doctor")
    assert (status, err) == (1, "")
    assert "-> mikit fetch corpus" in out and out.endswith("missing: corpus\n")


def test_the_doctor_looks_at_folders_packages_data_and_threads(monkeypatch, tmp_path):
    found = {finding.name: finding for finding in doctor.examine({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"})}
    assert found["python"].state == "ok"
    assert found["outputs folder"].state == "ok"
    assert found["threads"].state == "ok"
    assert {"disk", "memory", "cache folder", "smollm2-135m", "corpus"} <= set(found)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIKIT_OUTPUTS", str(tmp_path / "file"))
    found = {finding.name: finding for finding in doctor.examine({})}
    assert found["outputs folder"].state == "missing" and "MIKIT_OUTPUTS" in found["outputs folder"].remedy
    assert found["threads"].state == "note" and "export OMP_WAIT_POLICY=PASSIVE" in found["threads"].remedy


def test_what_is_fetched_already_is_left_alone(monkeypatch, tmp_path, command):
    data = fetch.Data("thing", "pytest", fetch.importlib.metadata.version("pytest"), "a thing", "thing-*.json")
    monkeypatch.setattr(fetch, "DATA", (data,))
    monkeypatch.setattr(fetch, "NAMES", ("thing", "all"))
    monkeypatch.setenv("MIKIT_CACHE", str(tmp_path))
    (tmp_path / "thing-1.json").write_text("{}")
    assert command("fetch", "all") == (0, "thing: all there\n", "")


def test_a_wheel_that_cannot_be_installed_is_one_line(monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(MikitError, match="^no-such-wheel==1.0 could not be installed: ERROR: No matching distribution"):
        fetch.install(["no-such-wheel==1.0"])
