"""The engine: fresh steps are kept, only a record proves success, and a run stopped anywhere goes on from there.

The notebooks here are made by the tests: each notes that it ran, and records a step.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from mikit.errors import BadInput, MikitError, StepFailed
from mikit.runs.directory import RunDirectory
from mikit.runs.engine import NOTEBOOKS, notebook_parameters, run_pipeline
from mikit.settings import make_params
from mikit.trace import Trace

PARAMETERS = """model: str = "planted"
layer: int = 0
feature: int = 3
run: str = "notebook"
settings: dict = {}"""

SETUP = """from pathlib import Path
from mikit.runs.directory import RunDirectory
from mikit.settings import make_params
assert "left_over" not in dir()
left_over = True
params = make_params(dict(model=model, layer=layer, feature=feature, run=run, **settings))
directory = RunDirectory(params)
with (Path({tmp!r}) / "ran").open("a") as log:
    log.write("{step} ")"""

RECORD = (
    """directory.write({step}, {{"found": {step} * {scale}}}, {{"evidence": "e"}}, seconds=0.0, started_at="now")"""
)
TRACE = """
from mikit.trace import Trace
directory.write_trace(Trace.model_validate_json((Path({tmp!r}) / "trace.json").read_text()))"""

GATES = {"input": "none", "output": "none", "chain": "none", "reasons": {}}
TRACE_VALUES = {
    "meta": {
        "layer_id": 0,
        "feature_id": 3,
        "run": "t",
        "status": "dead",
        "feature_kind": "dead",
        "started_at": "now",
        "seconds": 0.0,
        "interpretations": {"input": None, "output": None, "chain": None},
        "final_metrics": {
            "activation_coverage": None,
            "boundary_rejection": None,
            "output_score": None,
            "functional_score": None,
        },
        "intervals": {},
        "gate_pass": GATES,
        "confirmed": False,
        "recall": None,
        "grey_share": None,
        "scoring_dose": None,
        "confirm_batches": 0,
        "nulls": {},
        "token_cost": {},
        "rounds": 0,
    },
    "input_round": None,
    "output_round": None,
    "chain": None,
    "provenance": {
        "model_id": "m",
        "model_hash": "h",
        "sae_id": "s",
        "sae_hash": "h",
        "layer": 0,
        "feature": 3,
        "hook_point": "p",
        "tokenizer_hash": "h",
        "bos_id": 0,
        "dtype": "float32",
        "device": "cpu",
        "corpus": "c",
        "corpus_hash": "h",
        "prompts_hash": "h",
        "versions": {},
        "params": {},
        "seed": 0,
        "explainer": "statistical",
        "step_seconds": {},
    },
}

PARAMS = make_params({"run": "t", "seed": 5, "protocol": {"n_select": 4}})
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


class Pipeline:
    """Nine notebooks in a temporary folder, and what running them left."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.folder = tmp / "notebooks"
        self.folder.mkdir()
        (tmp / "trace.json").write_text(json.dumps(TRACE_VALUES))
        for step in range(1, 10):
            self.notebook(step)
        self.directory = RunDirectory(PARAMS)

    def notebook(
        self, step: int, extra: str = "", parameters: str = PARAMETERS, tag: str = "parameters", scale: int = 1
    ):
        record = RECORD.format(step=step, scale=scale) + (TRACE.format(tmp=str(self.tmp)) if step == 9 else "")
        cells = [
            nbformat.v4.new_markdown_cell("# A step"),
            nbformat.v4.new_code_cell(parameters, metadata={"tags": [tag]}),
            nbformat.v4.new_code_cell(SETUP.format(tmp=str(self.tmp), step=step)),
            nbformat.v4.new_code_cell(extra),
            nbformat.v4.new_code_cell(record, metadata={"tags": ["record"]}),
        ]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), self.folder / f"{NOTEBOOKS[step - 1]}.ipynb")

    def go(self, params=PARAMS, **options) -> Trace:
        return run_pipeline(params, self.folder, preflight="", **options)

    def ran(self) -> list[int]:
        """The steps that were executed since the last call."""
        log = self.tmp / "ran"
        steps = [int(step) for step in log.read_text().split()] if log.exists() else []
        log.unlink(missing_ok=True)
        return steps

    def executed(self, step: int, suffix: str = ".ipynb") -> Path:
        return self.directory.path / f"{NOTEBOOKS[step - 1]}{suffix}"


