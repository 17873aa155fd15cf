"""Lessons: a lab that checks without giving away, learners' copies without solutions, and files that a teacher can grade."""

import ast
import json
import os
import subprocess
import sys

import pytest
import torch

from mikit import paths
from mikit.cli import main
from mikit.errors import BadInput
from mikit.tasks import TASKS, Lab, Rejection, solvers
from mikit.tasks.checks import ExerciseOpen, NotRight, check, difference
from mikit.tasks.exercises import EXERCISES
from mikit.tasks.gradebook import grade_files, write_csv
from mikit.tasks.lessons import learners_copy, lessons
from mikit.tasks.submissions import LARGEST

LESSONS = lessons()
NAMES = [path.stem for path in LESSONS]


def notebook(path):
    return json.loads(path.read_text("utf-8"))


def tags(cell):
    return cell["metadata"].get("tags", [])


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def source(cell):
    return "".join(cell["source"])


def run(cells, given=None):
    """Run cells in one namespace, as a kernel does; an exercise's cell is replaced by what is given for its name."""
    space = {}
    for cell in cells:
        text = source(cell)
        if "exercise" in tags(cell):
            text = (given or {}).get(text.split(" =")[0], text)
        exec(compile(text, "cell", "exec"), space)
    return space


@pytest.fixture(params=LESSONS, ids=NAMES)
def lesson(request):
    return notebook(request.param)


def test_there_is_a_lesson_for_each_task():
    labs = [next(source(c) for c in notebook(path)["cells"] if "lab = Lab(" in source(c)) for path in LESSONS]
    assert all(f'Lab("{task}", seed=seed' in lab for task, lab in zip(TASKS, labs, strict=True))


def test_a_lesson_has_what_a_lecturer_looks_for(lesson):
    words = "\n".join(source(cell) for cell in lesson["cells"] if cell["cell_type"] == "markdown")
    for part in (
        "You will learn",
        "## Why it matters",
        "Explore",
        "## Exercise 1",
        "Was it so?",
        "Harder",
        "## Open questions",
    ):
        assert part in words
    assert words.count("https://") >= 4
    assert words.count("<details>") >= 6
    assert words.count("<details>") == words.count("</details>")


def test_every_section_of_a_lesson_with_code_draws(lesson):
    sections, drawn = [], {}
    for cell in lesson["cells"]:
        if cell["cell_type"] == "markdown" and source(cell).startswith("## "):
            sections.append(source(cell).splitlines()[0])
        elif cell["cell_type"] == "code" and sections:
            drawn[sections[-1]] = drawn.get(sections[-1], False) or "plots." in source(cell)
    without = [name for name, plots in drawn.items() if not plots]
    # the cells of imports and parameters, and the answer, which the next section draws
    assert all(name.startswith(("## Why", "## Exercise")) for name in without)
    assert sum(drawn.values()) >= 6


def test_every_exercise_has_hints_before_it_a_solution_after_it_and_a_check(lesson):
    cells = lesson["cells"]
    exercises = [i for i, cell in enumerate(cells) if "exercise" in tags(cell)]
    assert len(exercises) >= 3
    for i in exercises:
        name = source(cells[i]).split(" =")[0]
        assert source(cells[i]).startswith(f"{name} = ...")
        assert "<details>" in source(cells[i - 1])
        assert "solution" in tags(cells[i + 1])
        assert source(cells[i + 1]).startswith("if solve:")
        assert source(cells[i + 2]) in (f'lab.check("{name}", {name})', "lab.submit(answer)")


def test_a_learners_copy_holds_no_solution_and_no_switch_for_them(lesson):
    copy = learners_copy(lesson)
    assert not any("solution" in tags(cell) for cell in copy["cells"])
    text = "\n".join(source(cell) for cell in copy["cells"])
    assert "solve" not in text.replace("solvers", "").replace("solved", "")
    solutions = [source(cell) for cell in lesson["cells"] if "solution" in tags(cell)]
    lines = {line.strip() for solution in solutions for line in solution.splitlines() if len(line.strip()) > 30}
    assert not [line for line in lines if line in text]


