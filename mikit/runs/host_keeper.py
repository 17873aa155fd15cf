"""Starts a model host, starts it again when it dies, and leaves nothing of it behind."""

import logging
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from mikit.paths import HOST_VARIABLE
from mikit.runs.kernel import kernel_environment, short_folder

log = logging.getLogger(__name__)
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
        self.folder = Path(tempfile.mkdtemp(prefix="mikit-host-", dir=short_folder()))
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
