"""The process that holds a model and its SAE for the kernels of a sweep: `python -m mikit.runs.model_host SOCKET`.

It listens on a socket in a folder that its user alone can enter, and computes `served` functions, one at a time. Requests
wait in a queue of bounded length; those that wait for the same are computed once, and rows of one length together where
that gives the same bits. It ends when its standard input does, so that it outlives nobody.
"""

import dataclasses
import hashlib
import importlib
import json
import logging
import os
import select
import shutil
import socket
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mikit.errors import MikitError
from mikit.files import atomic_path, value_hash
from mikit.targets import Options, Target, load_target
from mikit.targets.hooks import batch_of, read_residual
from mikit.targets.preflight import require_fit
from mikit.targets.remote.messages import REQUEST_BYTES, Broken, Late, Message, pack, receive, send, unpack
from mikit.targets.remote.served import SERVED, Served
from mikit.targets.remote.stand_in import sae_facts
from mikit.targets.sample import sample_ids

log = logging.getLogger(__name__)
HOLD_FUNCTIONS = (
    "mikit.targets.hooks",
    "mikit.targets.remote.stand_in",
    "mikit.experiments.steering",
    "mikit.experiments.near_tokens",
    "mikit.evidence.observe",
    "mikit.runs.prepare",
)
"""Modules whose `served` functions are computed for others."""
WAITING = 64
"""Requests that wait at most; whoever comes then is told to come again."""
CONNECTIONS = 256
SLOW_SECONDS = 60.0
"""How long a client may take over one message."""
TARGETS = 2
"""Targets that are kept loaded: a sweep goes from layer to layer."""


@dataclass(frozen=True)
class Open:
    """A target that is loaded and checked."""

    target: Target
    facts: dict[str, Any]
    """For `mikit.targets.remote.served_target`, with the fingerprint."""
    rows: int
    """Of a forward pass: more are not computed together."""
    is_exact: bool
    """Whether rows come out the same, to the bit, alone and among others."""


@dataclass(eq=False)
class Request:
    """A message that waits for its reply."""

    message: Message
    done: threading.Event = field(default_factory=threading.Event)
    reply: Message = field(default_factory=lambda: Message({}))

    @property
    def function(self) -> str:
        """What is asked for."""
        return str(self.message.head.get("ask"))

    @property
    def key(self) -> bytes:
        """The same for requests of the same."""
        digest = hashlib.sha256(json.dumps(self.message.head, sort_keys=True).encode())
        for tensor in self.message.tensors:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(
                memoryview(tensor.contiguous().view(torch.uint8).numpy().reshape(-1)) if tensor.numel() else b""
            )
        return digest.digest()

    def answer(self, reply: Message) -> None:
        """Give the reply to whoever waits for it."""
        self.reply = reply
        self.done.set()