def test_a_learners_copy_runs_up_to_the_first_exercise_and_says_so(lesson):
    cells = code(learners_copy(lesson))
    first = next(i for i, cell in enumerate(cells) if "exercise" in tags(cell))
    space = run(cells[: first + 1])
    with pytest.raises(ExerciseOpen, match="not done yet"):
        exec(source(cells[first + 1]), space)


@pytest.mark.parametrize("path, task", list(zip(LESSONS, TASKS, strict=True)), ids=NAMES)
def test_a_lesson_with_its_solutions_solves_its_task(path, task):
    space = run(code(notebook(path)))
    assert space["lab"].submit(space["answer"]).solved
    graded = grade_files(sorted((paths.outputs() / "submissions").glob("*.json")))
    assert len(graded) == 3
    assert all(one.grade.solved and one.submission.task == task for one in graded)


# A student's path: mistakes that are often made, and what the lesson says. docs/teachers.md tells of them.
MISTAKES = [
    ("1_dead_neurons", "weight", "weight = model.layer.weight.T", "transposed"),
    ("1_dead_neurons", "weight", "weight = model.layer.weight.abs()", "the signs are lost"),
    ("1_dead_neurons", "weight", "weight = model.layer", "should be a tensor"),
    ("1_dead_neurons", "sensitivity", "sensitivity = weight.abs().sum(0)", "not it: "),
    ("2_causal_ablation", "contributions", "contributions = model.activations(x)", "not it: "),
    ("2_causal_ablation", "contributions", "contributions = model(x)", "shape [1024]; it should have shape [points"),
    ("2_causal_ablation", "ablation_loss", "ablation_loss = contributions.std(0)", "are the squares of this"),
    ("2_causal_ablation", "interaction", "interaction = 4 * probes.interaction(model)", "4 times as large"),
    ("2_causal_ablation", "interaction", "interaction = probes.interaction(model).abs()", "signs are lost"),
    (
        "3_fourier_analysis",
        "accuracy",
        "accuracy = (model(x).argmax(-1) == x[:, 0] + x[:, 1]).float().mean()",
        "too small",
    ),
    (
        "3_fourier_analysis",
        "power",
        "power = torch.fft.rfft(numbers, dim=0, norm='ortho').abs().square().sum(1)",
        "shape [49]",
    ),
    ("3_fourier_analysis", "power", "power = probes.power(numbers) / 2", "0.5 times as large"),
    (
        "3_fourier_analysis",
        "power",
        "power = torch.cat([torch.zeros(1), probes.power(numbers)])[:48]",
        "one place too late",
    ),
    ("3_fourier_analysis", "power", "power = probes.power(numbers) * float('nan')", "48 of 48 values are infinite"),
    ("4_additive_bypass", "slope", "slope = -probes.slope(model)", "right but for the sign"),
    ("4_additive_bypass", "slope", "slope = probes.slope(model) + 1", "right but for a constant"),
    ("4_additive_bypass", "spread", "spread = probes.spread(model) ** 0.5", "are the squares of this"),
]


@pytest.mark.parametrize("name, exercise, mistake, said", MISTAKES)
def test_a_mistake_is_told_in_its_kind_and_without_the_right_value(name, exercise, mistake, said):
    cells = code(notebook(LESSONS[NAMES.index(name)]))
    at = next(i for i, c in enumerate(cells) if "exercise" in tags(c) and source(c).startswith(f"{exercise} ="))
    space = run(cells[:at])
    exec(mistake, space)
    with pytest.raises(NotRight) as caught:
        exec(source(cells[at + 2]), space)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_check_says_has_no_value_of_the_expected_one():
    expected = torch.tensor([0.125, 7.75, -3.5], dtype=torch.float64)
    for wrong in (expected + 2, expected * 3, expected.flip(0), -expected, torch.zeros(3)):
        with pytest.raises(NotRight) as caught:
            check("thing", wrong, expected, ("things",))
        assert not any(str(abs(float(value))) in str(caught.value) for value in expected)


def test_a_value_within_rounding_is_right():
    expected = torch.rand(5, 3, dtype=torch.float64)
    assert difference((expected.float() * (1 + 1e-6)).double(), expected) is None


