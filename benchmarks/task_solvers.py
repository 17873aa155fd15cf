"""Can the tasks be solved, and only by looking? Reference solvers and cheap answers, for every task and difficulty.

    python benchmarks/task_solvers.py --seeds 50

The reference solver sees the network alone. Cheap answers are constant, everything, random, largest weights, and the best
answer to 200 other seeds. The value is the worst share of seeds, over tasks and difficulties, that the reference solves with
a score above 0.95; the target asks also that no cheap answer scores 0.2 on average.
"""

import argparse
import os
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import mean

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from _report import report

from mikit.tasks import DIFFICULTIES, TASKS, Grade, Instance, generate, grade_task, solvers

GOOD, SHARE, CHEAP = 0.95, 0.95, 0.2
OTHERS = 200
RANDOM_TRIES = 16
SECRET = b"benchmarks/task_solvers.py"


@dataclass(frozen=True)
class Measured:
    """What came out for a task and difficulty."""

    reference: list[float]
    """Scores of the reference solver, by seed."""
    cheap: dict[str, float]
    """Mean scores of answers that must fail, by name."""
    first_look: dict[str, float]
    """Mean scores of the usual first look, by name: they may do on easy instances."""
    slowest_ms: float
    """Longest time to make an instance."""


def score(answer: list[int], instance: Instance) -> float:
    """The score of an answer that must be one."""
    grade = grade_task(answer, instance)
    assert isinstance(grade, Grade), grade
    return grade.score


def cheap_answers(instance: Instance, size: int, learnt: list[int]) -> dict[str, list[int]]:
    """What somebody might submit who hardly looks, by name."""
    domain = instance.domain
    norms = solvers.largest_norms(instance.specimen, domain, size)
    return {
        "constant": solvers.constant(domain, size),
        "everything": solvers.everything(domain),
        "memorised": learnt,
        **{f"weight norm ({name})": answer for name, answer in norms.items()},
    }


def measure(task: str, difficulty: str, seeds: int) -> Measured:
    """The reference solver, cheap answers and shortcuts on `seeds` instances."""
    others = [generate(task, difficulty, seeds + i, SECRET) for i in range(OTHERS)]
    size = Counter(len(other.truth) for other in others).most_common(1)[0][0]
    learnt = solvers.memorised(others)
    reference, seconds = [], []
    cheap, first = defaultdict(list), defaultdict(list)
    for seed in range(seeds):
        started = time.perf_counter()
        instance = generate(task, difficulty, seed, SECRET)
        seconds.append(time.perf_counter() - started)
        reference.append(score(solvers.solve(task, instance.specimen.model()), instance))
        for name, answer in cheap_answers(instance, size, learnt).items():
            cheap[name].append(score(answer, instance))
        tries = [solvers.at_random(instance.domain, size, RANDOM_TRIES * seed + i) for i in range(RANDOM_TRIES)]
        cheap["random"].append(mean(score(answer, instance) for answer in tries))
        for name, answer in solvers.first_look(task, instance.specimen.model(), size).items():
            first[name].append(score(answer, instance))
    return Measured(
        reference=reference,
        cheap={name: mean(scores) for name, scores in cheap.items()},
        first_look={name: mean(scores) for name, scores in first.items()},
        slowest_ms=1e3 * max(seconds),
    )


def main() -> None:
    """Measure all tasks and difficulties."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=50, help="seeds a task and difficulty (default 50)")
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    rows, details, shares, worst_cheap = [], {}, [], 0.0
    for task in TASKS:
        for difficulty in DIFFICULTIES:
            found = measure(task, difficulty, seeds)
            share = mean(value > GOOD for value in found.reference)
            name = max(found.cheap, key=lambda name: found.cheap[name])
            shares.append(share)
            worst_cheap = max(worst_cheap, found.cheap[name])
            label = f"{task} {difficulty}"
            first_look = ", ".join(f"{name} {value:.2f}" for name, value in found.first_look.items())
            rows.append(
                (label, f"reference {share:.2f}; cheap {found.cheap[name]:.3f} ({name}); first look: {first_look}")
            )
            details[label] = {
                "reference_share": share,
                "reference_mean": round(mean(found.reference), 4),
                "cheap": {name: round(value, 4) for name, value in found.cheap.items()},
                "first_look": {name: round(value, 4) for name, value in found.first_look.items()},
                "slowest_instance_ms": round(found.slowest_ms, 1),
            }
    value = round(min(shares), 4)
    rows += [("worst share of the reference", f"{value:.2f}"), ("best cheap answer", f"{worst_cheap:.3f}")]
    holds = value >= SHARE and worst_cheap < CHEAP
    details = {"seeds": seeds, "worst_cheap": round(worst_cheap, 4), "by_task": details}
    target = f">= {SHARE:.2f}, no cheap answer at {CHEAP} on average"
    report("task_solvers", value, "share of seeds", target, holds, details, rows)


if __name__ == "__main__":
    main()
