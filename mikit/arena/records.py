"""What is kept of the latest episodes, and an episode as a notebook that can be run again."""

import threading
from collections import OrderedDict
from typing import Any

from mikit.arena.episode import Episode, Step

KEPT = 256
"""Episodes that a server remembers."""
SETUP = """\
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from mikit.tasks import Lab

lab = Lab({task!r}, seed={seed}, difficulty={difficulty!r}{more})
model = lab.model"""
URL = ', url="http://127.0.0.1:8000"  # the server of this split'


class Records:
    """The latest episodes by name; can be used from many threads."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept, self._lock = kept, threading.Lock()
        self._episodes: OrderedDict[str, Episode] = OrderedDict()

    def keep(self, episode: Episode) -> None:
        """Remember an episode, and forget the oldest."""
        with self._lock:
            self._episodes.pop(episode.id, None)
            self._episodes[episode.id] = episode
            while len(self._episodes) > self._kept:
                self._episodes.popitem(last=False)

    def get(self, name: str) -> Episode | None:
        """The episode of that name; None if there is none, or it was forgotten."""
        with self._lock:
            return self._episodes.get(name)


def notebook_of(episode: Episode) -> dict[str, Any]:
    """The episode as a notebook, format 4.5: what was told, each step with what it printed, and how it ended."""
    instance = episode.instance
    more = URL if instance.split == "test" else ""
    setup = SETUP.format(task=instance.task.id, seed=instance.seed, difficulty=instance.difficulty, more=more)
    if more:
        setup = setup.replace("split)\nmodel", "split\n)\nmodel")
    cells = [
        _markdown(
            0, f"{episode.opening}\nSeed {instance.seed}, difficulty {instance.difficulty}, network {episode.digest}."
        ),
        _code(1, setup, "", None),
        *(_cell(number, step) for number, step in enumerate(list(episode.steps), start=2)),
    ]
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "mikit": {
                "episode_id": episode.id,
                "task_id": instance.task.id,
                "seed": instance.seed,
                "solved": episode.solved,
            },
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(number: int, step: Step) -> dict[str, Any]:
    if step.code is not None and step.answer is None:
        return _code(number, step.code, step.text, number)
    if step.answer is not None and step.code is None:
        return _code(number, f"lab.submit({step.answer!r})", f"{step.text}\n", number)
    return _markdown(number, f"Step {number - 1} was no action: {step.text}")


def _code(number: int, source: str, text: str, count: int | None) -> dict[str, Any]:
    outputs = [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}] if text else []
    return {
        "cell_type": "code",
        "execution_count": count,
        "id": f"step-{number}",
        "metadata": {},
        "outputs": outputs,
        "source": source.splitlines(keepends=True),
    }


def _markdown(number: int, source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": f"step-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
