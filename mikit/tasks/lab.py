"""The lab of a lesson: an instance to look at, checks on the way, and a place to submit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mikit.tasks import catalogue, checks, exercises, remote, submissions
from mikit.tasks.grading import Grade, Rejection, grade


@dataclass(frozen=True)
class Result:
    """What became of a submission."""

    outcome: Grade | Rejection
    file: Path | None
    """Where the submission lies; None for one that was rejected, or graded by a server."""

    @property
    def solved(self) -> bool:
        """Whether the answer is right, no more and no less."""
        return isinstance(self.outcome, Grade) and self.outcome.solved

    def __repr__(self) -> str:
        if isinstance(self.outcome, Rejection):
            return f"✗ not graded ({self.outcome.reason}): {self.outcome.message}"
        mark = "✓ solved" if self.solved else "✗ not solved"
        return f"{mark}: score {self.outcome.score:.2f}" + (f"\nwritten to {self.file}" if self.file else "")


class Lab:
    """One instance of a task: made on this machine, or a server's, which then grades it.

    Your code runs in this very process, without a sandbox, and the truth of a public seed can be computed by whoever wants to: a
    lab is for learning, not for exams.
    """

    def __init__(
        self,
        task: str,
        seed: int | None = None,
        difficulty: str = "classic",
        student: str = "anonymous",
        split: str = "train",
        url: str | None = None,
    ) -> None:
        """Make the instance, or get it.

        Args:
            task: task1 to task4.
            seed: whole number from 0; a random one if not given.
            difficulty: classic, easy, medium or hard.
            student: whose submission it will be.
            split: `train`, or `test` with a secret in the environment; a server has its own.
            url: of a server (`mikit serve`), which makes the instance and grades the answers.

        Raises:
            BadInput: a name that there is none of, no valid seed, no secret, or no server there.
        """
        self._task = catalogue.valid_task(task)
        self._instance, self._remote, self._episode = None, None, None
        if url is None:
            self._instance = catalogue.make(task, seed, difficulty, split)
            self._specimen, self.seed = self._instance.specimen, self._instance.seed
        else:
            self._remote = remote.Remote(url)
            sizes = catalogue.make(task, 0, difficulty).specimen
            config = {**sizes.config, "architecture": sizes.architecture}
            self._episode = self._remote.begin(task, seed, difficulty, config)
            self._specimen, self.seed = self._episode.specimen, self._episode.seed
        self.student = submissions.valid_student(student)
        self.difficulty = difficulty
        self.digest = self._specimen.digest()
        self.model: Any = self._specimen.model()
        self._x = exercises.inputs(self._task.id, self._specimen.config)
        self._answers: list[list[int]] = []

    @property
    def x(self) -> Any:
        """The inputs that the lesson works with, as a copy: what you change in one is not changed in the next."""
        return self._x.clone()

    @property
    def text(self) -> str:
        """The task as it is told to an agent."""
        return self._task.text(self.difficulty)

    def fresh(self) -> Any:
        """The network as it was, after you changed `model`."""
        return self._specimen.model()

    def check(self, name: str, value: object) -> checks.Right:
        """Hold the value of an exercise against what is expected, for the untouched network and `x`.

        Raises:
            BadInput: no exercise of that name.
            ExerciseOpen: nothing was done yet.
            NotRight: the value is another; the message says what is off.
        """
        known = exercises.EXERCISES[self._task.id]
        if name not in known:
            raise checks.unknown(name, list(known))
        if value is ...:
            return checks.check(name, value, self._x, ())
        exercise = known[name]
        return checks.check(name, value, exercise.expected(self.fresh(), self._x).double(), exercise.axes)

    def submit(self, answer: object) -> Result:
        """Grade an answer, and write it with those before it to the submission file.

        Args:
            answer: a list of whole numbers, in any order; `...` says that the exercise is still open.

        Raises:
            ExerciseOpen: the answer is `...`.
        """
        if answer is ...:
            raise checks.ExerciseOpen("○ answer: not done yet. Put your list in place of the dots.")
        if self._instance is None:
            assert self._remote is not None and self._episode is not None
            return Result(self._remote.grade(answer, self._episode), None)
        outcome = grade(answer, self._instance)
        if isinstance(outcome, Rejection):
            return Result(outcome, None)
        self._answers.append(sorted({int(number) for number in answer}))  # type: ignore[attr-defined]
        file = submissions.path_of(self.student, self._instance)
        submissions.write(submissions.submission_of(self.student, self._instance, self._answers), file)
        return Result(outcome, file)

    def __repr__(self) -> str:
        return (
            f"{self._task.id}, {self._task.name}: difficulty {self.difficulty}, seed {self.seed}, network {self.digest}\n"
            "runs in this process, without a sandbox: only run code that you trust"
        )