@pytest.fixture
def pipeline(tmp_path, monkeypatch) -> Pipeline:
    monkeypatch.setenv("MIKIT_OUTPUTS", str(tmp_path / "outputs {with} braces"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return Pipeline(tmp_path)


ALL = list(range(1, 10))


def test_a_run_leaves_nine_notebooks_nine_records_and_a_trace_and_a_second_run_does_nothing(pipeline):
    trace = pipeline.go()
    assert trace.meta.run == "t"
    assert pipeline.ran() == ALL
    for step in ALL:
        notebook = nbformat.read(pipeline.executed(step), as_version=4)
        injected = next(cell for cell in notebook.cells if "injected-parameters" in cell.metadata.get("tags", []))
        assert "seed" in injected.source and "n_select" in injected.source
        assert next(cell.execution_count for cell in notebook.cells if cell.cell_type == "code") == 1
        assert pipeline.directory.read(step).outputs == {"found": step}
    assert pipeline.directory.finished()
    assert not list(pipeline.directory.path.glob("*.failed.ipynb")) + list(pipeline.directory.path.glob(".*partial*"))
    assert pipeline.go() == trace
    assert pipeline.ran() == []
    pipeline.go(force=True)
    assert pipeline.ran() == ALL


def test_a_kernel_killed_in_step_5_fails_that_step_and_the_next_run_goes_on_from_there(pipeline):
    pipeline.notebook(5, extra=KILL)
    with pytest.raises(StepFailed, match="step 5 failed in .*step5_run_intervention.failed.ipynb.*the kernel died"):
        pipeline.go()
    assert pipeline.ran() == [1, 2, 3, 4, 5]
    assert not pipeline.directory.trace_path.exists()
    assert not pipeline.executed(5).exists()
    partial = nbformat.read(pipeline.executed(5, ".failed.ipynb"), as_version=4)
    banner, *cells = partial.cells
    assert "An Exception was encountered" in banner.source
    status = [cell.metadata.papermill.status for cell in cells if "papermill" in cell.metadata]
    assert status == ["completed", "completed", "completed", "completed", "failed", "pending"]
    [error] = [output for cell in cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert error.ename == "DeadKernelError"
    pipeline.notebook(5)
    pipeline.go()
    assert pipeline.ran() == [5, 6, 7, 8, 9]
    assert not pipeline.executed(5, ".failed.ipynb").exists()


def test_an_error_in_a_cell_fails_the_step_in_one_line_and_keeps_the_executed_part(pipeline):
    pipeline.notebook(2, extra="raise ValueError('first line\\nsecond line')")
    with pytest.raises(StepFailed) as caught:
        pipeline.go()
    assert "\n" not in str(caught.value)
    assert "step 2 failed" in str(caught.value) and "ValueError: first line" in str(caught.value)
    assert "ValueError" in pipeline.executed(2, ".failed.ipynb").read_text()
    assert pipeline.ran() == [1, 2]


def test_bad_input_found_by_a_step_stays_bad_input(pipeline):
    pipeline.notebook(1, extra="from mikit.errors import BadInput\nraise BadInput('no such corpus')")
    with pytest.raises(BadInput, match="^no such corpus$"):
        pipeline.go()


def test_a_notebook_that_ends_without_a_valid_record_has_failed(pipeline):
    pipeline.notebook(3, extra="import sys; sys.exit(0)")
    with pytest.raises(StepFailed, match="step 3 .* it left no valid step3.json"):
        pipeline.go()
    pipeline.notebook(3, extra="directory.params_hash = 'of other params'")
    with pytest.raises(StepFailed, match="step 3 .* its own record, changed"):
        pipeline.go()
    pipeline.notebook(3)
    pipeline.notebook(9, extra="directory.write_trace = lambda trace: directory.trace_path.write_text('{}')")
    with pytest.raises(StepFailed, match="step 9 .* it left no valid trace.json"):
        pipeline.go()


def test_a_step_that_found_something_else_makes_exactly_what_reads_it_run_again(pipeline):
    pipeline.go()
    pipeline.ran()
    pipeline.directory.step_path(5).write_text("{torn")
    pipeline.go()
    assert pipeline.ran() == [5, 9], "step 5 found the same again; step 9 had lost its trace"
    pipeline.directory.step_path(5).unlink()
    pipeline.notebook(5, scale=10)
    pipeline.go()
    assert pipeline.ran() == [5, 6, 7, 8, 9]


def test_other_params_make_every_step_run_again(pipeline):
    pipeline.go()
    pipeline.ran()
    pipeline.go(make_params({"run": "t", "seed": 6}))
    assert pipeline.ran() == ALL


def test_a_record_without_its_notebook_is_completed_from_what_was_saved_before_it(pipeline):
    pipeline.go()
    pipeline.ran()
    pipeline.executed(4).rename(pipeline.directory.path / f".{NOTEBOOKS[3]}.partial.ipynb")
    pipeline.go()
    assert pipeline.ran() == []
    assert pipeline.executed(4).exists()


def test_what_has_been_executed_is_saved_before_the_record_is_made(pipeline):
    saved = f"(directory.path / '.{NOTEBOOKS[1]}.partial.ipynb')"
    look = f"print('an output')\nseen = {saved}.exists()"
    pipeline.notebook(2, extra=look)
    path = pipeline.folder / f"{NOTEBOOKS[1]}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source += f"\nassert not seen and 'an output' in {saved}.read_text()"
    nbformat.write(notebook, path)
    pipeline.go()


def test_a_notebook_that_would_ignore_a_parameter_is_refused_before_anything_runs(pipeline):
    pipeline.notebook(7, parameters=PARAMETERS.replace("settings", "options"))
    with pytest.raises(BadInput, match="step7_.*unknown parameter 'settings': its parameters cell has model, layer"):
        pipeline.go()
    pipeline.notebook(7, tag="params")
    with pytest.raises(BadInput, match="step7_.*no cell tagged 'parameters'"):
        pipeline.go()
    (pipeline.folder / f"{NOTEBOOKS[6]}.ipynb").write_text("{")
    with pytest.raises(BadInput, match="step7_.* can't be read as a notebook"):
        pipeline.go()
    assert pipeline.ran() == []
    assert not pipeline.directory.path.exists()


def test_what_the_checks_refuse_stops_the_run_before_any_notebook(pipeline):
    refuse = "from mikit.errors import BadInput\nraise BadInput('feature {feature} is out of range')"
    with pytest.raises(BadInput, match="^feature 3 is out of range$"):
        run_pipeline(PARAMS, pipeline.folder, preflight=refuse)
    assert pipeline.ran() == []


def test_an_outputs_folder_that_cannot_be_written_is_bad_input(pipeline, monkeypatch):
    (pipeline.tmp / "file").write_text("")
    monkeypatch.setenv("MIKIT_OUTPUTS", str(pipeline.tmp / "file"))
    with pytest.raises(BadInput, match="can't be written .*MIKIT_OUTPUTS"):
        pipeline.go()


def test_notebooks_get_plain_values_and_only_what_differs_from_the_defaults():
    assert notebook_parameters(PARAMS) == {
        "model": "planted",
        "layer": 0,
        "feature": 3,
        "run": "t",
        "settings": {"seed": 5, "protocol": {"n_select": 4}},
    }
    assert notebook_parameters(make_params({"corpus_tokens": None}))["settings"] == {"corpus_tokens": None}


DRIVER = """
import sys
from pathlib import Path
from mikit.runs.engine import run_pipeline
from mikit.settings import make_params
run_pipeline(make_params({"run": "t", "seed": 5, "protocol": {"n_select": 4}}), Path(sys.argv[1]), preflight="")
"""


def test_a_second_process_on_the_same_run_gets_one_line_that_names_the_first(pipeline):
    with pipeline.directory.lock():
        second = subprocess.run(
            [sys.executable, "-c", DRIVER, str(pipeline.folder)], capture_output=True, text=True, check=False
        )
    assert second.returncode == 1
    assert f"RunIsBusy: process {os.getpid()} is working on" in second.stderr.splitlines()[-1]
    assert pipeline.ran() == []


@pytest.mark.slow
def test_a_driver_killed_in_step_4_lets_go_of_the_run_and_the_next_one_repeats_nothing(pipeline):
    kill_parent = "import os, signal; os.kill(os.getppid(), signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)"
    pipeline.notebook(4, extra=kill_parent)
    first = subprocess.run([sys.executable, "-c", DRIVER, str(pipeline.folder)], capture_output=True, check=False)
    assert first.returncode == -signal.SIGKILL
    assert pipeline.ran() == [1, 2, 3, 4]
    pipeline.notebook(4)
    interrupted = pipeline.go()
    assert pipeline.ran() == [4, 5, 6, 7, 8, 9]
    assert pipeline.go(force=True) == interrupted


def test_an_interrupt_keeps_what_was_done(pipeline):
    pipeline.notebook(4, extra="import os, signal\nos.kill(os.getppid(), signal.SIGINT)\nsignal.pause()")
    with pytest.raises(KeyboardInterrupt):
        pipeline.go()
    assert pipeline.ran() == [1, 2, 3, 4]
    assert "KeyboardInterrupt" in pipeline.executed(4, ".failed.ipynb").read_text()
    pipeline.notebook(4)
    pipeline.go()
    assert pipeline.ran() == [4, 5, 6, 7, 8, 9]


@pytest.mark.slow
def test_a_kernel_killed_right_after_the_record_leaves_a_step_that_is_done(pipeline):
    pipeline.notebook(4)
    path = pipeline.folder / f"{NOTEBOOKS[3]}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source += f"\n{KILL}"
    nbformat.write(notebook, path)
    with pytest.raises(StepFailed, match="step 4 .*the kernel died"):
        pipeline.go()
    pipeline.ran()
    pipeline.go()
    assert pipeline.ran() == [5, 6, 7, 8, 9]
    kept = nbformat.read(pipeline.executed(4), as_version=4)
    assert not [output for cell in kept.cells for output in cell.get("outputs", []) if output.output_type == "error"]


def test_a_held_run_raises_in_the_same_process_too(pipeline):
    with pipeline.directory.lock(), pytest.raises(MikitError, match="is working on"):
        pipeline.go()
