"""The four tasks by id, and their instances by task, difficulty, seed and split."""

import hmac
import os
import secrets

from mikit.errors import BadInput, one_of
from mikit.tasks import task1, task2, task3, task4
from mikit.tasks.draws import Draws
from mikit.tasks.instance import VERSION, Instance, Task, valid_difficulty, valid_seed

TASKS: dict[str, Task] = {task.id: task for task in (task1.TASK, task2.TASK, task3.TASK, task4.TASK)}
SPLITS = ("train", "test")
SECRET_VARIABLE = "MIKIT_TASKS_SECRET"
SECRET_LENGTH = 16
PUBLIC = b"mikit tasks: the train split, whose instances are everybody's"
"""The key of `train`: anybody can make those instances, truth included."""


def valid_task(task_id: object) -> Task:
    """The task of that id.

    Raises:
        BadInput: there is none; the message lists the valid ones.
    """
    if not isinstance(task_id, str) or task_id not in TASKS:
        raise one_of("task", task_id, list(TASKS))
    return TASKS[task_id]


def secret_of(split: str) -> bytes:
    """The key that a split's instances are made with: public for `train`, from the environment for `test`.

    Raises:
        BadInput: an unknown split, or no secret, or a short one.
    """
    if split not in SPLITS:
        raise one_of("split", split, list(SPLITS))
    if split == "train":
        return PUBLIC
    secret = os.environ.get(SECRET_VARIABLE, "").encode()
    if len(secret) < SECRET_LENGTH:
        raise BadInput(
            f"the split 'test' needs a secret: valid: {SECRET_VARIABLE} with at least {SECRET_LENGTH} bytes, "
            "or the split 'train'"
        )
    return secret


def generate(task_id: str, difficulty: str, seed: int, secret: bytes, split: str = "test") -> Instance:
    """The instance that a secret and a seed determine, the same on every machine.

    Args:
        task_id: task1 to task4.
        difficulty: classic, easy, medium or hard.
        seed: whole number from 0.
        secret: the key; who has it can make the truth.
        split: what the instance says of its split.

    Raises:
        BadInput: an unknown task or difficulty, or no valid seed.
    """
    task, difficulty, seed = valid_task(task_id), valid_difficulty(difficulty), valid_seed(seed)
    key = hmac.digest(secret, f"{task.id}|{VERSION}|{difficulty}|{seed}".encode(), "sha256")
    specimen, truth = task.generate(difficulty, Draws(key))
    return Instance(task, difficulty, seed, split, specimen, truth)


def make(task_id: str, seed: int | None = None, difficulty: str = "classic", split: str = "train") -> Instance:
    """An instance of a task.

    Args:
        task_id: task1 to task4.
        seed: whole number from 0; a random one if not given, to be read in the result.
        difficulty: classic, easy, medium or hard.
        split: `train`, the same for everybody, or `test`, made with the secret in `MIKIT_TASKS_SECRET`.

    Raises:
        BadInput: an unknown name, no valid seed, or no secret.
    """
    if seed is None:
        seed = secrets.randbelow(2**31)
    return generate(task_id, difficulty, seed, secret_of(split), split)
