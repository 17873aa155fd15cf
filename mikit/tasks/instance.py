"""An instance of a task: what a solver sees, and the truth that a grader keeps apart from it."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mikit.errors import BadInput, one_of
from mikit.tasks.draws import Draws

if TYPE_CHECKING:
    from torch import nn

DIFFICULTIES = ("classic", "easy", "medium", "hard")
VERSION = 1
"""Of the generators: a change of what any seed gives must raise it, so that old submissions are told apart."""
TEXTS = Path(__file__).parent / "texts"


@dataclass(frozen=True)
class Specimen:
    """All that a solver may see of an instance."""

    architecture: str
    """A name in `mikit.tasks.models.ARCHITECTURES`."""
    config: Mapping[str, Any]
    """Sizes; the same for every seed of a task and difficulty."""
    weights: Mapping[str, np.ndarray] = field(repr=False)
    """State dict, float32."""

    def model(self) -> "nn.Module":
        """The network; a new one at each call, so that what is done to one leaves the others as they were."""
        import torch

        from mikit.tasks.models import build

        return build(
            self.architecture, self.config, {name: torch.from_numpy(w.copy()) for name, w in self.weights.items()}
        )

    def digest(self) -> str:
        """The first 16 hex digits of the SHA-256 over architecture, sizes, names, shapes and little-endian weights."""
        digest = hashlib.sha256(json.dumps([self.architecture, dict(self.config)], sort_keys=True).encode())
        for name in sorted(self.weights):
            weights = self.weights[name]
            digest.update(json.dumps([name, weights.shape]).encode())
            digest.update(np.ascontiguousarray(weights, dtype="<f4").tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """What there is to find, in what, and how to write the answer down: lessons, graders and agents' texts use this."""

    id: str
    level: int
    """Its place in the curriculum, from 1."""
    name: str
    rank: str
    """How hard it is beside the others: easy, medium or hard."""
    objective: str
    """One sentence."""
    things: str
    """What an answer's numbers index, in the plural."""
    domain: Callable[[Mapping[str, Any]], range]
    """The numbers that an answer may hold, given the sizes."""
    describe: Callable[[Mapping[str, Any]], str]
    """The network in a sentence, given the sizes."""
    generate: Callable[[str, Draws], tuple[Specimen, frozenset[int]]] = field(repr=False)
    """What a solver sees, and the truth, of a difficulty and a stream of draws."""

    def text(self, difficulty: str) -> str:
        """The task as an agent is told it, for a difficulty; markdown. It depends on nothing that a seed determines."""
        sizes = self.generate(valid_difficulty(difficulty), Draws(b"sizes"))[0].config
        domain = self.domain(sizes)
        return (
            (TEXTS / f"{self.id}.md")
            .read_text("utf-8")
            .format(
                level=self.level,
                name=self.name,
                objective=self.objective,
                network=self.describe(sizes),
                things=self.things,
                low=domain[0],
                high=domain[-1],
            )
        )


@dataclass(frozen=True)
class Instance:
    """One instance with its truth. It stays with the grader; a solver gets `specimen` or its model."""

    task: Task
    difficulty: str
    seed: int
    split: str
    specimen: Specimen
    truth: frozenset[int] = field(repr=False)

    @property
    def domain(self) -> range:
        """The numbers that an answer may hold."""
        return self.task.domain(self.specimen.config)


def valid_difficulty(name: object) -> str:
    """The difficulty of that name.

    Raises:
        BadInput: there is none; the message lists the valid ones.
    """
    if not isinstance(name, str) or name not in DIFFICULTIES:
        raise one_of("difficulty", name, list(DIFFICULTIES))
    return name


def valid_seed(seed: object) -> int:
    """The seed as an int.

    Raises:
        BadInput: it is not a whole number from 0 to 2^63 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 2**63:
        shown = repr(seed) if len(repr(seed)) < 40 else f"{repr(seed)[:30]}..."
        raise BadInput(f"seed = {shown}: valid: a whole number from 0 to 2^63 - 1")
    return int(seed)