def test_open_and_wrong_exercises_are_shown_as_one_line():
    lab = Lab("task1", seed=1)
    with pytest.raises(ExerciseOpen) as caught:
        lab.check("weight", ...)
    assert caught.value._render_traceback_() == [str(caught.value)]


def test_an_exercise_that_there_is_none_of_is_refused():
    with pytest.raises(BadInput, match="no exercise 'wieght': valid: weight, sensitivity"):
        Lab("task1", seed=1).check("wieght", 1)


@pytest.mark.parametrize("task", TASKS)
def test_changing_the_model_and_the_inputs_does_not_change_what_is_right(task):
    lab = Lab(task, seed=2, difficulty="easy")
    clean = {name: one.expected(lab.fresh(), lab.x) for name, one in EXERCISES[task].items()}
    with torch.no_grad():
        for weights in lab.model.parameters():
            weights.zero_()
    lab.x[:] = 0
    for name, value in clean.items():
        lab.check(name, value)
    assert lab.submit(solvers.solve(task, lab.fresh())).solved


def test_a_lab_says_that_it_has_no_sandbox():
    assert "without a sandbox" in repr(Lab("task2", seed=0))
    assert "without a sandbox" in Lab.__doc__


def test_a_lab_writes_every_graded_answer_and_no_rejected_one():
    lab = Lab("task4", seed=3, student="Ada Lovelace")
    rejected = lab.submit(["5"])
    assert isinstance(rejected.outcome, Rejection)
    assert rejected.file is None
    assert "not graded" in repr(rejected)
    lab.submit([0, 1, 0])
    result = lab.submit(torch.tensor(solvers.solve("task4", lab.model)))
    assert result.solved
    written = json.loads(result.file.read_text())
    assert (written["student"], written["answers"][0], len(written["answers"])) == ("Ada Lovelace", [0, 1], 2)
    assert "score" not in json.dumps(written)


def test_a_lab_writes_as_windows_wants_it(monkeypatch):
    """There, only what is open for writing can be synced to disk."""
    fcntl = pytest.importorskip("fcntl")
    modes = []
    monkeypatch.setattr(os, "fsync", lambda handle: modes.append(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE))
    Lab("task1", seed=0).submit([0])
    assert modes == [os.O_RDWR]


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a\nb", "x" * 61, "=1"])
def test_a_students_name_can_be_part_of_a_files_name(name):
    with pytest.raises(BadInput, match="student = "):
        Lab("task1", seed=0, student=name)


@pytest.fixture
def sent():
    """Two submissions, one right and one wrong, and their files."""
    right, wrong = Lab("task1", seed=0, student="right"), Lab("task2", seed=0, student="wrong")
    return [right.submit(solvers.solve("task1", right.model)).file, wrong.submit([0]).file]


