"""What a notebook costs beside the library that it calls: a = library alone, b = warm kernel, c = stock papermill.

    python benchmarks/sweep_overhead.py --features 3

The same features are explained three times: by the library in one process, by a sweep's worker in its warm kernel, and by
the fastest way stock papermill has: one driver process with papermill imported, one new kernel a notebook, saving once at
the end. The first feature of a and b loads the model and is left out; c loads it in each kernel that needs it, which is
what a stock run pays for. Each leaves a trace and its report, and all traces are found to be the same but for times. The
three take turns feature by feature, so that what else the machine does falls on all.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _report import report

from mikit import explain_feature, paths
from mikit.runs import work
from mikit.runs.directory import RunDirectory
from mikit.runs.engine import NOTEBOOKS, notebook_parameters
from mikit.runs.kernel import KERNEL_NAME, kernel_environment
from mikit.runs.report import write_report
from mikit.settings import Params, make_params
from mikit.trace import Trace, without_times

SECONDS, SHARE, RATIO = 0.5, 0.1, 8.0
LIVE = (170, 2329, 1620, 3826, 4066)
"""Features of the embedded SAE: nothing about the gates rests on them here."""


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="target")
    parser.add_argument("--layer", type=int, default=12, help="its layer")
    parser.add_argument("--features", type=int, default=3, help="how many are measured")
    parser.add_argument("--start", type=int, help="first index; a few known ones of the embedded SAE if not given")
    given = parser.parse_args()
    indices = LIVE if given.start is None else range(given.start, given.start + given.features + 1)
    warm_up, *measured = list(indices)[: given.features + 1]
    os.environ.update({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"})
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MIKIT_OUTPUTS"] = folder
        ways: dict[str, Callable[[Params], None]] = {"a": library, "b": warm, "c": stock}

        def params(feature: int, way: str) -> Params:
            return make_params({"model": given.model, "layer": given.layer, "feature": feature, "run": way})

        # evidence is made once, and whoever keeps something has it loaded
        for way in "ab":
            ways[way](params(warm_up, way))
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number, feature in enumerate(measured):
            names = list(ways)
            for way in names[number % 3 :] + names[: number % 3]:
                started = time.perf_counter()
                ways[way](params(feature, way))
                seconds[way].append(time.perf_counter() - started)
            found = [without_times(trace_of(params(feature, way)).model_dump(mode="json")) for way in ways]
            assert found.count(found[0]) == len(found), f"feature {feature}: the traces differ"
        work.close_all()
    a, b, c = (statistics.median(seconds[way]) for way in "abc")
    limit, ratio = SECONDS * len(NOTEBOOKS) + SHARE * a, (c - a) / max(b - a, 1e-9)
    rows = [
        ("features measured", f"{len(measured)} of {given.model}, layer {given.layer}; medians"),
        ("a: library alone", f"{a:.2f} s a feature"),
        ("b: warm kernel", f"{b:.2f} s a feature"),
        ("c: stock papermill, a kernel a notebook", f"{c:.2f} s a feature"),
        ("b - a", f"{b - a:.2f} s (target <= {limit:.2f}: {SECONDS} s a notebook and {SHARE:.0%} of a)"),
        ("(c - a) / (b - a)", f"{ratio:.1f} (target >= {RATIO:g})"),
        ("load average", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"),
    ]
    details = {"a": a, "b": b, "c": c, "limit_seconds": limit, "stock_over_warm": ratio, "seconds": seconds}
    details |= {"load": os.getloadavg()[0]}
    holds = b - a <= limit and c - a >= RATIO * (b - a)
    target = f"b - a <= {SECONDS} s a notebook + {SHARE} a, and c - a >= {RATIO:g} (b - a)"
    report("sweep_overhead", round((b - a) / a, 4), "of the library's time", target, holds, details, rows)


def library(params: Params) -> None:
    """The nine steps in this process, and the report."""
    write_report(explain_feature(**params.model_dump(mode="json")), RunDirectory(params).report_path)


def warm(params: Params) -> None:
    """The nine notebooks as a worker of a sweep runs them."""
    folder = paths.outputs() / "sweeps" / "overhead"
    told = {"repeats": 0, "cell_seconds": None, "growth_mib": 4096.0, "notebooks": None}
    outcome = work.run_feature(work.job_of(params.model_dump(mode="json"), {}, folder, **told))
    if outcome["state"] != "done":
        raise SystemExit(f"feature {params.feature}: {outcome['cause']}")


def stock(params: Params) -> None:
    """The nine notebooks by papermill as it comes, without its progress bar and its saving at every cell."""
    import papermill

    source, out = paths.notebooks() / "pipeline", paths.outputs() / "stock" / str(params.feature)
    out.mkdir(parents=True)
    os.environ.update(kernel_environment())
    for name in NOTEBOOKS:
        papermill.execute_notebook(
            str(source / f"{name}.ipynb"),
            str(Path(out) / f"{name}.ipynb"),
            notebook_parameters(params),
            kernel_name=KERNEL_NAME,
            language="python",
            progress_bar=False,
            request_save_on_cell_execute=False,
            shutdown_kernel="immediate",
        )
    write_report(trace_of(params), RunDirectory(params).report_path)


def trace_of(params: Params) -> Trace:
    """What a run found."""
    trace = RunDirectory(params).read_trace()
    assert trace is not None, f"feature {params.feature} has no trace"
    return trace


if __name__ == "__main__":
    main()
