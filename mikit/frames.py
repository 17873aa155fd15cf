"""Messages over a socket: four bytes of length, then JSON or raw bytes. A length above the bound is refused before it is read."""

import json
import math
import select
import socket
import struct
import time
from typing import Any

HEADER = struct.Struct(">I")
JSON_BYTES = 1 << 20
"""The longest message of JSON: output or code, escaped."""
BLOB_BYTES = 64 << 20
"""The longest raw message: weights."""


class Broken(Exception):
    """The other side is gone, or what it sent is no message."""


class Late(Exception):
    """No whole message in time."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message of JSON.

    Raises:
        Broken: the other side is gone, or does not read.
    """
    send_bytes(connection, json.dumps(message, allow_nan=False).encode())


def send_bytes(connection: socket.socket, blob: bytes) -> None:
    """Send raw bytes.

    Raises:
        Broken: the other side is gone, or does not read.
    """
    try:
        connection.sendall(HEADER.pack(len(blob)) + blob)
    except OSError as error:
        raise Broken(f"cannot send: {error}") from None


def receive(connection: socket.socket, timeout_s: float = math.inf) -> dict[str, Any]:
    """The next message of JSON.

    Raises:
        Broken: the other side is gone, or what it sent is no message.
        Late: it did not arrive whole in time, however it trickled.
    """
    blob = receive_bytes(connection, JSON_BYTES, timeout_s)
    try:
        message = json.loads(blob)
    except (ValueError, RecursionError):
        raise Broken("a message that is not JSON") from None
    if not isinstance(message, dict):
        raise Broken("a message that is not an object")
    return message


def receive_bytes(connection: socket.socket, bound: int, timeout_s: float = math.inf) -> bytes:
    """The next message, as bytes.

    Raises:
        Broken: the other side is gone, or the message is longer than `bound`.
        Late: it did not arrive whole in time.
    """
    deadline = time.monotonic() + timeout_s
    [length] = HEADER.unpack(_exactly(connection, HEADER.size, deadline))
    if length > bound:
        raise Broken(f"a message of {length} bytes, longer than {bound}")
    return _exactly(connection, length, deadline)


def _exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    parts: list[bytes] = []
    while size:
        # a worker waits without end, and then must not ask for a time-out: its filter refuses that
        if not math.isinf(deadline):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([connection], [], [], left)[0]:
                raise Late
        try:
            part = connection.recv(min(size, 1 << 20))
        except OSError as error:
            raise Broken(f"cannot receive: {error}") from None
        if not part:
            raise Broken("the connection was closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
