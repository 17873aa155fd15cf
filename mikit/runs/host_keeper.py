"""Starts a model host, starts it again when it dies, and leaves nothing of it behind."""

import contextlib
import logging
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from mikit.paths import HOST_VARIABLE
from mikit.runs.kernel import kernel_environment, short_folder

log = logging.getLogger(__name__)
PREFIX = "mikit-host-"
"""Of the name of a host's folder, among the temporary ones."""
OWNER = "owner"
"""The file in it that its keeper holds locked."""
YOUNG_SECONDS = 60.0
YOUNG_DEATHS = 5
"""Deaths in a row, each of a host younger than that, after which it is given up."""


class HostKeeper:
    """A model host on this machine. It ends with this process, however that ends.

    Args:
        log_file: gets what the host writes.
        environment: more variables for it, such as its GPU and its number of threads.
    """

    def __init__(self, log_file: Path, environment: Mapping[str, str]) -> None:
        clear_away()
        self.folder, self._owned = _own_folder()
        self.address = self.folder / "s"
        self.started = 0
        """Processes so far."""
        self._log_file, self._environment = log_file, dict(environment)
        self._closing = threading.Event()
        self._process = self._start()
        self._watch = threading.Thread(target=self._restart, name="model host", daemon=True)
        self._watch.start()

    @property
    def pid(self) -> int:
        """Of the present process."""
        return self._process.pid

    def close(self) -> None:
        """End the host."""
        self._closing.set()
        self._process.kill()
        self._watch.join()
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._owned.release()

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = kernel_environment(self._environment)
        environment.pop(HOST_VARIABLE, None)
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self.started += 1
        with self._log_file.open("ab") as output:
            # its standard input is never written to: it ends when this process does
            return subprocess.Popen(
                [sys.executable, "-m", "mikit.runs.model_host", str(self.address)],
                stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True,
            )  # fmt: skip

    def _restart(self) -> None:
        deaths = 0
        while True:
            began = time.monotonic()
            status = self._process.wait()
            if self._process.stdin:
                self._process.stdin.close()
            if self._closing.is_set():
                return
            deaths = deaths + 1 if time.monotonic() - began < YOUNG_SECONDS else 1
            if deaths >= YOUNG_DEATHS:
                log.error("the model host died %d times in a row (status %d): see %s", deaths, status, self._log_file)
                # its clients see that nobody will answer there
                shutil.rmtree(self.folder, ignore_errors=True)
                return
            log.warning("the model host died (status %d) and is started again; its log is %s", status, self._log_file)
            self._process = self._start()
            if self._closing.is_set():
                self._process.kill()


def _own_folder() -> tuple[Path, FileLock]:
    """A folder for a host's socket and its SAE, and the lock that tells others that its keeper lives."""
    new = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=short_folder()))
    lock = FileLock(new / OWNER, thread_local=False)
    lock.acquire()
    # by its name nobody finds it before it is locked
    return new.rename(new.with_name(new.name.removeprefix("."))), lock


def clear_away() -> None:
    """Delete the folders of hosts that were killed together with their keepers: neither could."""
    for folder in Path(short_folder() or tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = FileLock(folder / OWNER, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            # its keeper lives, or it is another user's
            continue
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            lock.release()
