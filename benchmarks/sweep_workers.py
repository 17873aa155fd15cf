"""How much faster two workers finish the same features than one, with one thread of torch each.

    python benchmarks/sweep_workers.py --features 10 --rounds 3

Each sweep starts its kernels anew and reads evidence that is there. One and two workers take turns. The value is the median
of the ratios of neighbouring sweeps.
"""

import argparse
import os
import statistics
import tempfile
import time

from _report import report

from mikit.runs import sweep as sweeping
from mikit.runs.sweep_spec import make_spec
from mikit.settings import make_params

RATIO = 1.5


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="planted", help="target")
    parser.add_argument("--layer", type=int, default=0, help="its layer")
    parser.add_argument("--features", type=int, default=10, help="of each sweep, from index 0 on (default 10)")
    parser.add_argument("--rounds", type=int, default=3, help="sweeps with one and with two workers each (default 3)")
    given = parser.parse_args()
    os.environ.update({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "OMP_NUM_THREADS": "1"})
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MIKIT_OUTPUTS"] = folder
        swept(given, "first", 1, 1)  # makes the evidence
        for turn in range(given.rounds):
            for workers in (1, 2) if turn % 2 else (2, 1):
                seconds[workers].append(swept(given, f"w{workers}-{turn}", workers, given.features))
    ratios = [one / two for one, two in zip(seconds[1], seconds[2], strict=True)]
    ratio = statistics.median(ratios)
    rows = [
        ("features a sweep", f"{given.features} of {given.model}"),
        *((f"{n} worker{'s' * (n > 1)}", f"{statistics.median(values):.1f} s") for n, values in seconds.items()),
        (
            "ratio",
            f"{ratio:.2f} (target >= {RATIO:g}), in {given.rounds} rounds {min(ratios):.2f} to {max(ratios):.2f}",
        ),
        ("load average", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"),
    ]
    details = {"seconds": seconds, "ratios": ratios, "load": os.getloadavg()[0]}
    report("sweep_workers", round(ratio, 3), "times faster", f">= {RATIO:g}", ratio >= RATIO, details, rows)


def swept(given: argparse.Namespace, run: str, workers: int, n: int) -> float:
    """Seconds that a sweep of the first n features takes."""
    params = make_params({"model": given.model, "layer": given.layer, "run": run})
    spec = make_spec({"name": run, "features": {"range": [0, n]}, "workers": workers}, params, "sweep_workers")
    started = time.perf_counter()
    result = sweeping.run_sweep(sweeping.Sweep(params, spec))
    if result.failed:
        raise SystemExit(f"feature {result.failed[0].feature}: {result.failed[0].cause}")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
