"""What goes over the wire: actions, observations and the state of an episode."""

from typing import Any

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class ArenaAction(Action):
    """What an agent does: run code, or submit an answer; one of the two."""

    python_code: str | None = Field(
        default=None, description="Python to run beside `model`, such as print(model). State is kept between steps."
    )
    solution_target: Any = Field(
        default=None, description="The answer: a list of whole numbers, such as [2, 5, 8]. It ends the episode."
    )


class ArenaObservation(Observation):
    """What an agent sees."""

    stdout_or_error: str = Field(default="", description="What the code printed, its error, or the text of the task.")
    task_level: int = Field(default=1, ge=1, le=4, description="Place of the task in the curriculum, 1 to 4.")


class ArenaState(State):
    """Where an episode stands."""

    task_level: int = Field(default=1, ge=1, le=4, description="Place of the task in the curriculum, 1 to 4.")
    task_id: str | None = Field(default=None, description="The task, once there is an episode.")
    done: bool = Field(default=False, description="Whether the episode has ended.")
