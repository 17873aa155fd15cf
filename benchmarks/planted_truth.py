"""Are the verdicts true? Planted features are explained, and gates and rules are held against what was planted.

    python benchmarks/planted_truth.py --seeds 1

For each declared feature of each seed of the planted model: the kind and the gates that the truth demands against those
found; precision and recall of the chosen rule on windows that no writer saw; and whether wrong explanations pass all
gates: right in all but one point, or lent from other features by random orders.
"""

import argparse
import os
import tempfile

from _report import report

from mikit.calibration import calibrate_planted, tables
from mikit.calibration.records import PlantedTrials
from mikit.settings import make_params

TARGET, GOOD_RULES, FALSE_PASSES = 0.9, 0.85, 0.02


def row(each: PlantedTrials) -> tuple[str, str]:
    """A feature with what is wrong about its verdicts, if anything."""
    [own] = each.of("own")
    wrong = [
        f"{end} {getattr(own.gates, end)}, not {wanted}"
        for end, wanted in each.true_gates.items()
        if getattr(own.gates, end) != wanted
    ]
    quality = each.feature_kind
    if each.rule_precision is not None and each.rule_recall is not None:
        quality = f"rule precision {each.rule_precision:.2f} recall {each.rule_recall:.2f}"
    return f"seed {each.seed}, {each.feature:>2} {each.name}", f"{quality:<36} {'; '.join(wrong)}".rstrip()


def main() -> None:
    """Explain all declared features for each seed, try wrong explanations, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="seeds of the planted model and of all draws (default 1)")
    parser.add_argument("--derangements", type=int, default=4, help="random orders a seed (default 4)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default 1)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("MIKIT_OUTPUTS", folder)
        params = make_params({"run": "planted-truth"})
        found, wrong = calibrate_planted(params, given.seeds, None, given.derangements, given.workers)
    summary = tables.planted_summary(found, wrong)
    rows = [row(each) for each in found]
    rows += [
        ("gates right", f"{tables.shown(summary.gates)} of {summary.gates.n}"),
        *((f"sensitivity, {end}", f"{tables.shown(s)} of {s.n}") for end, s in summary.sensitivity.items()),
        ("kinds right", f"{tables.shown(summary.kinds)} of {summary.kinds.n}"),
        ("rules with precision and recall >= 0.9", f"{tables.shown(summary.rules)} of {summary.rules.n}"),
        *((f"passes all gates: {what}", f"{tables.shown(s)} of {s.n}") for what, s in summary.wrong.items()),
    ]
    false_passes = 1 - (summary.specificity.value or 0.0)
    value = round(summary.gates.value or 0.0, 4)
    holds = value >= TARGET and (summary.rules.value or 0.0) >= GOOD_RULES and false_passes <= FALSE_PASSES
    details = {
        "seeds": given.seeds,
        "features": len(found),
        "confusion": {f"{end}: {wanted} -> {got}": n for (end, wanted, got), n in sorted(summary.confusion.items())},
        "kinds": summary.kinds.model_dump(),
        "rules": summary.rules.model_dump(),
        "wrong": {what: share.model_dump() for what, share in summary.wrong.items()},
        "false_passes": summary.specificity.n - round((summary.specificity.value or 0.0) * summary.specificity.n),
        "wrong_explanations": summary.specificity.n,
    }
    target = f">= {TARGET:.2f}, good rules >= {GOOD_RULES}, false passes <= {FALSE_PASSES}"
    report("planted_truth", value, "share of gates", target, holds, details, rows)


if __name__ == "__main__":
    main()
