"""The manifest of a sweep: which features it has, and how far each is. One process writes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from mikit import paths
from mikit.errors import BadInput, MikitError
from mikit.files import write_json
from mikit.trace import Record

State = Literal["pending", "done", "failed"]


class Entry(Record):
    """A feature of a sweep."""

    layer: int
    feature: int
    state: State = "pending"
    folder: str
    """Of its run, below the outputs folder."""
    attempts: int = 0
    seconds: float | None = None
    """That the last attempt took."""
    step: int | None = None
    """That failed; None where none did, or it failed before the first."""
    cause: str | None = None
    """Of the failure, in one line."""


class Manifest(Record):
    """`outputs/sweeps/NAME/manifest.json`."""

    schema_version: Literal[1] = 1
    name: str
    identity: str
    """Hash of what decides which features these are and what their runs find."""
    started_at: str
    params: dict[str, Any]
    spec: dict[str, Any]
    entries: list[Entry]


def folder_of(name: str) -> Path:
    """Where a sweep lies."""
    return paths.outputs() / "sweeps" / name


def read_manifest(folder: Path) -> Manifest | None:
    """A sweep's manifest, if there is one.

    Raises:
        BadInput: there is one that is torn or not valid.
    """
    path = folder / "manifest.json"
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise BadInput(
            f"{path} is no valid manifest ({str(error).splitlines()[0]}): delete it; what its runs finished is kept"
        ) from None


class Ledger:
    """A manifest on disk that is kept up to date, written whole each time."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self._manifest, self._folder = manifest, folder
        self._entries = {(entry.layer, entry.feature): entry for entry in manifest.entries}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __getitem__(self, key: tuple[int, int]) -> Entry:
        return self._entries[key]

    def count(self, state: State) -> int:
        """How many are in a state."""
        return sum(entry.state == state for entry in self)

    def note(self, key: tuple[int, int], **news: Any) -> Entry:
        """Change an entry and write the manifest."""
        self._entries[key] = self._entries[key].model_copy(update=news)
        self.write()
        return self._entries[key]

    def write(self) -> None:
        """Write the manifest, atomically."""
        present = self._manifest.model_copy(update={"entries": list(self._entries.values())})
        write_json(self._folder / "manifest.json", present.model_dump(mode="json"))


def held(folder: Path) -> Any:
    """The lock of a sweep; the operating system lets go of it when the process ends.

    Raises:
        MikitError: another process runs this sweep.
        BadInput: the folder can't be written.
    """
    from filelock import FileLock, Timeout

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
        return lock
    except Timeout:
        raise MikitError(
            f"another process runs the sweep in {folder}: wait for it, or give this one another name"
        ) from None
    except OSError as error:
        raise BadInput(
            f"{folder} can't be written ({error.strerror}): make it writable, or name another folder in MIKIT_OUTPUTS"
        ) from None
