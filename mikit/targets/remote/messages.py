"""What the model host and its clients say to each other: an object of JSON, and tensors as raw bytes. Nothing in it is code.

A message is two frames: JSON with the name, dtype and shape of each tensor, and the bytes of all of them in a row.
"""

import json
import math
import socket
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mikit import frames
from mikit.frames import Broken, Late

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "int32", "int64", "bool", "uint8")}
REQUEST_BYTES = 64 << 20
"""The longest request: ids and directions, never weights."""
REPLY_BYTES = (1 << 32) - 1
"""The longest reply: a residual stream."""
SHORT = 1 << 16
"""Characters of JSON that go into the head of a message; longer text goes where the tensors are."""

__all__ = ["REPLY_BYTES", "REQUEST_BYTES", "Broken", "Late", "Message", "pack", "receive", "send", "unpack"]


@dataclass(frozen=True)
class Message:
    """A request or a reply."""

    head: dict[str, Any]
    tensors: list[Tensor] = field(default_factory=list)
    """On the CPU."""

    @property
    def n_bytes(self) -> int:
        """Of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


def send(connection: socket.socket, message: Message) -> None:
    """Send a message.

    Raises:
        Broken: the other side is gone, or does not read.
    """
    shapes = [[str(tensor.dtype).removeprefix("torch."), *tensor.shape] for tensor in message.tensors]
    frames.send(connection, {"head": message.head, "tensors": shapes})
    blob = b"".join(tensor.detach().cpu().contiguous().numpy().tobytes() for tensor in message.tensors)
    frames.send_bytes(connection, blob)


def receive(connection: socket.socket, bound: int, timeout_s: float = math.inf) -> Message:
    """The next message.

    Raises:
        Broken: the other side is gone, or what it sent is no message, or one of more than `bound` bytes.
        Late: it did not arrive whole in time.
    """
    told = frames.receive(connection, timeout_s)
    head, shapes = told.get("head"), told.get("tensors")
    if not isinstance(head, dict) or not isinstance(shapes, list) or not all(map(_is_shape, shapes)):
        raise Broken("a message without a head, or with a tensor of no known shape")
    blob = bytearray(frames.receive_bytes(connection, bound, timeout_s))
    tensors, start = [], 0
    for name, *shape in shapes:
        dtype = DTYPES[name]
        size = math.prod(shape) * dtype.itemsize
        if start + size > len(blob):
            raise Broken("a message with fewer bytes than its tensors have")
        flat = (
            torch.frombuffer(blob, dtype=dtype, count=math.prod(shape), offset=start)
            if size
            else torch.empty(0, dtype=dtype)
        )
        tensors.append(flat.reshape(shape))
        start += size
    if start != len(blob):
        raise Broken("a message with more bytes than its tensors have")
    return Message(head, tensors)


def _is_shape(told: Any) -> bool:
    return (
        isinstance(told, list)
        and len(told) > 0
        and told[0] in DTYPES
        and len(told) <= 9
        and all(type(n) is int and 0 <= n < 1 << 40 for n in told[1:])
    )


def pack(value: Any, tensors: list[Tensor]) -> Any:
    """A value as JSON; the tensors and arrays in it go to the end of `tensors`.

    Raises:
        TypeError: it holds something that is no data, such as a function.
    """
    if isinstance(value, Tensor | np.ndarray):
        kind = "tensor" if isinstance(value, Tensor) else "array"
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.require(value, requirements=["C", "W"]))
        if tensor.dtype not in DTYPES.values():
            raise TypeError(f"a tensor of {tensor.dtype} is not sent: valid: {', '.join(DTYPES)}")
        tensors.append(tensor)
        return {kind: len(tensors) - 1}
    if isinstance(value, tuple):
        return {"tuple": [pack(each, tensors) for each in value]}
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise TypeError(f"{type(value).__name__} is no data that can be sent") from None
    if len(text) <= SHORT:
        return {"json": value}
    tensors.append(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))
    return {"long json": len(tensors) - 1}


def unpack(told: Any, tensors: list[Tensor]) -> Any:
    """The value that `pack` made JSON and tensors of.

    Raises:
        Broken: it made no such thing.
    """
    if isinstance(told, dict) and len(told) == 1:
        [(kind, inner)] = told.items()
        if kind == "json":
            return inner
        if kind == "tuple" and isinstance(inner, list):
            return tuple(unpack(each, tensors) for each in inner)
        if type(inner) is int and 0 <= inner < len(tensors):
            tensor = tensors[inner]
            if kind in ("tensor", "array"):
                return tensor if kind == "tensor" else tensor.numpy()
            if kind == "long json" and tensor.dtype == torch.uint8:
                try:
                    return json.loads(tensor.numpy().tobytes())
                except (ValueError, RecursionError):
                    pass
    raise Broken("a value that is no data")
