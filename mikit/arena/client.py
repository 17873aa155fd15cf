"""The typed client: what OpenEnv's own client sends and gets, as actions and observations."""

from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from mikit.arena.models import ArenaAction, ArenaObservation, ArenaState


class ArenaClient(EnvClient[ArenaAction, ArenaObservation, ArenaState]):
    """A session with a server: `async with`, or `.sync()` and `with`."""

    def _step_payload(self, action: ArenaAction) -> dict[str, Any]:
        return action.model_dump(exclude_none=True, exclude_defaults=True)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ArenaObservation]:
        seen = payload.get("observation", {})
        observation = ArenaObservation.model_validate(
            {**seen, "done": payload.get("done", False), "reward": payload.get("reward")}
        )
        return StepResult(
            observation=observation,
            reward=payload.get("reward"),
            done=payload.get("done", False),
            metadata=observation.metadata,
        )

    def _parse_state(self, payload: dict[str, Any]) -> ArenaState:
        return ArenaState.model_validate(payload)