class Waiting:
    """Requests in the order in which they came, `limit` at most."""

    def __init__(self, limit: int = WAITING) -> None:
        self.limit = limit
        self._requests: deque[Request] = deque()
        self._changed = threading.Condition()

    def add(self, request: Request) -> bool:
        """Add a request; whether there was room."""
        with self._changed:
            if len(self._requests) >= self.limit:
                return False
            self._requests.append(request)
            self._changed.notify()
            return True

    def take(self) -> list[Request]:
        """The first request, once there is one, and all others that wait for the same function."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._requests))
            first = self._requests.popleft()
            same = [each for each in self._requests if _kind(each) == _kind(first)]
            for each in same:
                self._requests.remove(each)
            return [first, *same]


def _kind(request: Request) -> tuple[Any, Any]:
    return request.function, request.message.head.get("fingerprint")


class ModelHost:
    """Loads targets and computes for clients.

    Args:
        folder: gets the SAEs' tensors, for clients to map.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.waiting = Waiting()
        self._open: dict[str, Open] = {}
        self._room = threading.Semaphore(CONNECTIONS)

    # --- connections, each in a thread of its own ---

    def listen(self, listener: socket.socket) -> None:
        """Accept clients, without end."""
        while True:
            connection, _ = listener.accept()
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(SLOW_SECONDS)
                while True:
                    # between two requests a client may be silent for as long as it likes
                    select.select([connection], [], [])
                    try:
                        message = receive(connection, REQUEST_BYTES, SLOW_SECONDS)
                    except Broken as error:
                        send(connection, _failure("BadRequest", f"the model host can't read a request: {error}"))
                        return
                    request = Request(message)
                    if self.waiting.add(request):
                        request.done.wait()
                    else:
                        request.answer(Message({"busy": True}))
                    send(connection, request.reply)
        except (Broken, Late, OSError) as error:
            log.info("a client is gone: %s", error)
        finally:
            self._room.release()

    # --- computing, in one thread ---

    def compute(self) -> None:
        """Answer what waits, without end."""
        while True:
            requests = self.waiting.take()
            for group in self._groups(requests):
                reply = self._reply(group)
                for request, each in zip(group, reply, strict=True):
                    request.answer(each)

    def _groups(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Requests that are computed at once, in order: here each alone but for those that are equal."""
        groups: dict[bytes, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.key, []).append(request)
        return list(groups.values())

    def _reply(self, group: list[Request]) -> list[Message]:
        try:
            if group[0].function == "open":
                reply = Message({"result": self._opened(group[0].message.head).facts})
            else:
                reply = self._computed(group[0].message)
        except MikitError as error:
            reply = _failure(type(error).__name__, str(error))
        except Exception as error:
            if _is_fatal(error):
                log.exception("the device can't be used any more")
                os._exit(70)
            log.exception("%s failed", group[0].function)
            reply = _failure("Failed", f"model host, {group[0].function}: {type(error).__name__}: {_line(error)}")
        return [reply] * len(group)

    def _opened(self, head: dict[str, Any]) -> Open:
        wanted, before = head.get("wanted"), head.get("fingerprint")
        try:
            options = Options(**wanted["options"])
            name, layer = wanted["name"], wanted["layer"]
        except (TypeError, KeyError) as error:
            raise MikitError(f"the model host is asked for no target: {error}") from None
        for each in self._open.values():
            if each.facts["wanted"] == wanted:
                found = each
                break
        else:
            found = open_target(load_target(name, layer, options), options.batch, self.folder, wanted)
            while len(self._open) >= TARGETS:
                self._open.pop(next(iter(self._open)))
            self._open[found.facts["fingerprint"]] = found
        if before not in (None, found.facts["fingerprint"]):
            raise MikitError(_another(name, before, found.facts["fingerprint"]))
        return found

    def _computed(self, message: Message) -> Message:
        function, there = self._asked(message.head)
        arguments = _arguments(function, message)
        return _result(function, there.target, arguments)

    def _asked(self, head: dict[str, Any]) -> tuple[Served, Open]:
        name, fingerprint = str(head.get("ask")), str(head.get("fingerprint"))
        if name not in SERVED:
            raise MikitError(f"the model host computes no {name!r}: valid: {', '.join(sorted(SERVED))}")
        if fingerprint not in self._open:
            known = ", ".join(self._open) or "none"
            raise MikitError(_another("a target", fingerprint, known))
        return SERVED[name], self._open[fingerprint]


def _another(name: str, wanted: str, found: str) -> str:
    return (
        f"{name} with fingerprint {wanted} is asked of a model host that holds {found}: model, SAE or precision have "
        "changed since the kernel started: start the sweep again"
    )


def _arguments(function: Served, message: Message) -> dict[str, Any]:
    told = message.head.get("arguments")
    if not isinstance(told, dict):
        raise MikitError("the model host is asked without arguments")
    try:
        arguments = {name: unpack(value, message.tensors) for name, value in told.items()}
        function.signature.bind(None, **arguments)
    except (Broken, TypeError) as error:
        raise MikitError(f"the model host is asked with wrong arguments: {error}") from None
    return arguments


def _result(function: Served, target: Target, arguments: dict[str, Any]) -> Message:
    moved = {
        name: value.to(target.device) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()
    }
    tensors: list[torch.Tensor] = []
    told = pack(function.function(target, **moved), tensors)
    return Message({"result": told}, [tensor.cpu() for tensor in tensors])


def open_target(target: Target, rows: int, folder: Path, wanted: dict[str, Any]) -> Open:
    """Check a target, and lay its SAE where clients can map it.

    Raises:
        BadInput: it does not pass its checks.
    """
    from safetensors.torch import save_file

    require_fit(target)
    sae, tensors = sae_facts(target.sae)
    dtype = str(target.model.dtype).removeprefix("torch.")
    names = ("name", "layer", "hook_point", "bos_id", "model_id", "model_hash", "tokenizer_hash", "default_corpus")
    facts = {name: getattr(target, name) for name in names}
    of = {
        "target": facts,
        "sae": target.sae.hash,
        "dtype": dtype,
        "device": target.device.type,
        "torch": torch.__version__,
    }
    fingerprint = value_hash(of)
    file = folder / f"sae-{fingerprint}.safetensors"
    if not file.exists():
        with atomic_path(file) as temporary:
            save_file(tensors, temporary)
    told = {
        "wanted": wanted,
        "fingerprint": fingerprint,
        "target": facts | {"special_ids": sorted(target.special_ids)},
        "device": str(target.device),
        "dtype": dtype,
        "unembedding": list(target.model.get_output_embeddings().weight.shape),
        "sae": sae,
        "sae_file": str(file),
    }
    return Open(target, told, rows, rows_are_exact(target))


def rows_are_exact(target: Target) -> bool:
    """Whether a few rows of a batch are read the same, to the bit, without the others."""
    texts = sample_ids(target)
    length = min(map(len, texts))
    ids, _ = batch_of(target, [text[:length] for text in texts])
    together = read_residual(target, ids)
    return all(torch.equal(read_residual(target, ids[:n]), together[:n]) for n in (1, 2, 3, len(ids) - 1))


def _failure(kind: str, line: str) -> Message:
    return Message({"error": {"kind": kind, "line": line[:2000]}})


def _is_fatal(error: Exception) -> bool:
    """Whether a device has failed for the rest of the process's life."""
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


def main(address: Path) -> None:
    """Listen at `address` until standard input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    threading.Thread(target=_end_with, args=(sys.stdin.buffer, address.parent), daemon=True).start()
    for module in HOLD_FUNCTIONS:
        importlib.import_module(module)
    host = ModelHost(address.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    address.unlink(missing_ok=True)
    listener.bind(str(address))
    listener.listen(CONNECTIONS)
    threading.Thread(target=host.listen, args=(listener,), daemon=True).start()
    host.compute()


def _end_with(stream: Any, folder: Path) -> None:
    while stream.read(1 << 10):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
