"""The zygote: a process with an empty environment and one thread that imports torch once, and forks a worker on request.

Nothing secret is ever in its reach. It ends when the server does, and its workers with it.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from mikit import frames
from mikit.sandbox import confinement, landlock
from mikit.sandbox.confinement import LEVELS, Level
from mikit.sandbox.kernel import load as load_kernel
from mikit.sandbox.limits import Limits

FORKED = 0


def main(control: int, folder: str, limits: str, wanted: str) -> NoReturn:
    """Prepare, say at which level workers are confined, and fork until the server closes the connection.

    Args:
        control: descriptor of the socket to the server.
        folder: one that may be written to until the server removes it.
        limits: of workers, as JSON.
        wanted: the strictest level to try; the first that holds is taken.
    """
    connection = socket.socket(fileno=control)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    confinement.not_dumpable()
    zygote = _Zygote(connection, Path(folder), Limits(**json.loads(limits)))
    level = zygote.choose(wanted)
    frames.send(connection, {"level": level, "landlock": landlock.version(), "root": os.geteuid() == 0})
    with suppress(frames.Broken):
        zygote.serve()
    zygote.end()


class _Zygote:
    """Children by their process id, and what became of those that ended."""

    def __init__(self, control: socket.socket, folder: Path, limits: Limits) -> None:
        import torch

        from mikit.sandbox import shell, worker

        with suppress(ImportError):
            import pyseccomp  # noqa: F401

        torch.set_num_threads(1)
        torch.ones(2) @ torch.ones(2)
        self._control, self._limits, self._folder = control, limits, folder
        self._level: Level = "none"
        self._number = 0
        self._ruleset = (
            landlock.read_only(confinement.readable(), confinement.listable()) if landlock.version() else None
        )
        self._shell = shell.make_shell(folder)
        self._serve, self._serve_kernel = worker.serve, worker.serve_kernel
        self._only = worker.only
        # what is here now is in all workers for good: the collector need not look at it, nor copy its pages
        import gc

        gc.collect()
        gc.freeze()

    def choose(self, wanted: str) -> Level:
        """The strictest level from `wanted` on that a trial worker finds to hold."""
        for level in LEVELS[LEVELS.index(wanted) :]:
            if self._holds(level):
                self._level = level
                return level
        raise AssertionError("unreachable: nothing is asked of the level none")

    def _holds(self, level: Level) -> bool:
        """Whether a child can confine itself at a level, and then finds everything closed that the level promises."""
        if level == "full" and self._ruleset is None:
            return False
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == FORKED:
            try:
                confinement.confine(level, self._limits, 0, self._ruleset)
                said = "" if level == "none" else open_doors()
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            # a pipe: files are closed to it by now, the log too
            os.write(theirs, said.encode()[:1000] or b"holds")
            os._exit(0)
        os.close(theirs)
        said = os.read(ours, 1000).decode("utf-8", "replace") or "the trial worker died"
        os.close(ours)
        os.waitpid(pid, 0)
        if said != "holds":
            sys.stderr.write(f"isolation {level}: {said}\n")
            sys.stderr.flush()
        return said == "holds"

    def serve(self) -> None:
        """Answer the server's requests."""
        while True:
            # with the request come, or do not, the descriptors for a new worker
            data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 12, 8)
            if not data:
                return
            request = json.loads(data)
            answer = (
                self._fork(descriptors, request["kernel"]) if request["do"] == "fork" else self._wait(request["pid"])
            )
            self._control.sendall(json.dumps(answer).encode())

    def _fork(self, descriptors: list[int], kernel: bool) -> dict[str, Any]:
        self._number += 1
        try:
            pid = os.fork()
        except OSError as error:
            for descriptor in descriptors:
                os.close(descriptor)
            return {"error": str(error)}
        if pid == FORKED:
            self._become_worker(descriptors, kernel)
        for descriptor in descriptors:
            os.close(descriptor)
        return {"pid": pid}

    def _become_worker(self, descriptors: list[int], kernel: bool) -> NoReturn:
        self._control.detach()
        connection = socket.socket(fileno=descriptors[0])
        try:
            self._only({*descriptors, *([self._ruleset] if self._ruleset is not None else [])})
            if kernel:
                load_kernel(self._folder)
            confinement.confine(self._level, self._limits, self._number, self._ruleset, kernel)
            if kernel:
                self._serve_kernel(connection, descriptors[1:])
            else:
                self._serve(connection, self._shell, self._limits)
        except frames.Broken:
            pass
        except BaseException as error:
            with suppress(frames.Broken):
                frames.send(connection, {"error": f"{type(error).__name__}: {error}"[:1000]})
        finally:
            os._exit(0)

    def _wait(self, pid: int) -> dict[str, Any]:
        """Kill a worker, wherever it is, and say how it ended."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        try:
            _, status = os.waitpid(pid, 0)
        except ChildProcessError:
            return {"status": None}
        return {"status": os.waitstatus_to_exitcode(status)}

    def end(self) -> NoReturn:
        """End, and with it all workers, which ask to be killed when their parent ends."""
        os._exit(0)


def open_doors() -> str:
    """Which of files, sockets, processes and signals this process can still use, though a confined one must not."""
    attempts = {
        "read a file": lambda: os.close(os.open("/etc/passwd", os.O_RDONLY)),
        "read an environment": lambda: os.close(os.open("/proc/self/environ", os.O_RDONLY)),
        "write a file": lambda: os.close(os.open("/tmp", os.O_WRONLY | os.O_TMPFILE, 0o600)),
        "open a socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
        "open a local socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close(),
        "start a process": lambda: os._exit(3) if os.fork() == FORKED else None,
        "run a program": lambda: os.execv("/bin/true", ["true"]),
        "send a signal": lambda: os.kill(os.getppid(), 0),
        "make a file in memory": lambda: os.close(os.memfd_create("trial")),
    }
    found = []
    for name, attempt in attempts.items():
        with suppress(OSError):
            attempt()
            found.append(name)
    return ", ".join(found)
