"""How a server is set up: by options of `mikit serve`, or by variables of the environment for `uvicorn`."""

import os
from collections.abc import MutableMapping
from dataclasses import dataclass, field

from mikit.errors import BadInput, one_of
from mikit.sandbox import LEVELS, Limits
from mikit.tasks.catalogue import PUBLIC, SECRET_LENGTH, SECRET_VARIABLE, SPLITS

STEPS = 30
SESSIONS = 64
HOST, PORT = "127.0.0.1", 8000
TRUE, FALSE = {"1", "true", "yes"}, {"", "0", "false", "no"}
VARIABLES = {
    "split": "MIKIT_ARENA_SPLIT",
    "submissions": "MIKIT_ARENA_SUBMISSIONS",
    "sessions": "MIKIT_ARENA_SESSIONS",
    "isolation": "MIKIT_ARENA_ISOLATION",
    "allow_unsafe": "MIKIT_ARENA_ALLOW_UNSAFE",
    "wall_s": "MIKIT_ARENA_WALL_S",
}


@dataclass(frozen=True)
class ArenaSettings:
    """Of one server."""

    split: str = "train"
    """`train`, whose instances everybody can make, or `test`, with a secret."""
    secret: bytes = field(default=PUBLIC, repr=False)
    """The key of the instances."""
    steps: int = STEPS
    """Steps of an episode."""
    submissions: int = 1
    """Graded submissions of an episode; those before the last get no word on how good they are."""
    sessions: int = SESSIONS
    """Connections at once."""
    idle_s: float = 900.0
    """Seconds after which a silent connection's session is closed."""
    isolation: str = "full"
    """The strictest level to try."""
    allow_unsafe: bool = False
    """Serve also where code cannot be confined."""
    limits: Limits = field(default_factory=Limits)
    """Of each worker."""


def take_settings(environment: MutableMapping[str, str] | None = None) -> ArenaSettings:
    """The settings in an environment, the process's own if not given; the secret is removed from it.

    Raises:
        BadInput: a value that there is none of, or the split `test` without a secret.
    """
    environment = os.environ if environment is None else environment
    secret = environment.pop(SECRET_VARIABLE, "").encode()
    given = {name: environment.get(variable, "").strip() for name, variable in VARIABLES.items()}
    split = given["split"] or ("test" if secret else "train")
    if split not in SPLITS:
        raise one_of(f"{VARIABLES['split']}", split, list(SPLITS))
    if split == "test" and len(secret) < SECRET_LENGTH:
        raise BadInput(f"the split 'test' needs a secret: valid: {SECRET_VARIABLE} with {SECRET_LENGTH} bytes or more")
    isolation = given["isolation"] or "full"
    if isolation not in LEVELS:
        raise one_of(f"{VARIABLES['isolation']}", isolation, list(LEVELS))
    if given["allow_unsafe"].lower() not in TRUE | FALSE:
        raise BadInput(f"{VARIABLES['allow_unsafe']} = {given['allow_unsafe']!r}: valid: 1 or 0")
    return ArenaSettings(
        split=split,
        secret=secret if split == "test" else PUBLIC,
        submissions=_whole(given["submissions"], VARIABLES["submissions"], 1, 1, STEPS),
        sessions=_whole(given["sessions"], VARIABLES["sessions"], SESSIONS, 1, 4096),
        isolation=isolation,
        allow_unsafe=given["allow_unsafe"].lower() in TRUE,
        limits=Limits(wall_s=_whole(given["wall_s"], VARIABLES["wall_s"], 30, 1, 600)),
    )


def _whole(text: str, name: str, default: int, low: int, high: int) -> int:
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise BadInput(f"{name} = {text!r}: valid: a whole number from {low} to {high}")
    return int(text)