def test_grade_prints_a_line_for_each_file(sent, capsys):
    assert main(["grade", *map(str, sent)]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split()[:5] == ["file", "student", "task", "difficulty", "seed"]
    assert first.split()[1:5] == ["right", "task1", "classic", "0"]
    assert "yes" in first
    assert "no" in second


def test_grade_takes_a_pattern_and_writes_a_table(sent, tmp_path, capsys):
    table = tmp_path / "grades.csv"
    assert main(["grade", str(sent[0].parent / "*.json"), "--csv", str(table)]) == 0
    assert len(table.read_text().splitlines()) == 3


def changed(**fields):
    return lambda text: json.dumps(json.loads(text) | fields)


@pytest.mark.parametrize(
    "spoil, said",
    [
        (lambda _: "", "Invalid JSON"),
        (lambda _: "[1, 2]", "valid: a file that a lesson wrote"),
        (lambda _: "\x00\x01", "Invalid JSON"),
        (lambda _: '"' + "x" * LARGEST + '"', "more than 1,000,000 bytes"),
        (lambda _: "[" * 100_000, "valid: a file that a lesson wrote"),
        (changed(digest="0" * 16), "digest of another network"),
        (changed(seed=1), "digest of another network"),
        (changed(seed="0"), "seed: Input should be a valid integer"),
        (changed(seed=-1), "seed = -1"),
        (changed(seed=10**30), "seed = 1"),
        (changed(task="task9"), "unknown task 'task9'"),
        (changed(difficulty="x"), "unknown difficulty"),
        (changed(version=0), "version 0 of the tasks"),
        (changed(split="test"), "needs a secret"),
        (changed(answers=[]), "answers: "),
        (changed(answers=[[]]), "the list is empty"),
        (changed(answers=[[99]]), "99 is out of range"),
        (changed(answers=[[True]]), "answers.0.0: "),
        (changed(answers=[["1"]]), "answers.0.0: "),
        (changed(score=1.0), "score: Extra inputs are not permitted"),
    ],
)
def test_a_spoilt_file_is_told_and_does_not_stop_the_others(sent, spoil, said, capsys):
    sent[0].write_text(spoil(sent[0].read_text()))
    assert main(["grade", *map(str, sent)]) == 2
    captured = capsys.readouterr()
    assert said in captured.out
    assert "wrong task2 classic" in " ".join(captured.out.split())
    assert "1 of 2 files could not be graded" in captured.err


def test_a_file_that_is_none_is_told(tmp_path, capsys):
    assert main(["grade", str(tmp_path), str(tmp_path / "none.json")]) == 2
    out = capsys.readouterr().out
    assert "Is a directory" in out
    assert "No such file" in out


def test_a_table_holds_nothing_that_a_spreadsheet_would_run(sent, tmp_path):
    sent[0].write_text(changed(student="=HYPERLINK(1)")(sent[0].read_text()))
    write_csv(grade_files(sent), tmp_path / "grades.csv")
    assert ",'=HYPERLINK" in (tmp_path / "grades.csv").read_text()


def test_control_characters_of_a_file_do_not_reach_the_terminal(sent, capsys):
    sent[0].write_text(changed(student="\x1b[31mred")(sent[0].read_text()))
    main(["grade", str(sent[0])])
    assert "\x1b" not in capsys.readouterr().out


def test_mikit_lessons_writes_the_learners_copies(tmp_path, capsys):
    assert main(["lessons", str(tmp_path / "handed out")]) == 0
    written = sorted((tmp_path / "handed out").glob("*.ipynb"))
    assert [path.stem for path in written] == NAMES
    for path in written:
        cells = notebook(path)["cells"]
        for cell in cells:
            if cell["cell_type"] == "code":
                ast.parse(source(cell))
        assert sum("parameters" in tags(cell) for cell in cells) == 1


def with_parameters(lesson, **values):
    """A copy that runs at other parameters, and whose last cell wants the answer to be right."""
    lines = "".join(f"\n{name} = {value!r}" for name, value in values.items())
    cells = [
        {**cell, "source": source(cell) + lines} if "parameters" in tags(cell) else cell for cell in lesson["cells"]
    ]
    last = {"cell_type": "code", "id": "last", "metadata": {}, "execution_count": None, "outputs": []}
    return {**lesson, "cells": [*cells, {**last, "source": "assert lab.submit(answer).solved"}]}


@pytest.mark.slow
@pytest.mark.parametrize("values", [{"seed": 1}, {"seed": 2, "difficulty": "hard"}], ids=str)
def test_lessons_run_whole_at_other_seeds(values, tmp_path):
    for path in LESSONS:
        (tmp_path / path.name).write_text(json.dumps(with_parameters(notebook(path), solve=True, **values)))
    command = [sys.executable, "-m", "pytest", "--nbmake", "--nbmake-timeout=120", "-q", str(tmp_path)]
    result = subprocess.run([*command, f"--rootdir={tmp_path}"], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert "4 passed" in result.stdout


@pytest.mark.slow
def test_learners_copies_stop_in_a_kernel_where_the_first_exercise_is(tmp_path):
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    for path in LESSONS:
        copy = nbformat.reads(json.dumps(learners_copy(notebook(path))), as_version=4)
        with pytest.raises(CellExecutionError, match="not done yet"):
            NotebookClient(copy, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
        first = next(i for i, cell in enumerate(copy.cells) if "exercise" in cell.metadata.get("tags", []))
        outputs = [output for cell in copy.cells[first + 1 :] for output in cell.get("outputs", [])]
        assert [output.output_type for output in outputs] == ["error"]
        assert len(outputs[0].traceback) == 1
