"""The second front end: a real Jupyter kernel in a confined worker.

A kernel opens sockets and starts threads. Its sockets are opened by the server and handed over, listening already; its threads
start after the worker has confined itself, and so are confined as well.
"""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


def listen(prefix: Path) -> list[socket.socket]:
    """Sockets for a kernel's channels, as Jupyter names them: `prefix-1` to `prefix-5`."""
    made = []
    for number in range(1, len(CHANNELS) + 1):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.bind(f"{prefix}-{number}")
        one.listen(16)
        made.append(one)
    return made


def connection_info(prefix: Path, key: str) -> dict[str, Any]:
    """What a Jupyter client needs to find the kernel, as in a connection file."""
    ports = {f"{channel}_port": number for number, channel in enumerate(CHANNELS, start=1)}
    return {**ports, "transport": "ipc", "ip": str(prefix), "key": key, "signature_scheme": "hmac-sha256"}


def load(folder: Path) -> None:
    """Import what a kernel needs, and make its profile's folder, before the worker is confined; no thread is started."""
    import ipykernel.debugger
    import ipykernel.ipkernel
    import ipykernel.kernelapp
    import ipykernel.zmqshell  # noqa: F401
    from IPython.core.profiledir import ProfileDir

    os.environ["IPYTHONDIR"] = str(folder)
    ProfileDir.create_profile_dir_by_name(str(folder), "default")


def run(about: Mapping[str, Any], descriptors: Sequence[int], names: Mapping[str, Any]) -> None:
    """Be a kernel, until killed.

    Args:
        about: connection information, see `connection_info`.
        descriptors: of the listening sockets, in the order of `CHANNELS`.
        names: what its namespace begins with.
    """
    import zmq
    from ipykernel.heartbeat import Heartbeat
    from ipykernel.iostream import IOPubThread
    from ipykernel.kernelapp import IPKernelApp
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    handed = dict(enumerate(descriptors, start=1))

    def bind(zmq_socket: Any, port: int) -> int:
        zmq_socket.setsockopt(zmq.USE_FD, handed[port])
        zmq_socket.bind(f"ipc://{about['ip']}-{port}")
        return port

    class HandedHeartbeat(Heartbeat):
        def _try_bind_socket(self) -> None:
            bind(self.socket, self.port)

    class Kernel(IPKernelApp):
        """A kernel that writes no file and opens no socket."""

        def init_connection_file(self) -> None:
            for channel in CHANNELS:
                setattr(self, f"{channel}_port", about[f"{channel}_port"])
            self.session.key = about["key"].encode()

        def write_connection_file(self, **_options: Any) -> None:
            pass

        def cleanup_connection_file(self) -> None:
            pass

        def _bind_socket(self, zmq_socket: Any, port: int) -> int:
            return bind(zmq_socket, port)

        def init_iopub(self, context: Any) -> None:
            self.iopub_socket = context.socket(zmq.XPUB)
            self.iopub_port = self._bind_socket(self.iopub_socket, self.iopub_port)
            # no pipe for the output of child processes: it is a TCP socket, and there are no children
            self.iopub_thread = IOPubThread(self.iopub_socket, pipe=False, session=self.session)
            self.iopub_thread.start()
            self.iopub_socket = self.iopub_thread.background_socket

        def init_heartbeat(self) -> None:
            self.heartbeat = HandedHeartbeat(zmq.Context(), (self.transport, self.ip, self.hb_port))
            self.heartbeat.start()

        def log_connection_info(self) -> None:
            pass

        def init_crash_handler(self) -> None:
            pass

        def init_poller(self) -> None:
            # it is killed with its parent; there is nothing to watch
            pass

    InteractiveShell.clear_instance()
    asyncio.set_event_loop(asyncio.new_event_loop())
    config = Config()
    config.HistoryManager.enabled = False
    app = Kernel.instance(transport="ipc", ip=about["ip"], capture_fd_output=False, config=config)
    app.initialize([])
    assert app.shell is not None
    app.shell.push(dict(names))
    app.start()
