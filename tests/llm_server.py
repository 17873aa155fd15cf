"""A scripted OpenAI-compatible server on loopback, in a thread of the test: what it answers is a function of the request."""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Raw:
    """An answer that is no chat completion: status, body, headers, and what happens to the connection."""

    body: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    reset: bool = False
    """Break off in the middle of the body."""
    silent: bool = False
    """Say nothing until the server is closed."""


def refusal(status: int, message: str, headers: dict[str, str] | None = None, **more: Any) -> Raw:
    return Raw(json.dumps({"error": {"message": message, **more}}), status, headers or {})


def completion(content: Any, finish: str = "stop", prompt: int = 100, output: int = 10, **message: Any) -> Raw:
    """A chat completion with this content, as it goes over the wire."""
    reply = {
        "id": "c", "object": "chat.completion", "created": 0, "model": "scripted",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output},
    }  # fmt: skip
    return Raw(json.dumps(reply))


Script = Callable[[dict[str, Any]], Any]
"""From the request to a `Raw`, or to JSON values or text that become a chat completion."""


class ScriptedServer:
    """Counts what it was asked and what it gave."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.paid_tokens = 0
        self.paid_replies = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.http.daemon_threads = True
        # whoever asked may be dead by the time of the answer, which is no news
        self.http.handle_error = lambda *_: None
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/v1"

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()


@contextlib.contextmanager
def scripted(script: Script) -> Iterator[ScriptedServer]:
    server = ScriptedServer(script)
    try:
        yield server
    finally:
        server.close()


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_arguments):
            pass

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                server.requests.append(request)
                server.keys.append(self.headers.get("Authorization", ""))
            answer = server.script(request)
            if not isinstance(answer, Raw):
                answer = completion(answer if isinstance(answer, str | None) else json.dumps(answer))
            if answer.silent:
                server.closing.wait()
                self.close_connection = True
                return
            self._send(answer)

        def _send(self, answer):
            body = answer.body.encode()
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if answer.reset:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            self.wfile.write(body)
            with server.lock, contextlib.suppress(ValueError, KeyError):
                usage = json.loads(answer.body)["usage"]
                server.paid_tokens += usage["total_tokens"]
                server.paid_replies += 1

    return Handler
