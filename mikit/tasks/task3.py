"""Task 3, Fourier analysis: the frequencies that a transformer adds with, modulo 97.

A frequency counts if the network needs it: taken out of the embedding of the numbers, the network no longer adds. Others may be
embedded as loudly, and taking them out changes nothing.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from mikit.tasks.addition import FREQUENCIES, generate
from mikit.tasks.grading import grade_of
from mikit.tasks.instance import Task


def _domain(_config: Mapping[str, Any]) -> range:
    return FREQUENCIES


def _describe(config: Mapping[str, Any]) -> str:
    return (
        f"one block, {config['heads']} attention heads of width {config['d_head']}, a stream of width {config['d_model']}, "
        f"an MLP of {config['d_mlp']} units whose activation squares, no layer norm; `model.embed.weight` has a row for "
        'each of the numbers 0 to 96, and row 97 for "="; `model(tokens)` takes rows `[a, b, 97]` and gives the logits of '
        "the answer"
    )


TASK = Task(
    id="task3",
    level=3,
    name="Fourier analysis",
    rank="hard",
    objective="Find the frequencies in a transformer's token embedding that it adds with, modulo 97.",
    things="frequencies",
    domain=_domain,
    describe=_describe,
    generate=generate,
)
grade = partial(grade_of, "task3")
