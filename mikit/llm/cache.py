"""Replies by request: written before anything is made of them, so that none is paid for twice."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from mikit.files import write_text
from mikit.llm.requests import Reply


@dataclass(frozen=True)
class ReplyCache:
    """A folder of replies; None remembers nothing beyond the process."""

    folder: Path | None

    def _path(self, key: str) -> Path | None:
        return self.folder / key[:2] / f"{key}.json" if self.folder else None

    def get(self, key: str, outages: bool = False) -> Reply | None:
        """The reply to a request; one that tells of an outage only if asked for."""
        path = self._path(key)
        try:
            reply = Reply.model_validate_json(path.read_bytes()) if path else None
        except (OSError, ValidationError):
            return None
        return reply if reply is None or outages or reply.failure is None else None

    def put(self, key: str, reply: Reply) -> None:
        """Keep a reply."""
        if path := self._path(key):
            write_text(path, reply.model_dump_json(indent=1) + "\n")
