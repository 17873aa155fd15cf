"""The server: `uvicorn mikit.arena.server:app`, or `mikit serve`.

What is secret is taken from the environment and removed from it; the zygote is a program of its own, with an environment of its own, and
never holds it.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.types import ConcurrencyConfig
from safetensors.numpy import save

from mikit.arena.environment import DIFFICULTY, ArenaEnvironment
from mikit.arena.models import ArenaAction, ArenaObservation, ArenaState
from mikit.arena.records import Records, notebook_of
from mikit.arena.settings import HOST, PORT, ArenaSettings, take_settings
from mikit.errors import BadInput, MikitError
from mikit.sandbox import Sandbox
from mikit.sandbox.confinement import not_dumpable
from mikit.tasks import generate

log = logging.getLogger(__name__)


def make_app(settings: ArenaSettings, sandbox: Sandbox) -> FastAPI:
    """The application, with OpenEnv's routes and one of ours.

    Args:
        settings: of the server.
        sandbox: whose workers run the agents' code; closed when the application shuts down.
    """
    records = Records()
    app = create_fastapi_app(
        partial(ArenaEnvironment, settings, sandbox, records),
        ArenaAction,
        ArenaObservation,
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=settings.sessions, session_timeout=settings.idle_s),
        env_name="mikit",
        state_cls=ArenaState,
    )
    app.title, app.description = "mikit", "The four tasks of mikit as an OpenEnv environment."
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: FastAPI) -> AsyncIterator[Any]:
        log.info("isolation: %s; split: %s; sessions: %d", sandbox.level, settings.split, settings.sessions)
        async with inner(application) as state:
            try:
                yield state
            finally:
                sandbox.close()

    app.router.lifespan_context = lifespan

    @app.exception_handler(MikitError)
    async def refused(_request: Request, error: MikitError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422 if isinstance(error, BadInput) else 503)

    @app.get("/specimen", tags=["Environment Info"], summary="A model as safetensors: what an agent may see, no more")
    def specimen(task_id: str, seed: int, difficulty: str = DIFFICULTY) -> Response:
        made = generate(task_id, difficulty, seed, settings.secret, settings.split).specimen
        return Response(
            save(dict(made.weights)), media_type="application/octet-stream", headers={"x-digest": made.digest()}
        )

    @app.get("/episodes/{episode_id}/notebook", tags=["Environment Info"], summary="An episode as a Jupyter notebook")
    def notebook(episode_id: str) -> Response:
        if (found := records.get(episode_id)) is None:
            raise HTTPException(404, "no such episode, or it was long ago")
        return JSONResponse(notebook_of(found), media_type="application/x-ipynb+json")

    return app


def start(settings: ArenaSettings | None = None) -> FastAPI:
    """A sandbox, then the settings of the environment if none are given, then the application.

    Raises:
        BadInput: a setting that there is none of, or no isolation on this machine.
    """
    not_dumpable()
    settings = settings or take_settings()
    return make_app(settings, Sandbox(settings.limits, settings.isolation, settings.allow_unsafe))


def serve(settings: ArenaSettings, host: str = HOST, port: int = PORT) -> None:
    """Serve until interrupted."""
    import uvicorn

    uvicorn.run(start(settings), host=host, port=port, log_level="info", ws_max_size=1 << 20)


def __getattr__(name: str) -> Any:
    # made when it is asked for, by uvicorn: importing this module starts no process
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = start()
    return made
