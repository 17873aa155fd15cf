"""One episode: an instance, a worker, and the steps so far. It knows nothing of OpenEnv.

Rewards: 0 for every step until the episode ends; then the grade's score for a graded submission, from 0.01 to 0.99, or 0
where none was graded.
"""

from dataclasses import dataclass, field

from mikit.arena import texts
from mikit.arena.settings import ArenaSettings
from mikit.sandbox import Sandbox
from mikit.tasks import Grade, Instance, Rejection, grade_task

BOTH, NEITHER = "both python_code and solution_target", "neither python_code nor solution_target"
ONE_OF = '{given}: valid: one of {{"python_code": "..."}} and {{"solution_target": [...]}}'
OVER = "the episode is over: reset to begin another"
NO_STEPS_LEFT = "no steps are left; the episode is over without a graded submission"


@dataclass(frozen=True)
class Step:
    """What was done, and what came of it."""

    code: str | None
    answer: object
    text: str
    """What the agent is shown."""
    reward: float
    good: bool
    """Whether it was understood and ran without an error."""
    rejection: str | None = None
    """Why an action or a submission is none, in one word."""


@dataclass
class Episode:
    """It owns a worker; close it."""

    id: str
    instance: Instance
    settings: ArenaSettings
    sandbox: Sandbox = field(repr=False)
    steps: list[Step] = field(default_factory=list)
    submitted: int = 0
    done: bool = False
    solved: bool = False

    def __post_init__(self) -> None:
        specimen = self.instance.specimen
        self.digest = specimen.digest()
        self._worker = self.sandbox.start(specimen.architecture, specimen.config, specimen.weights)

    @property
    def opening(self) -> str:
        """What the agent is told first."""
        instance, settings = self.instance, self.settings
        return texts.opening(
            instance.task,
            instance.difficulty,
            instance.domain,
            settings.steps,
            settings.submissions,
            settings.limits.wall_s,
            settings.limits.output_bytes,
        )

    @property
    def steps_left(self) -> int:
        """How many steps there still are."""
        return 0 if self.done else self.settings.steps - len(self.steps)

    def step(self, code: str | None, answer: object) -> Step:
        """Take one step. After the end nothing changes any more: each step says so, with reward 0.

        Args:
            code: Python to run, or None.
            answer: what was submitted, or None.
        """
        if self.done:
            return Step(code, answer, OVER, 0.0, False, "done")
        step = self._run(code) if code is not None and answer is None else self._other(code, answer)
        self.steps.append(step)
        if not self.done and len(self.steps) >= self.settings.steps:
            self.close()
            self.steps[-1] = step = Step(
                step.code, step.answer, f"{step.text}\n{NO_STEPS_LEFT}".lstrip(), step.reward, step.good, step.rejection
            )
        return step

    def _run(self, code: str) -> Step:
        output = self._worker.run(code)
        if not output.alive:
            self.close()
        return Step(code, None, output.text, 0.0, output.good)

    def _other(self, code: str | None, answer: object) -> Step:
        if answer is None or code is not None:
            kind = "neither" if answer is None else "both"
            return Step(code, answer, ONE_OF.format(given=NEITHER if answer is None else BOTH), 0.0, False, kind)
        outcome = grade_task(answer, self.instance)
        if isinstance(outcome, Rejection):
            return Step(None, answer, outcome.message, 0.0, False, str(outcome.reason))
        return self._graded(answer, outcome)

    def _graded(self, answer: object, grade: Grade) -> Step:
        self.submitted += 1
        if self.submitted < self.settings.submissions and len(self.steps) + 1 < self.settings.steps:
            left = self.settings.submissions - self.submitted
            return Step(None, answer, f"noted; submissions left: {left}", 0.0, True)
        self.solved = grade.solved
        self.close()
        word = "solved" if grade.solved else "not solved"
        return Step(None, answer, f"{word}: score {grade.score:.2f}; the episode is over", grade.score, True)

    def close(self) -> None:
        """End the episode and its worker; may be called again."""
        self.done = True
        self._worker.close()
