"""Asks a model host over its socket. A host that died is waited for, and asked again: requests change nothing."""

import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from mikit.errors import BadInput, MikitError
from mikit.targets.remote.messages import (
    REPLY_BYTES,
    REQUEST_BYTES,
    Broken,
    Late,
    Message,
    pack,
    receive,
    send,
    unpack,
)

log = logging.getLogger(__name__)
CONNECT_SECONDS = 180.0
"""How long a host may take to start, or to start again."""
OPEN_SECONDS = 900.0
"""How long it may take to load and check a target."""
DEATHS = 3
"""Deaths of the host during one request after which it is given up: the request kills it."""
REOPENED = 20
"""How often a target is opened anew for one request: others may push it out in between."""
LONGEST_PAUSE = 1.0


@dataclass
class _Line:
    """A connection to a host that has the target open."""

    socket: socket.socket


class HostClient:
    """One connection to a host, and the target that it serves. Threads take turns.

    Args:
        address: path of the host's socket.
        wanted: `name`, `layer` and `options` of the target.

    Raises:
        BadInput: the host can't load that target.
        MikitError: there is no host.
    """

    def __init__(self, address: Path, wanted: dict[str, Any]) -> None:
        self.address, self.wanted = address, wanted
        self.fingerprint: str | None = None
        """Of the model, the SAE and the precision; requests are refused where it is another."""
        self.facts: dict[str, Any] = {}
        self._turn = threading.RLock()
        self._line: _Line | None = None
        with self._turn:
            self._repeated(lambda: self._opened(), "open")

    def call(self, function: str, arguments: dict[str, Any], seconds: float | None) -> Any:
        """What a served function gives for some arguments.

        Raises:
            BadInput: as the function does.
            MikitError: the function failed, or the host did not answer.
        """
        tensors: list[Tensor] = []
        try:
            told = {name: pack(value, tensors) for name, value in arguments.items()}
        except TypeError as error:
            raise MikitError(f"{function} can't be asked of a model host: {error}") from None
        request = Message({"ask": function, "fingerprint": self.fingerprint, "arguments": told}, tensors)
        if request.n_bytes > REQUEST_BYTES:
            raise MikitError(
                f"{function} asks the model host with {request.n_bytes} bytes (valid: at most {REQUEST_BYTES}): "
                "valid: a smaller batch"
            )

        def ask() -> Any:
            line = self._opened()
            send(line.socket, request)
            reply = _waited_for(line.socket, seconds)
            return unpack(reply.head.get("result"), reply.tensors)

        with self._turn:
            return self._repeated(ask, function)

    def close(self) -> None:
        """End the connection."""
        with self._turn:
            line, self._line = self._line, None
            if line is not None:
                line.socket.close()

    def _repeated(self, ask: Callable[[], Any], what: str) -> Any:
        """Ask until there is an answer: a full queue is waited for, a host that died is connected to anew."""
        deaths, reopened, pause = 0, 0, 0.02
        while True:
            try:
                return ask()
            except _NotOpen as error:
                # the host keeps few targets loaded, and had to make room
                self.close()
                reopened += 1
                if reopened > REOPENED:
                    raise MikitError(str(error)) from None
            except _Busy:
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, LONGEST_PAUSE)
            except (Broken, OSError) as error:
                self.close()
                deaths += 1
                if deaths > DEATHS:
                    raise MikitError(f"the model host died {deaths} times over one request ({what}): {error}") from None
                log.debug("the model host is gone (%s): asking again", error)
            except Late:
                self.close()
                raise MikitError(f"the model host did not answer in time ({what})") from None

    def _opened(self) -> _Line:
        """The connection, with the target open at the other end: it is the same after a death."""
        if self._line is not None:
            return self._line
        line = _Line(_connected(self.address))
        try:
            send(line.socket, Message({"ask": "open", "wanted": self.wanted, "fingerprint": self.fingerprint}))
            facts = _waited_for(line.socket, OPEN_SECONDS).head["result"]
        except BaseException:
            line.socket.close()
            raise
        self.fingerprint, self.facts, self._line = facts["fingerprint"], facts, line
        return line


class _NotOpen(MikitError):
    """The host does not hold the target any more."""


class _Busy(Exception):
    """The host has as many requests as it takes."""


def _connected(address: Path) -> socket.socket:
    """A connection to the host, once it listens.

    Raises:
        MikitError: it has ended for good, or does not start.
    """
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(address))
            return connection
        except OSError as error:
            connection.close()
            if not address.parent.is_dir():
                raise MikitError(f"the model host at {address} has ended: start the sweep again") from None
            if time.monotonic() > end:
                raise MikitError(f"the model host at {address} does not start ({error})") from None
            time.sleep(0.05)


def _waited_for(connection: socket.socket, seconds: float | None) -> Message:
    """The host's reply.

    Raises:
        BadInput, MikitError: what it says went wrong.
        Broken, Late: there is none.
    """
    reply = receive(connection, REPLY_BYTES, float("inf") if seconds is None else seconds)
    error = reply.head.get("error")
    if reply.head.get("busy"):
        raise _Busy
    if isinstance(error, dict):
        kinds = {"BadInput": BadInput, "NotOpen": _NotOpen}
        raise kinds.get(str(error.get("kind")), MikitError)(str(error.get("line")))
    return reply
