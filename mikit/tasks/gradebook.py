"""What a teacher sees of many submission files: a line for each, with its grade or with what is wrong with it."""

import csv
import glob
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mikit.errors import MikitError
from mikit.files import write_text
from mikit.progress import track
from mikit.tasks.grading import Grade
from mikit.tasks.submissions import Submission, grade_submission, read

HEADER = ("file", "student", "task", "difficulty", "seed", "answers", "score", "solved", "precision", "recall", "fault")


@dataclass(frozen=True)
class Graded:
    """A file with its grade, or with what is wrong with it."""

    file: Path
    submission: Submission | None
    grade: Grade | None
    fault: str = ""


def grade_files(files: Sequence[Path]) -> list[Graded]:
    """Grade all files; a faulty one says what is wrong with it and does not stop the others."""
    graded = []
    expanded = list(_expanded(files))
    for file in track(expanded, "grading", len(expanded), unit="files"):
        submission = None
        try:
            submission = read(file)
            graded.append(Graded(file, submission, grade_submission(submission)))
        except MikitError as error:
            graded.append(Graded(file, submission, None, str(error)))
    return graded


def _expanded(files: Sequence[Path]) -> list[Path]:
    """The files, patterns replaced by what they match: not every shell does it."""
    expanded: list[Path] = []
    for file in files:
        matches = [] if file.exists() else sorted(Path(name) for name in glob.glob(str(file)))  # noqa: PTH207
        expanded += matches or [file]
    return expanded


def row(one: Graded) -> tuple[str, ...]:
    """The cells of a file's line, in the order of `HEADER`."""
    sent, grade = one.submission, one.grade
    about = (sent.student, sent.task, sent.difficulty, str(sent.seed), str(len(sent.answers))) if sent else ("",) * 5
    marks = (
        (f"{grade.score:.2f}", "yes" if grade.solved else "no", f"{grade.precision:.2f}", f"{grade.recall:.2f}")
        if grade
        else ("",) * 4
    )
    return (one.file.name, *about, *marks, one.fault)


def lines(graded: Sequence[Graded]) -> list[str]:
    """A table for the terminal; control characters in files are not passed on."""
    rows = [HEADER, *(row(one) for one in graded)]
    printable = [["".join(c if c.isprintable() else "?" for c in cell) for cell in cells] for cells in rows]
    widths = [max(len(cells[i]) for cells in printable) for i in range(len(HEADER) - 1)]
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)), cells[-1]]).rstrip()
        for cells in printable
    ]


def write_csv(graded: Sequence[Graded], path: Path) -> None:
    """The table as CSV; a cell that a spreadsheet would take for a formula gets an apostrophe in front."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for cells in [HEADER, *(row(one) for one in graded)]:
        writer.writerow([f"'{cell}" if cell[:1] in "=+-@\t\r" and cell else cell for cell in cells])
    write_text(path, text.getvalue())
