"""The environment that OpenEnv's server makes one of for each session."""

import uuid
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata

from mikit import __version__
from mikit.arena import episode
from mikit.arena.models import ArenaAction, ArenaObservation, ArenaState
from mikit.arena.records import Records
from mikit.arena.settings import ArenaSettings
from mikit.errors import BadInput
from mikit.sandbox import Sandbox
from mikit.tasks import TASKS, generate
from mikit.tasks.catalogue import valid_task
from mikit.tasks.instance import valid_difficulty, valid_seed

FIRST = next(iter(TASKS))
DIFFICULTY = "classic"
SEEDS = 2**31
NO_EPISODE = (
    'no episode yet: reset first, such as {"task_id": "task1"}; plain HTTP keeps no session between requests, /ws does'
)
RESET_FIELDS = ("task_id", "seed", "difficulty", "episode_id")
LONGEST_ID = 255
SHOWN = 200
"""Characters of an error in the metadata."""


class ArenaEnvironment(Environment[ArenaAction, ArenaObservation, ArenaState]):
    """One session: an episode at a time, of any task."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, settings: ArenaSettings, sandbox: Sandbox, records: Records | None = None) -> None:
        super().__init__()
        self._settings, self._sandbox = settings, sandbox
        self._records = Records() if records is None else records
        self._episode: episode.Episode | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task_id: object = None, **other: Any
    ) -> ArenaObservation:
        """Begin an episode; one that still runs is ended.

        Args:
            seed: whole number from 0 that determines the instance; a random one if not given, and told.
            episode_id: a name for the episode; one is made if not given.
            task_id: task1 to task4; the first if not given.
            other: `difficulty`, one of classic (the default), easy, medium, hard.

        Raises:
            BadInput: a field or a value that there is none of; the message lists the valid ones.
        """
        difficulty = other.pop("difficulty", None)
        if other:
            raise BadInput(f"reset: unknown field {min(other)[:40]!r}: valid: {', '.join(RESET_FIELDS)}")
        task = valid_task(FIRST if task_id is None else task_id)
        difficulty = valid_difficulty(DIFFICULTY if difficulty is None else difficulty)
        seed = uuid.uuid4().int % SEEDS if seed is None else valid_seed(seed)
        if episode_id is not None and not (isinstance(episode_id, str) and 0 < len(episode_id) <= LONGEST_ID):
            raise BadInput(f"episode_id: valid: a text of 1 to {LONGEST_ID} characters")
        self.close()
        instance = generate(task.id, difficulty, seed, self._settings.secret, self._settings.split)
        self._episode = episode.Episode(episode_id or str(uuid.uuid4()), instance, self._settings, self._sandbox)
        self._records.keep(self._episode)
        return self._observation(self._episode.opening, None)

    def step(self, action: ArenaAction, timeout_s: float | None = None, **other: Any) -> ArenaObservation:
        """Take a step; what is wrong with an action is said in the observation and costs the step.

        Args:
            action: code or an answer.
            timeout_s: not used: the server's own limit holds for every step.
            other: not used.
        """
        if self._episode is None:
            return ArenaObservation(
                stdout_or_error=NO_EPISODE, done=True, reward=0.0, metadata={"error": "no_episode", **self._common()}
            )
        taken = self._episode.step(action.python_code, action.solution_target)
        seen = self._observation(taken.text, taken.reward)
        if not taken.good:
            seen.metadata["error"] = taken.rejection or _last_line(taken.text)
        return seen

    def _common(self) -> dict[str, Any]:
        return {"isolation": self._sandbox.level, "split": self._settings.split}

    def _observation(self, text: str, reward: float | None) -> ArenaObservation:
        current = self._episode
        assert current is not None
        instance = current.instance
        return ArenaObservation(
            stdout_or_error=text,
            task_level=instance.task.level,
            done=current.done,
            reward=reward,
            metadata={
                "task_id": instance.task.id,
                "difficulty": instance.difficulty,
                "seed": instance.seed,
                "digest": current.digest,
                "episode_id": current.id,
                "step": len(current.steps),
                "steps_left": current.steps_left,
                "solved": current.solved,
                **self._common(),
            },
        )

    @property
    def state(self) -> ArenaState:
        """Where the episode stands; nothing in it tells of the answer."""
        current = self._episode
        if current is None:
            return ArenaState(episode_id=None, step_count=0)
        return ArenaState(
            episode_id=current.id,
            step_count=len(current.steps),
            task_level=current.instance.task.level,
            task_id=current.instance.task.id,
            done=current.done,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """What `/metadata` says."""
        return EnvironmentMetadata(
            name="mikit",
            description=(
                "Four planted circuits in PyTorch models, to be found with code and named. "
                f"Isolation: {self._sandbox.level}. Split: {self._settings.split}."
            ),
            version=__version__,
        )

    def close(self) -> None:
        """End the episode and its worker."""
        if self._episode is not None:
            self._episode.close()
            self._episode = None


def _last_line(text: str) -> str:
    """What an error says at its end: `ZeroDivisionError: division by zero`."""
    return (text.strip().splitlines() or ["error"])[-1][:SHOWN]
