"""Features that wait for a language model together: how much sooner a sweep ends than one after the other.

    python benchmarks/features_in_flight.py --delay 2 --features 8

Features of the planted model are explained twice by the same sweep, by a scripted language model on loopback that knows
the truth and answers after a fixed time: one feature after the other in one warm kernel that holds the model, and all of
them in flight, each in a light kernel that asks one model host. Nothing but the reports' times may differ.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _report import report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from llm_server import ScriptedServer, scripted
from planted_writer import TRUTH, Writers

from mikit.runs.sweep import Sweep, run_sweep
from mikit.runs.sweep_spec import make_spec
from mikit.settings import make_params
from mikit.trace import without_times

TARGET = 4.0
NAMES = ("fruits", "berries", "birds_or_professions", "royal_animals", "dairy", "spices", "harbour", "hand_tools",
         "officials", "lantern", "illnesses", "toys")  # fmt: skip
"""Features of the planted model that fire and move tokens, no two of them alike."""


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=2.0, help="seconds until the language model answers")
    parser.add_argument("--features", type=int, default=8, choices=range(2, len(NAMES) + 1), help="how many")
    given = parser.parse_args()
    names = NAMES[: given.features]
    writers = Writers(names)

    def slow(request: dict[str, Any]) -> Any:
        time.sleep(given.delay)
        return writers(request)

    os.environ.update({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"})
    with tempfile.TemporaryDirectory() as folder, scripted(slow) as server:
        os.environ["MIKIT_OUTPUTS"] = folder
        # the evidence is made before anything is measured; replies are not: each way has a cache of its own
        make_evidence()
        found = {}
        for way, in_flight in {"one after the other": 1, "in flight": len(names)}.items():
            os.environ["LLM_API_KEY"] = "none"
            found[way] = one_way(server, way.replace(" ", "-"), names, in_flight, Path(folder))
    (first, traces_one), (second, traces_all) = found.values()
    same = traces_one == traces_all
    confirmed = sum(bool(trace["meta"]["confirmed"]) for trace in traces_all)
    ratio = first["seconds"] / second["seconds"]
    rows = [
        ("features", f"{len(names)} of the planted model; the language model answers after {given.delay:g} s"),
        *(
            (f"{way}: {what}", text)
            for way, told in zip(found, (first, second), strict=True)
            for what, text in lines(told)
        ),
        ("ratio", f"{ratio:.2f} (target >= {TARGET:g})"),
        ("traces", f"{'the same' if same else 'DIFFERENT'} but for times; {confirmed} of {len(names)} confirmed"),
        ("load average", f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"),
    ]
    details = {"one": first, "in_flight": second, "same_traces": same, "confirmed": confirmed}
    report(
        "features_in_flight", round(ratio, 2), "times as fast", f">= {TARGET:g} and the same traces",
        ratio >= TARGET and same, details | {"delay": given.delay, "features": len(names)}, rows,
    )  # fmt: skip


def make_evidence() -> None:
    """The corpus pass of the planted model."""
    from mikit.runs import open_run

    _ = open_run(model="planted").store


def one_way(
    server: ScriptedServer, run: str, names: tuple[str, ...], in_flight: int, outputs: Path
) -> tuple[dict[str, float], list[Any]]:
    """Sweep over the features, so many in flight; what it took, and the traces without times."""
    params = make_params({"run": run, "explainer": "llm", "llm_model": "m", "llm_base_url": server.url, "nulls": False})
    features = [TRUTH[name].index for name in names]
    told = {"name": run, "features": features, "workers": 1, "in_flight": in_flight}
    asked, spent, started = len(server.requests), cpu_seconds(), time.monotonic()
    result = run_sweep(Sweep(params, make_spec(told, params, "benchmark")))
    seconds = time.monotonic() - started
    if result.failed or result.is_stopped:
        raise SystemExit(f"{run}: {[entry.cause for entry in result.failed]}")
    traces = [json.loads((outputs / entry.folder / "trace.json").read_text()) for entry in result.entries]
    # replies of the first way would answer the second
    (outputs / "llm-cache").rename(outputs / f"llm-cache-{run}")
    measured = {"seconds": seconds, "cpu": cpu_seconds() - spent, "questions": len(server.requests) - asked}
    return measured, [without_times(trace) for trace in traces]


def cpu_seconds() -> float:
    """Processor time of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def lines(told: dict[str, float]) -> list[tuple[str, str]]:
    """What one way took, for the table."""
    return [
        ("time", f"{told['seconds']:.1f} s"),
        ("processor", f"{told['cpu']:.1f} s"),
        ("questions", f"{told['questions']:.0f}"),
    ]


if __name__ == "__main__":
    main()
