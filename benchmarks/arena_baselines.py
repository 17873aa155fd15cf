"""What agents without a language model get, by task and difficulty: random, a blind hill-climber, a cheap look, the reference.

    python benchmarks/arena_baselines.py --seeds 20

Each plays whole episodes, in the sandbox. The value is the highest mean reward of the two that look at nothing; the target asks
besides that the reference gets 0.95 or more everywhere.
"""

import argparse
import os
from statistics import mean

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

from _report import report

from mikit.arena.baselines import POLICIES
from mikit.arena.environment import ArenaEnvironment
from mikit.arena.settings import ArenaSettings
from mikit.sandbox import Sandbox
from mikit.tasks import DIFFICULTIES, TASKS

BLIND, BLIND_MOST, REFERENCE_LEAST = ("random", "blind hill-climber"), 0.2, 0.95


def main() -> None:
    """Measure all policies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="episodes a policy, task and difficulty (default 20)")
    parser.add_argument(
        "--difficulties", nargs="+", default=list(DIFFICULTIES), choices=DIFFICULTIES, help="all if not given"
    )
    options = parser.parse_args()
    seeds = options.seeds
    found: dict[str, dict[str, float]] = {}
    with Sandbox() as sandbox:
        env = ArenaEnvironment(ArenaSettings(), sandbox)
        for task in TASKS:
            for difficulty in options.difficulties:
                found[f"{task} {difficulty}"] = {
                    name: round(mean(play(env, task, difficulty, seed) for seed in range(seeds)), 3)
                    for name, play in POLICIES.items()
                }
        env.close()
    rows = [(label, ", ".join(f"{n} {v:.2f}" for n, v in by_policy.items())) for label, by_policy in found.items()]
    value = max(by_policy[name] for by_policy in found.values() for name in BLIND)
    least = min(by_policy["reference"] for by_policy in found.values())
    rows += [("best of the blind", f"{value:.3f}"), ("worst of the reference", f"{least:.3f}")]
    holds = value < BLIND_MOST and least >= REFERENCE_LEAST
    target = f"< {BLIND_MOST}, reference >= {REFERENCE_LEAST}"
    report("arena_baselines", value, "mean reward", target, holds, {"seeds": seeds, "by_task": found}, rows)


if __name__ == "__main__":
    main()
