"""What a worker does once it is confined: it is given a model, and then runs one piece of code after the other."""

import os
import socket
from typing import Any

import torch
from safetensors.torch import load

from mikit.sandbox import frames, shell
from mikit.sandbox.limits import Limits
from mikit.tasks.models import build

NAMES: dict[str, Any] = {"torch": torch}


def serve(connection: socket.socket, interactive: Any, limits: Limits) -> None:
    """Receive a model, then run what comes, until the connection is closed."""
    about = frames.receive(connection)
    weights = load(frames.receive_bytes(connection, frames.BLOB_BYTES))
    model = build(about["architecture"], about["config"], weights)
    del weights
    import numpy as np

    shell.namespace(interactive, {"model": model, "torch": torch, "np": np, "nn": torch.nn, "F": torch.nn.functional})
    del model
    frames.send(connection, {"ready": True})
    stream = shell.Bounded(limits.output_bytes)
    while True:
        code = frames.receive(connection)["code"]
        good = shell.run(interactive, code, stream)
        frames.send(connection, {"text": stream.take(), "good": good})


def only(descriptors: set[int]) -> None:
    """Close all files but these, and put nothing in the place of the standard streams."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    kept = [0, 1, 2, *sorted(descriptors)]
    for below, above in zip(kept, [*kept[1:], 1 << 20], strict=True):
        os.closerange(below + 1, above)
