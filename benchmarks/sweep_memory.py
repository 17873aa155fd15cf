"""Whether a sweep of many features stays as it began: no error, and kernels that need no more memory than after the tenth.

    python benchmarks/sweep_memory.py --features 100

Resident memory of each kernel is read at the end of every feature. The value is by how much the largest kernel at the end
exceeds the largest after the tenth feature; a leak of one model's weights a feature would be a hundred times the target.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time

import psutil
from _report import report

from mikit import paths
from mikit.runs import sweep as sweeping
from mikit.runs.sweep_spec import make_spec
from mikit.settings import make_params

TARGET_MIB, SETTLED = 64.0, 10


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="planted", help="target")
    parser.add_argument("--layer", type=int, default=0, help="its layer")
    parser.add_argument("--features", type=int, default=100, help="how many, from index 0 on (default 100)")
    parser.add_argument("--workers", type=int, default=2, help="kernels (default 2)")
    given = parser.parse_args()
    os.environ.update({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"})
    read: list[float] = []
    is_over = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MIKIT_OUTPUTS"] = folder
        params = make_params({"model": given.model, "layer": given.layer, "run": "many"})
        features = {"name": "many", "features": {"range": [0, given.features]}, "workers": given.workers}
        watcher = threading.Thread(target=watch, args=(read, is_over), daemon=True)
        watcher.start()
        started = time.perf_counter()
        result = sweeping.run_sweep(sweeping.Sweep(params, make_spec(features, params, "sweep_memory")))
        seconds = time.perf_counter() - started
        is_over.set()
        watcher.join()
    early, late = statistics.median(read[SETTLED - 5 : SETTLED + 5]), statistics.median(read[-10:])
    done = sum(entry.state == "done" for entry in result.entries)
    rows = [
        ("features done, failed", f"{done}, {len(result.failed)}"),
        ("seconds a feature", f"{seconds / max(1, done):.2f} with {given.workers} workers"),
        ("largest kernel about the tenth", f"{early:,.0f} MiB"),
        ("largest kernel at the end", f"{late:,.0f} MiB"),
        ("growth", f"{late - early:+,.0f} MiB (target <= {TARGET_MIB:g})"),
    ]
    details = {"done": done, "failed": len(result.failed), "seconds": seconds, "mib": [round(value) for value in read]}
    holds = late - early <= TARGET_MIB and done == given.features
    report("sweep_memory", round(late - early, 1), "MiB", f"<= {TARGET_MIB:g}, no error", holds, details, rows)


def watch(read: list[float], is_over: threading.Event) -> None:
    """Append the memory of the largest kernel whenever another feature is done."""
    while not is_over.wait(0.2):
        if len(list(paths.outputs().glob("layer-*/feature-*/many/trace.json"))) > len(read):
            read.append(largest_kernel())


def largest_kernel() -> float:
    """Resident memory of the largest kernel below this process, in MiB."""
    found = [0.0]
    for process in psutil.Process().children(recursive=True):
        try:
            if "ipykernel_launcher" in process.cmdline():
                found.append(process.memory_info().rss / 2**20)
        except psutil.NoSuchProcess:
            continue
    return max(found)


if __name__ == "__main__":
    main()
