"""The one place that knows where things lie.

Nothing in the library or in a notebook uses a path relative to the current folder: nbmake runs a notebook in
its own folder, papermill in the caller's.
"""

import os
from pathlib import Path

import platformdirs

PACKAGE = Path(__file__).resolve().parent
"""The installed package: data files that ship with it lie below."""

PROJECT = PACKAGE.parent
"""The checkout, in a development install: notebooks, params and outputs lie here."""


def outputs() -> Path:
    """The folder that runs, evidence and caches of results are written to (`MIKIT_OUTPUTS`, else `outputs/`)."""
    return Path(os.environ.get("MIKIT_OUTPUTS") or PROJECT / "outputs").resolve()


def cache() -> Path:
    """The folder for what can be made again, such as converted weights (`MIKIT_CACHE`, else the user's cache)."""
    return Path(os.environ.get("MIKIT_CACHE") or platformdirs.user_cache_dir("mikit")).resolve()


def existing(name: str) -> Path | None:
    """The file or folder that a user names, from `~` or not; None if there is none that can be read twice."""
    try:
        path = Path(name).expanduser()
        return path if path.is_file() or path.is_dir() else None
    except (OSError, RuntimeError):
        # longer than any name, or in the home of nobody
        return None


def texts(folder: Path) -> list[Path]:
    """The `.txt` files in a folder, in order of name; those in folders below are not meant."""
    return [path for path in sorted(folder.glob("*.txt")) if path.is_file()]


def notebooks() -> Path:
    """The folder of the notebooks."""
    return PROJECT / "notebooks"


def params() -> Path:
    """The folder of the parameter files."""
    return PROJECT / "params"


HOST_VARIABLE = "MIKIT_MODEL_HOST"
"""Names the socket of a model host; the kernels of a sweep find it in their environment."""


def model_host() -> Path | None:
    """The socket of the model host that holds this process's models, if there is one."""
    told = os.environ.get(HOST_VARIABLE)
    return Path(told) if told else None
