"""A server of the tasks, as a lab uses it: where the network comes from, and where an answer is graded.

It speaks OpenEnv's protocol over a plain websocket, so that a lesson needs no more than that.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from mikit.errors import BadInput
from mikit.tasks.grading import Grade, Reason, Rejection
from mikit.tasks.instance import Specimen

SECONDS = 60.0


@dataclass(frozen=True)
class Episode:
    """What a server says of an instance."""

    task: str
    seed: int
    difficulty: str
    digest: str
    specimen: Specimen


class Remote:
    """A server by its URL."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def begin(self, task: str, seed: int | None, difficulty: str, config: Mapping[str, Any]) -> Episode:
        """An instance: its seed, which the server draws if none is given, and its network.

        Args:
            task: task1 to task4.
            seed: whole number from 0, or None.
            difficulty: classic, easy, medium or hard.
            config: sizes, which are the same for every seed, with the architecture's name under `architecture`.

        Raises:
            BadInput: no server there, or it refuses the task, seed or difficulty.
        """
        if seed is None:
            seed = int(self._ask([self._reset(task, seed, difficulty)])[0]["observation"]["metadata"]["seed"])
        query: dict[str, Any] = {"task_id": task, "seed": seed, "difficulty": difficulty}
        try:
            answer = httpx.get(f"{self._url}/specimen", params=query, timeout=SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise BadInput(f"no server at {self._url} ({error}): valid: the address of `mikit serve`") from None
        if answer.status_code != httpx.codes.OK:
            raise BadInput(f"{self._url}: {_detail(answer)}")
        from safetensors.numpy import load

        sizes = dict(config)
        weights: dict[str, np.ndarray] = load(answer.content)
        specimen = Specimen(sizes.pop("architecture"), sizes, weights)
        return Episode(task, seed, difficulty, answer.headers["x-digest"], specimen)

    def grade(self, answer: object, episode: Episode) -> Grade | Rejection:
        """What the server makes of an answer, in an episode of its own; precision and recall it does not tell: both are NaN."""
        submit = {"type": "step", "data": {"solution_target": _plain(answer)}}
        _, seen = self._ask([self._reset(episode.task, episode.seed, episode.difficulty), submit])
        metadata, text = seen["observation"]["metadata"], seen["observation"]["stdout_or_error"]
        if metadata.get("error") in set(Reason):
            return Rejection(Reason(metadata["error"]), text)
        if not seen["done"]:
            raise BadInput(f"{self._url}: it grades several submissions an episode: valid: a server that grades one")
        return Grade(float(seen["reward"]), bool(metadata["solved"]), float("nan"), float("nan"))

    def _reset(self, task: str, seed: int | None, difficulty: str) -> dict[str, Any]:
        data = {"task_id": task, "difficulty": difficulty} | ({} if seed is None else {"seed": seed})
        return {"type": "reset", "data": data}

    def _ask(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The data of the answers to messages, in one session."""
        try:
            from websockets.exceptions import WebSocketException
            from websockets.sync.client import connect
        except ImportError:
            raise BadInput("a lab against a server needs websockets: pip install 'mikit[arena]'") from None
        answers = []
        try:
            with connect(f"{self._url.replace('http', 'ws', 1)}/ws", open_timeout=SECONDS) as connection:
                for message in messages:
                    connection.send(json.dumps(message))
                    answers.append(json.loads(connection.recv(timeout=SECONDS)))
        except (OSError, WebSocketException, ValueError) as error:
            raise BadInput(f"no server at {self._url} ({error}): valid: the address of `mikit serve`") from None
        for answer in answers:
            if answer["type"] == "error":
                raise BadInput(f"{self._url}: {answer['data']['message']}")
        return [answer["data"] for answer in answers]


def _plain(answer: object) -> object:
    """An answer as JSON can say it; what it can't say is sent as its type's name, to be rejected there."""
    if hasattr(answer, "tolist"):
        answer = answer.tolist()
    if isinstance(answer, tuple | set | frozenset):
        answer = list(answer)
    try:
        json.dumps(answer, allow_nan=False)
    except (TypeError, ValueError):
        return f"an object of type {type(answer).__name__}"
    return answer


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {answer.status_code}"
