"""The server's side of the sandbox: it starts the zygote, asks for workers, and holds them to their limits.

Every byte from a worker is taken for hostile: lengths are checked before they are read, nothing is ever unpickled, and what
is no message ends the worker. A worker's word counts for the text of its own output, and for nothing else.
"""

import json
import logging
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from safetensors.numpy import save

from mikit import frames, paths
from mikit.errors import BadInput, MikitError, one_of
from mikit.sandbox import kernel
from mikit.sandbox.confinement import LEVELS, Level
from mikit.sandbox.limits import Limits

log = logging.getLogger(__name__)

BOOT_S = 120.0
"""Seconds for the zygote to import torch on a busy machine."""
STARTER = """
import sys
sys.path.insert(0, {root!r})
from mikit.sandbox.zygote import main
sys.path.remove({root!r})
main({control}, {folder!r}, {limits!r}, {level!r})
"""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    # torch.set_num_threads(8) in a worker then asks for one thread and gets it
    "OMP_THREAD_LIMIT": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # a thread's own arena takes 64 MB of address space
    "MALLOC_ARENA_MAX": "1",
    "LANG": "C.UTF-8",
}
"""All that a zygote's environment holds, beside a folder that is its home for a while."""


class SandboxFailed(MikitError):
    """The zygote is gone, or a worker could not be started."""


@dataclass(frozen=True)
class Output:
    """What came of one piece of code."""

    text: str
    """What it printed, its last value, its traceback; or how the worker ended."""
    good: bool
    """Whether it ran without an error."""
    alive: bool
    """Whether the worker can run more."""


