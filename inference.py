"""A baseline agent: a language model plays the four tasks in turn against a server, with code and one answer each.

    HF_TOKEN=... ENV_URL=http://127.0.0.1:8000 python inference.py

Variables: HF_TOKEN is required; ENV_URL, a running server, or LOCAL_IMAGE_NAME, a Docker image of one, is required;
API_BASE_URL and MODEL_NAME choose the language model. Standard output holds the lines [START], [STEP] and [END] of each task,
nothing else; what else there is to say goes to standard error.
"""

import contextlib
import json
import os
import re
import sys
from typing import Any, TextIO

from openai import APIError, OpenAI

API_BASE_URL = os.environ.get("API_BASE_URL") or "https://router.huggingface.co/v1"
MODEL_NAME = os.environ.get("MODEL_NAME") or "Qwen/Qwen2.5-72B-Instruct"
TASKS = ("task1", "task2", "task3", "task4")
ENVIRONMENT = "mikit"
STEPS = 30
UNUSABLE = 5
"""Replies in a row without an action, after which a task is given up."""
RETRIES = 5
SYSTEM = """You look into a PyTorch model to find out how it works. Each of your replies is one JSON object and nothing else:
{"python_code": "..."} runs code, {"solution_target": [...]} submits the answer, once. Look first, then answer."""
NO_ACTION = 'That was no action. Reply with one JSON object: {"python_code": "..."} or {"solution_target": [...]}.'
FENCE = re.compile(r"```(?:json)?\s*\n?(.*?)```", re.S)


class Lines:
    """The lines that are asked for, one at a time, each flushed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def _write(self, line: str) -> None:
        print(" ".join(line.splitlines()), file=self._stream, flush=True)

    def start(self, task: str) -> None:
        """A task begins."""
        self._write(f"[START] task={task} env={ENVIRONMENT} model={MODEL_NAME}")

    def step(self, number: int, action: dict[str, Any], reward: float, done: bool, error: str | None) -> None:
        """A step was taken."""
        shown = json.dumps(action, ensure_ascii=True)
        told = " ".join(error.split()) if error else "null"
        self._write(f"[STEP] step={number} action={shown} reward={reward:.2f} done={str(done).lower()} error={told}")

    def end(self, success: bool, rewards: list[float]) -> None:
        """A task is over."""
        shown = ",".join(f"{reward:.2f}" for reward in rewards)
        self._write(f"[END] success={str(success).lower()} steps={len(rewards)} rewards={shown}")


def action_in(reply: str) -> dict[str, Any]:
    """The action in a reply: a JSON object, alone, in a fence, or with text around it; empty if there is none."""
    candidates = [reply, *FENCE.findall(reply), reply[reply.find("{") : reply.rfind("}") + 1]]
    for candidate in candidates:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(candidate.strip())
            if isinstance(found, dict):
                chosen = {
                    name: found[name] for name in ("python_code", "solution_target") if found.get(name) is not None
                }
                if chosen:
                    return chosen
    return {}


def play(task: str, client: OpenAI, env: Any, lines: Lines) -> None:
    """Play one task, from its [START] to its [END], whatever happens between."""
    lines.start(task)
    rewards: list[float] = []
    success = False
    try:
        seen = env.reset(task_id=task)
        messages: list[Any] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": seen.observation["stdout_or_error"]},
        ]
        unusable = 0
        for number in range(1, STEPS + 1):
            reply = client.chat.completions.create(model=MODEL_NAME, messages=messages, temperature=0.0)
            message = reply.choices[0].message
            text = message.content or getattr(message, "refusal", None) or ""
            action = action_in(text)
            unusable = 0 if action else unusable + 1
            seen = env.step(action)
            metadata = seen.observation.get("metadata", {})
            rewards.append(float(seen.reward or 0.0))
            lines.step(number, action, rewards[-1], bool(seen.done), metadata.get("error"))
            success = bool(metadata.get("solved"))
            if seen.done or unusable >= UNUSABLE:
                break
            told = seen.observation["stdout_or_error"] if action else NO_ACTION
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": told or "(no output)"}]
    except (APIError, OSError, RuntimeError, ValueError, KeyError, IndexError, TypeError) as error:
        print(f"{task}: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        lines.end(success, rewards)


def connect() -> Any:
    """A session with the server at ENV_URL, or with a container of LOCAL_IMAGE_NAME."""
    from openenv.core.generic_client import GenericEnvClient

    if url := os.environ.get("ENV_URL"):
        return GenericEnvClient(base_url=url, message_timeout_s=120.0).sync()
    return GenericEnvClient.from_docker_image(os.environ["LOCAL_IMAGE_NAME"]).sync()


class Nothing:
    """In the place of what could not be reached: each task then ends as it began."""

    def __init__(self, why: str) -> None:
        self._why = why

    def reset(self, **_given: Any) -> Any:
        """Say why not."""
        raise RuntimeError(self._why)


def main() -> int:
    """Play all tasks; 0 if they were played, 2 if something that is needed was not given, 1 if it could not be reached."""
    lines = Lines(sys.stdout)
    # libraries may print; standard output is for the lines alone
    with contextlib.redirect_stdout(sys.stderr):
        token = os.environ.get("HF_TOKEN")
        missing = None if token else "HF_TOKEN is not set"
        if not missing and not (os.environ.get("ENV_URL") or os.environ.get("LOCAL_IMAGE_NAME")):
            missing = "neither ENV_URL nor LOCAL_IMAGE_NAME is set"
        client = OpenAI(base_url=API_BASE_URL, api_key=token or "none", max_retries=RETRIES)
        if missing:
            print(f"inference.py: {missing}", file=sys.stderr)
            _play_all(client, Nothing(missing), lines)
            return 2
        try:
            with connect() as env:
                _play_all(client, env, lines)
        except Exception as error:
            why = f"the server cannot be reached: {type(error).__name__}: {error}"
            print(f"inference.py: {why}", file=sys.stderr)
            _play_all(client, Nothing(why), lines)
            return 1
        return 0


def _play_all(client: OpenAI, env: Any, lines: Lines) -> None:
    for task in TASKS:
        play(task, client, env, lines)


if __name__ == "__main__":
    sys.exit(main())
