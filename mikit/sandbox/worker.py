"""What a worker does once it is confined: it is given a model, and then runs one piece of code after the other."""

import os
import socket
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

from mikit import frames
from mikit.sandbox import kernel, shell
from mikit.sandbox.limits import Limits
from mikit.tasks.models import build


def serve(connection: socket.socket, interactive: Any, limits: Limits) -> None:
    """Receive a model, then run what comes, until the connection is closed."""
    shell.namespace(interactive, _names(frames.receive(connection), connection))
    frames.send(connection, {"ready": True})
    stream = shell.Bounded(limits.output_bytes)
    while True:
        code = frames.receive(connection)["code"]
        good = shell.run(interactive, code, stream)
        frames.send(connection, {"text": stream.take(), "good": good})


def serve_kernel(connection: socket.socket, descriptors: list[int]) -> None:
    """Receive a model, then be a Jupyter kernel on sockets that were handed over."""
    about = frames.receive(connection)
    names = _names(about, connection)
    frames.send(connection, {"ready": True})
    kernel.run(about["kernel"], descriptors, names)


def _names(about: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
    """What a session's namespace begins with."""
    weights = load(frames.receive_bytes(connection, frames.BLOB_BYTES))
    model = build(about["architecture"], about["config"], weights)
    return {"model": model, "torch": torch, "np": np, "nn": torch.nn, "F": torch.nn.functional}


def only(descriptors: set[int]) -> None:
    """Close all files but these, and put nothing in the place of the standard streams."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    kept = [0, 1, 2, *sorted(descriptors)]
    for below, above in zip(kept, [*kept[1:], 1 << 20], strict=True):
        os.closerange(below + 1, above)
