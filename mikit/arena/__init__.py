"""The four tasks as an OpenEnv environment: server, client, and what is recorded of an episode.

uvicorn mikit.arena.server:app
with ArenaClient(base_url="http://127.0.0.1:8000").sync() as env:
    env.reset(task_id="task1", seed=7)
    env.step(ArenaAction(python_code="print(model.layer.weight)"))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mikit.arena.client import ArenaClient
    from mikit.arena.models import ArenaAction, ArenaObservation, ArenaState

_HOMES = {"ArenaAction": "models", "ArenaClient": "client", "ArenaObservation": "models", "ArenaState": "models"}
__all__ = ["ArenaAction", "ArenaClient", "ArenaObservation", "ArenaState"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
