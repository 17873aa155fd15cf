"""Are the verdicts true? Every planted feature is explained, and its gates and its rule are held against the truth.

    python benchmarks/planted_truth.py --seeds 1

For each declared feature: the kind and the gates that the truth demands against those of the trace; precision and recall
of the chosen rule on windows that no writer saw; and whether another feature's explanation passes all gates.
"""

import argparse
import os
import tempfile
from collections import Counter

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

from _report import report

from mikit.explainers.rules import matches
from mikit.runs import explain, open_run
from mikit.targets.planted.truth import Truth, truths
from mikit.trace import Rule, Trace

TARGET = 0.9
ENDS = ("input", "output", "chain")


def rule_quality(rule: Rule, truth: Truth, texts: list[list[str]]) -> tuple[float, float]:
    """Precision and recall of a rule over windows, against where the feature is planted."""
    predicted = [bool(matches(rule, tokens)) for tokens in texts]
    true = [bool(truth.fires(tokens)) for tokens in texts]
    both = sum(p and t for p, t in zip(predicted, true, strict=True))
    return both / max(sum(predicted), 1), both / max(sum(true), 1)


def unseen_windows(seed: int) -> list[list[str]]:
    """Token texts of all windows outside `explain`."""
    run = open_run(model="planted", seed=seed)
    table, texts = run.store.table, run.vocabulary.texts
    rows = [i for i in range(len(table)) if table.split_of(i) != "explain"]
    return [[texts[token] for token in table.text(i)] for i in rows]


def chosen_rule(trace: Trace) -> Rule | None:
    """The rule of the hypothesis that was chosen."""
    end = trace.input_round
    return next((h.rule for h in end.hypotheses if h.id == end.eval.chosen), None) if end else None


def main() -> None:
    """Run all declared features for each seed and print the confusion matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="seeds of the run's random draws (default 1)")
    seeds = parser.parse_args().seeds
    confusion: Counter[tuple[str, str, str]] = Counter()
    rows, explained, passing_nulls, tried_nulls, kinds_right, features = [], [], 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MIKIT_OUTPUTS"] = folder
        for seed in range(seeds):
            texts = unseen_windows(seed)
            for truth in truths():
                if truth.gates is None:
                    continue
                trace = explain(model="planted", feature=truth.index, run=f"seed-{seed}", seed=seed)
                found = {end: getattr(trace.meta.gate_pass, end) for end in ENDS}
                confusion.update((end, truth.gates[end], found[end]) for end in ENDS)
                kinds_right += trace.meta.feature_kind == truth.feature_kind
                features += 1
                nulls = [null for name, null in trace.meta.nulls.items() if name != "random_reference"]
                tried_nulls += len(nulls)
                passing_nulls += sum(set(null.gates.values()) == {"pass"} for null in nulls)
                quality = ""
                if truth.rule and (rule := chosen_rule(trace)):
                    explained.append(rule_quality(rule, truth, texts))
                    quality = "rule precision {:.2f} recall {:.2f}".format(*explained[-1])
                wrong = [
                    f"{end} {found[end]}, not {truth.gates[end]}" for end in ENDS if found[end] != truth.gates[end]
                ]
                rows.append(
                    (f"{truth.index:>3} {truth.name}", f"{quality or trace.meta.feature_kind:<40} {'; '.join(wrong)}")
                )
    right = sum(n for (_, wanted, got), n in confusion.items() if wanted == got)
    total = sum(confusion.values())
    good_rules = sum(precision >= 0.9 and recall >= 0.9 for precision, recall in explained)
    rows += [
        ("gates right", f"{right} of {total}"),
        ("kinds right", f"{kinds_right} of {features}"),
        ("rules with precision and recall >= 0.9", f"{good_rules} of {len(explained)}"),
        ("another feature's explanation passes all gates", f"{passing_nulls} of {tried_nulls}"),
    ]
    details = {
        "seeds": seeds,
        "features": features,
        "confusion": {f"{end}: {wanted} -> {got}": n for (end, wanted, got), n in sorted(confusion.items())},
        "kinds_right": kinds_right,
        "rules": len(explained),
        "good_rules": good_rules,
        "false_passes": passing_nulls,
        "nulls": tried_nulls,
    }
    value = round(right / total, 4)
    holds = value >= TARGET and passing_nulls == 0
    report("planted_truth", value, "share of gates", f">= {TARGET:.2f}, no false pass", holds, details, rows)


if __name__ == "__main__":
    main()
