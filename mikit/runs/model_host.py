"""The process that holds a model and its SAE for the kernels of a sweep: `python -m mikit.runs.model_host SOCKET`.

It listens on a socket in a folder that its user alone can enter, and computes `served` functions, one at a time. Requests
wait in a queue of bounded length; those that wait for the same are computed once, and rows of one length together where
that gives the same bits. It ends when its standard input does, so that it outlives nobody.
"""

import contextlib
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
    "mikit.experiments.activation",
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
    def fingerprint(self) -> str:
        """Of the target that is meant."""
        return str(self.message.head.get("fingerprint"))

    @cached_property
    def key(self) -> bytes:
        """The same for requests of the same."""
        digest = hashlib.sha256(json.dumps(self.message.head, sort_keys=True).encode())
        for tensor in self.message.tensors:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.digest()

    def answer(self, reply: Message) -> None:
        """Give the reply to whoever waits for it."""
        self.reply = reply
        self.done.set()


@dataclass(frozen=True)
class Rows:
    """What a request has that can be put under the rows of another."""

    kind: tuple[Any, ...]
    """The same for requests whose rows may be computed together."""
    n: int


def rows_of(message: Message, by_row: Sequence[str]) -> Rows | None:
    """The rows of a request; None if it has none that can be put under others, as one with padding, or a wrong one."""
    told = message.head.get("arguments")
    try:
        given = [unpack(told[name], message.tensors) for name in by_row] if isinstance(told, dict) else []
    except (Broken, KeyError):
        return None
    tensors = [value for value in given if isinstance(value, torch.Tensor) and value.dim()]
    if not tensors or len({len(tensor) for tensor in tensors}) > 1:
        return None
    if any(t.dtype == torch.bool and not bool(t.all()) for t in tensors):
        # texts of unlike length are read several in a row: what they are read with would change
        return None
    kinds = [(t.dtype, t.shape[1:]) for t in tensors]
    return Rows((*kinds, *(type(value) for value in given)), len(tensors[0]))


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
                with connection, contextlib.suppress(Broken):
                    send(connection, Message({"busy": True}))
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
            self.answer(self.waiting.take())

    def answer(self, requests: Sequence[Request]) -> None:
        """Answer some requests for one function: equal ones from one computation, rows of one length together."""
        equal: dict[bytes, list[Request]] = {}
        for request in requests:
            equal.setdefault(request.key, []).append(request)
        for part in self._parts([group[0] for group in equal.values()]):
            for first, reply in zip(part, self._replies(part), strict=True):
                for request in equal[first.key]:
                    request.answer(reply)

    def _parts(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Which of the requests are computed together: rows of one length, where that changes no bit of the result."""
        function, there = SERVED.get(requests[0].function), self._open.get(requests[0].fingerprint)
        if function is None or there is None or not function.by_row or not there.is_exact:
            return [[request] for request in requests]
        parts: list[tuple[Rows, list[Request]]] = []
        for request in requests:
            rows = rows_of(request.message, function.by_row)
            for i, (before, part) in enumerate(parts):
                if rows and rows.kind == before.kind and rows.n + before.n <= there.rows:
                    parts[i] = Rows(rows.kind, rows.n + before.n), [*part, request]
                    break
            else:
                parts.append((rows or Rows((object(),), 0), [request]))
        return [part for _, part in parts]

    def _replies(self, part: Sequence[Request]) -> list[Message]:
        if len(part) > 1:
            try:
                return self._together(part)
            except Exception as error:
                # what is wrong with one of them is no fault of the others
                log.info("%d requests fail together (%s): each alone", len(part), error)
        return [self._reply(request) for request in part]

    def _together(self, part: Sequence[Request]) -> list[Message]:
        function, there = self._asked(part[0].message.head)
        given = [_arguments(function, there, request.message) for request in part]
        joined = {
            name: torch.cat([each[name] for each in given]) if isinstance(given[0][name], torch.Tensor) else None
            for name in function.by_row
        }
        found = _computed(function.read or function.function, there, joined)
        pieces = found.split([len(each[function.by_row[0]]) for each in given])
        if function.rest is None:
            return [_result(piece) for piece in pieces]
        return [
            _result(_computed(function.rest, there, {"residual": piece} | each))
            for piece, each in zip(pieces, given, strict=True)
        ]

    def _reply(self, request: Request) -> Message:
        head = request.message.head
        try:
            if request.function == "open":
                return Message({"result": self._opened(head).facts})
            function, there = self._asked(head)
            return _result(_computed(function.function, there, _arguments(function, there, request.message)))
        except MikitError as error:
            return _failure(type(error).__name__, str(error))
        except Exception as error:
            if _is_fatal(error):
                log.exception("the device can't be used any more")
                os._exit(70)
            log.exception("%s failed", request.function)
            return _failure("Failed", f"model host, {request.function}: {type(error).__name__}: {_line(error)}")

    def _opened(self, head: dict[str, Any]) -> Open:
        wanted, before = head.get("wanted"), head.get("fingerprint")
        found = next((each for each in self._open.values() if each.facts["wanted"] == wanted), None)
        if found is None:
            found = self._loaded(wanted)
        if before not in (None, found.facts["fingerprint"]):
            raise MikitError(_another("a target", str(before), found.facts["fingerprint"]))
        return found

    def _loaded(self, wanted: Any) -> Open:
        try:
            name, layer, options = wanted["name"], wanted["layer"], Options(**wanted["options"])
        except (TypeError, KeyError) as error:
            raise MikitError(f"the model host is asked for no target: {error}") from None
        found = open_target(load_target(name, layer, options), options.batch, self.folder, wanted)
        while len(self._open) >= TARGETS:
            self._open.pop(next(iter(self._open)))
        self._open[found.facts["fingerprint"]] = found
        return found

    def _asked(self, head: dict[str, Any]) -> tuple[Served, Open]:
        name, fingerprint = str(head.get("ask")), str(head.get("fingerprint"))
        if name not in SERVED:
            raise MikitError(f"the model host computes no {name!r}: valid: {', '.join(sorted(SERVED))}")
        if fingerprint not in self._open:
            known = ", ".join(self._open) or "none"
            raise NotOpen(_another("a target", fingerprint, known))
        return SERVED[name], self._open[fingerprint]


class NotOpen(MikitError):
    """The target that is meant is not loaded, or not any more: a client opens it again."""


def _another(name: str, wanted: str, found: str) -> str:
    return (
        f"{name} with fingerprint {wanted} is asked of a model host that holds {found}: model, SAE or precision have "
        "changed since the kernel started: start the sweep again"
    )


def _arguments(function: Served, there: Open, message: Message) -> dict[str, Any]:
    """What a function is asked with."""
    told = message.head.get("arguments")
    if not isinstance(told, dict):
        raise MikitError("the model host is asked without arguments")
    try:
        arguments = {name: unpack(value, message.tensors) for name, value in told.items()}
        function.signature.bind(None, **arguments)
    except (Broken, TypeError) as error:
        raise MikitError(f"the model host is asked with wrong arguments: {error}") from None
    ids, n = arguments.get("ids"), there.target.vocab_size
    # on a GPU an id that there is not ends the process, and all others' requests with it
    if isinstance(ids, torch.Tensor) and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < n:
        raise MikitError(f"the model host is asked about token {int(ids.max())}: valid: 0 to {n - 1}")
    return arguments


def _computed(function: Callable[..., Any], there: Open, arguments: dict[str, Any]) -> Any:
    device = there.target.device
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    return function(there.target, **moved)


def _result(value: Any) -> Message:
    tensors: list[torch.Tensor] = []
    return Message({"result": pack(value, tensors)}, [tensor.cpu() for tensor in tensors])


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
