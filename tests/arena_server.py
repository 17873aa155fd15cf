"""A server in this process for tests, and what a scripted language model says."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import uvicorn


@contextlib.contextmanager
def served(app) -> Iterator[str]:
    """The URL of an application, for as long as it is served on a free port of loopback."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", ws_max_size=1 << 20))
    started = threading.Event()
    startup = server.startup

    async def notify(*args, **options):
        await startup(*args, **options)
        started.set()

    server.startup = notify
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


class Scripted:
    """An OpenAI-compatible server that answers what it is told to, in turn, and remembers what it was asked."""

    def __init__(self, reply) -> None:
        self.asked: list[dict] = []
        self._reply = reply

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.asked.append(body | {"authorization": self.headers["authorization"]})
                status, content = outer._reply(len(outer.asked), body["messages"])
                message = content if isinstance(content, dict) else {"role": "assistant", "content": content}
                answer = {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                }
                blob = json.dumps(answer if status == 200 else {"error": {"message": "slow down"}}).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("retry-after", "0")
                self.send_header("retry-after-ms", "1")
                self.send_header("content-length", str(len(blob)))
                self.end_headers()
                self.wfile.write(blob)

            def log_message(self, *_args):
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_address[1]}/v1"
            finally:
                server.shutdown()
                thread.join()