class Sandbox:
    """A zygote, and the workers that it forks; can be used from many threads."""

    def __init__(self, limits: Limits | None = None, level: str = "full", allow_unsafe: bool = False) -> None:
        """Start the zygote. It takes a few seconds, and is done before a secret is read.

        Args:
            limits: of each worker.
            level: the strictest isolation to try: `full`, `no-landlock` or `none`.
            allow_unsafe: accept `none`, with which code can do whatever this user can.

        Raises:
            BadInput: an unknown level, or nothing but `none` holds on this machine and that is not accepted.
            SandboxFailed: the zygote did not start.
        """
        if level not in LEVELS:
            raise one_of("isolation level", level, list(LEVELS))
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="mikit-sandbox-"))
        self._control, theirs = socket.socketpair()
        try:
            self._process = self._start(theirs, level)
        finally:
            theirs.close()
        try:
            hello = frames.receive(self._control, BOOT_S)
        except (frames.Broken, frames.Late) as error:
            said = (self._folder / "log").read_text("utf-8", "replace").strip().splitlines()
            self.close()
            raise SandboxFailed(f"the sandbox did not start: {said[-1] if said else error}") from None
        self.level: Level = hello["level"]
        """How workers are confined, as a trial worker found it."""
        self.landlock = int(hello["landlock"])
        """Version of Landlock's interface that the kernel has; 0 if none."""
        for line in (self._folder / "log").read_text("utf-8", "replace").strip().splitlines():
            log.info("sandbox: %s", line)
        if self.level == "none" and not allow_unsafe:
            self.close()
            raise BadInput(
                "isolation = none: code from outside could do whatever this user can: valid: a kernel with Landlock or "
                "seccomp (and pyseccomp), or --allow-unsafe"
            )

    def _start(self, theirs: socket.socket, level: str) -> subprocess.Popen[bytes]:
        starter = STARTER.format(
            root=str(paths.PACKAGE.parent),
            control=theirs.fileno(),
            folder=str(self._folder),
            limits=json.dumps(asdict(self.limits)),
            level=level,
        )
        with (self._folder / "log").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-I", "-c", starter],
                env=ENVIRONMENT | {"HOME": str(self._folder)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    def start(self, architecture: str, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> "Worker":
        """A new worker with a model: all that it ever learns of an instance are these three.

        Args:
            architecture: a name in `mikit.tasks.models.ARCHITECTURES`.
            config: keyword arguments of that class.
            weights: state dict, float32.

        Raises:
            SandboxFailed: it did not get ready.
        """
        worker = self._fork([])
        self._give(worker, {"architecture": architecture, "config": dict(config)}, weights)
        return worker

    def start_kernel(
        self, architecture: str, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]
    ) -> "tuple[Worker, dict[str, Any]]":
        """A new worker that is a Jupyter kernel, with a model, and what a Jupyter client needs to connect to it.

        The server does not see what client and kernel say to each other: time and length of output are the client's to bound.

        Args:
            architecture: a name in `mikit.tasks.models.ARCHITECTURES`.
            config: keyword arguments of that class.
            weights: state dict, float32.

        Returns:
            The worker, to be closed, and connection information as in a Jupyter connection file.

        Raises:
            SandboxFailed: it did not get ready.
        """
        prefix = self._folder / f"kernel-{secrets.token_hex(4)}"
        about = kernel.connection_info(prefix, secrets.token_hex(16))
        sockets = kernel.listen(prefix)
        try:
            worker = self._fork([one.fileno() for one in sockets], kernel=True)
        finally:
            for one in sockets:
                one.close()
        self._give(worker, {"architecture": architecture, "config": dict(config), "kernel": about}, weights)
        return worker, about

    def _fork(self, descriptors: list[int], kernel: bool = False) -> "Worker":
        ours, theirs = socket.socketpair()
        try:
            answer = self._ask({"do": "fork", "kernel": kernel}, [theirs.fileno(), *descriptors])
        except SandboxFailed:
            ours.close()
            raise
        finally:
            theirs.close()
        if "pid" not in answer:
            ours.close()
            raise SandboxFailed(f"no new worker: {answer['error']}")
        return Worker(self, answer["pid"], ours)

    def _give(self, worker: "Worker", about: dict[str, Any], weights: Mapping[str, np.ndarray]) -> None:
        try:
            worker.give(about, weights)
        except (frames.Broken, frames.Late) as error:
            status = worker.close()
            raise SandboxFailed(f"a worker did not get ready: {error or 'too slow'} (status {status})") from None

    def _ask(self, request: dict[str, Any], descriptors: list[int] | None = None) -> dict[str, Any]:
        """One request to the zygote, and its answer; one at a time."""
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors or [])
                self._control.settimeout(BOOT_S)
                answer = self._control.recv(1 << 12)
            except OSError as error:
                raise SandboxFailed(f"the sandbox is gone: {error}") from None
        if not answer:
            raise SandboxFailed("the sandbox is gone")
        return dict(json.loads(answer))

    def kill(self, pid: int) -> int | None:
        """Kill a worker and wait for it; its exit status, negative for a signal."""
        try:
            status = self._ask({"do": "wait", "pid": pid})["status"]
        except SandboxFailed:
            return None
        return None if status is None else int(status)

    def close(self) -> None:
        """End the zygote and all its workers; may be called again."""
        self._control.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Worker:
    """One confined process with a model in it; used by one thread at a time."""

    def __init__(self, sandbox: Sandbox, pid: int, connection: socket.socket) -> None:
        self._sandbox, self._connection = sandbox, connection
        self.pid = pid
        self.alive = True
        # a worker that does not read cannot hold the server up
        connection.settimeout(sandbox.limits.start_s)

    def give(self, about: dict[str, Any], weights: Mapping[str, np.ndarray]) -> None:
        """Hand the model over, once, and wait until the worker is ready."""
        frames.send(self._connection, about)
        frames.send_bytes(self._connection, save({name: np.ascontiguousarray(w) for name, w in weights.items()}))
        answer = frames.receive(self._connection, self._sandbox.limits.start_s)
        if "ready" not in answer:
            raise frames.Broken(str(answer.get("error"))[:1000])

    def run(self, code: str) -> Output:
        """Run one piece of code; never longer than the limits say, and never an exception for what the code does.

        Args:
            code: a cell, as in a notebook.
        """
        limits = self._sandbox.limits
        if not self.alive:
            return Output("the session's process has ended", False, False)
        size = len(code.encode("utf-8", "replace"))
        if size > limits.code_bytes:
            return Output(f"code of {size} bytes: valid: at most {limits.code_bytes}", False, True)
        if select.select([self._connection], [], [], 0)[0]:
            return self._ended("it sent what nobody asked for")
        try:
            frames.send(self._connection, {"code": code.encode("utf-8", "replace").decode()})
            message, late = self._answer()
        except frames.Late:
            return self._ended(f"it ran longer than {limits.wall_s:g} seconds, and went on when interrupted")
        except frames.Broken as error:
            return self._ended(str(error))
        text, good = message.get("text"), message.get("good")
        if not isinstance(text, str) or not isinstance(good, bool):
            return self._ended("a message that is no output")
        note = f"\n... interrupted: it ran longer than {limits.wall_s:g} seconds" if late else ""
        return Output(self._bounded(text) + note, good and not late, True)

    def _answer(self) -> tuple[dict[str, Any], bool]:
        """The answer to a piece of code, and whether it came only after an interrupt."""
        limits = self._sandbox.limits
        try:
            if select.select([self._connection], [], [], limits.wall_s)[0]:
                return frames.receive(self._connection, limits.grace_s), False
        except frames.Late:
            raise frames.Broken("a message that never ends") from None
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGINT)
        return frames.receive(self._connection, limits.grace_s), True

    def _bounded(self, text: str) -> str:
        """Output within the limit, whatever the worker made of it."""
        bound = self._sandbox.limits.output_bytes
        encoded = text.encode("utf-8", "replace")
        # room for the worker's own note on what it left out
        return (
            text if len(encoded) <= bound + 100 else encoded[:bound].decode("utf-8", "ignore") + "\n... output left out"
        )

    def _ended(self, why: str) -> Output:
        status = self.close()
        how = f", {signal.Signals(-status).name}" if status is not None and -65 < status < 0 else ""
        return Output(f"the session's process was ended ({why}{how}); the episode is over", False, False)

    def close(self) -> int | None:
        """Kill the worker and wait until it is gone; may be called again."""
        if not self.alive:
            return None
        self.alive = False
        self._connection.close()
        return self._sandbox.kill(self.pid)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
