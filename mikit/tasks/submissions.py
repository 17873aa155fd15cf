"""Submission files: what a student hands in, and what a teacher reads out of it.

The instance is made again from task, difficulty and seed; a file holds answers, no scores.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from mikit import paths
from mikit.errors import BadInput
from mikit.files import write_text
from mikit.tasks.catalogue import generate, secret_of
from mikit.tasks.grading import Grade, Rejection, grade
from mikit.tasks.instance import VERSION, Instance

LARGEST = 1_000_000
"""Bytes in a submission file."""
STUDENT = re.compile(r"\w[\w .'-]{0,59}")


class Submission(BaseModel):
    """The file, as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["mikit-submission/1"] = "mikit-submission/1"
    student: str
    """Name or number, as given to the lab."""
    task: str
    difficulty: str
    seed: StrictInt
    split: Literal["train", "test"]
    version: StrictInt = VERSION
    """Of the generators."""
    digest: str
    """Of the network that was looked at."""
    answers: Annotated[list[list[StrictInt]], Field(min_length=1)]
    """All that were graded, the last one last."""


def valid_student(name: str) -> str:
    """The name, where it can be part of a file's name.

    Raises:
        BadInput: it can't.
    """
    if not STUDENT.fullmatch(name):
        raise BadInput(
            f"student = {name[:60]!r}: valid: 1 to 60 letters, digits, spaces, dots, hyphens and apostrophes"
        )
    return name


def path_of(student: str, instance: Instance) -> Path:
    """Where a student's submission for an instance lies."""
    name = f"{valid_student(student)}-{instance.task.id}-{instance.difficulty}-{instance.seed}.json".replace(" ", "_")
    return paths.outputs() / "submissions" / name


def submission_of(student: str, instance: Instance, answers: Sequence[Sequence[int]]) -> Submission:
    """What a student hands in."""
    return Submission(
        student=student,
        task=instance.task.id,
        difficulty=instance.difficulty,
        seed=instance.seed,
        split="train" if instance.split == "train" else "test",
        digest=instance.specimen.digest(),
        answers=[list(answer) for answer in answers],
    )


def write(submission: Submission, path: Path) -> None:
    """Write the file, atomically."""
    write_text(path, submission.model_dump_json(indent=1) + "\n")


def read(path: Path) -> Submission:
    """The submission in a file.

    Raises:
        BadInput: there is none; one line says why.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise BadInput(f"{path}: more than {LARGEST:,} bytes: valid: a file that a lesson wrote")
        return Submission.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}: valid: a submission file") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(
            f"{path}: {where + ': ' if where else ''}{first['msg']}: valid: a file that a lesson wrote"
        ) from None


def grade_submission(submission: Submission) -> Grade:
    """Grade the last answer, against an instance made anew.

    Raises:
        BadInput: no such instance, another network than the one that was looked at, or no valid answer.
    """
    if submission.version != VERSION:
        raise BadInput(f"version {submission.version} of the tasks: valid: {VERSION}, or that version of mikit")
    secret = secret_of(submission.split)
    instance = generate(submission.task, submission.difficulty, submission.seed, secret, submission.split)
    if submission.digest != instance.specimen.digest():
        raise BadInput("digest of another network: task, difficulty, seed or the secret is not that of the lesson")
    result = grade(submission.answers[-1], instance)
    if isinstance(result, Rejection):
        raise BadInput(result.message)
    return result
