"""How quick is a step of code in the sandbox, alone and with many sessions, beside a fresh Python process a step?

    python benchmarks/sandbox_latency.py

The value is the median time of a code step, in milliseconds, in one session. In the same run: the time to start a session, the
time of a fresh Python process that imports torch and runs the same code, and 32 sessions at once with 20 steps each, with the
memory of the zygote and all workers (proportional set size: a page that several share counts once).
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import psutil
from _report import report

from mikit.sandbox import Limits, Sandbox, Worker
from mikit.tasks import TASKS, make

CODE = "print(model)\nsum(p.detach().abs().sum().item() for p in model.parameters())"
FRESH = "import torch\nmodel = torch.nn.Linear(10, 1)\n" + CODE
STEP_MS, START_MS, QUICKER, STEPS_PER_S, GB = 5.0, 100.0, 200.0, 100.0, 2.0
SESSIONS, STEPS = 32, 20


def start(sandbox: Sandbox, number: int) -> Worker:
    """A session of one of the four tasks."""
    specimen = make(list(TASKS)[number % len(TASKS)], seed=number).specimen
    return sandbox.start(specimen.architecture, specimen.config, specimen.weights)


def timed(action: object, *arguments: object) -> tuple[float, object]:
    """Milliseconds of a call, and its result."""
    started = time.perf_counter()
    result = action(*arguments)  # type: ignore[operator]
    return 1e3 * (time.perf_counter() - started), result


def memory_gb(sandbox: Sandbox) -> float:
    """Of the zygote and its workers, shared pages counted once."""
    family = [psutil.Process(sandbox.pid), *psutil.Process(sandbox.pid).children(recursive=True)]
    return sum(process.memory_full_info().pss for process in family) / 1e9


def fresh_ms(times: int) -> float:
    """Median of a fresh Python process that does the same step."""
    return median(timed(subprocess.check_output, [sys.executable, "-c", FRESH])[0] for _ in range(times))


def at_once(sandbox: Sandbox, sessions: int, steps: int) -> tuple[float, int, float]:
    """Steps per second of `sessions` at once, how many steps went wrong, and the memory while all are there."""
    with ThreadPoolExecutor(sessions) as pool:
        workers = list(pool.map(lambda number: start(sandbox, number), range(sessions)))
        started = time.perf_counter()
        good = list(pool.map(lambda worker: sum(worker.run(CODE).good for _ in range(steps)), workers))
        seconds = time.perf_counter() - started
        memory = memory_gb(sandbox)
        for worker in workers:
            worker.close()
    return sessions * steps / seconds, sessions * steps - sum(good), memory


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="steps of the one session (default 300)")
    parser.add_argument("--starts", type=int, default=40, help="sessions started one after the other (default 40)")
    parser.add_argument("--fresh", type=int, default=5, help="fresh Python processes (default 5)")
    options = parser.parse_args()
    boot, sandbox = timed(lambda: Sandbox(Limits()))
    assert isinstance(sandbox, Sandbox)
    with sandbox:
        starts = []
        for number in range(options.starts):
            milliseconds, worker = timed(start, sandbox, number)
            starts.append(milliseconds)
            assert isinstance(worker, Worker)
            worker.close()
        with start(sandbox, 0) as worker:
            steps = [timed(worker.run, CODE)[0] for _ in range(options.steps)]
        fresh = fresh_ms(options.fresh)
        rate, wrong, memory = at_once(sandbox, SESSIONS, STEPS)
        level = sandbox.level
    step = median(steps)
    load = Path("/proc/loadavg").read_text().split()[0]
    holds = (
        step <= STEP_MS
        and median(starts) <= START_MS
        and fresh / step >= QUICKER
        and rate >= STEPS_PER_S
        and not wrong
        and memory <= GB
    )
    rows = [
        ("isolation", level),
        ("zygote ready", f"{boot / 1e3:.1f} s, once"),
        ("session start, median", f"{median(starts):.1f} ms"),
        ("code step, median and 95th percentile", f"{step:.2f} ms, {sorted(steps)[int(0.95 * len(steps))]:.2f} ms"),
        ("fresh Python process a step, median", f"{fresh:.0f} ms: {fresh / step:.0f} times as long"),
        (f"{SESSIONS} sessions x {STEPS} steps", f"{rate:.0f} steps/s, {wrong} wrong, {memory:.2f} GB"),
        ("load average beside it", load),
    ]
    details = {
        "isolation": level,
        "start_ms": round(median(starts), 2),
        "step_p95_ms": round(sorted(steps)[int(0.95 * len(steps))], 3),
        "fresh_process_ms": round(fresh, 1),
        "times_quicker": round(fresh / step, 1),
        "steps_per_s": round(rate, 1),
        "wrong_steps": wrong,
        "memory_gb": round(memory, 3),
        "zygote_s": round(boot / 1e3, 2),
        "load_average": float(load),
    }
    target = (
        f"<= {STEP_MS:g} ms; start <= {START_MS:g} ms; >= {QUICKER:g} x quicker than a fresh process; "
        f"{SESSIONS} sessions at >= {STEPS_PER_S:g} steps/s in <= {GB:g} GB"
    )
    report("sandbox_latency", round(step, 3), "ms", target, holds, details, rows)


if __name__ == "__main__":
    main()
