"""What all benchmarks print: a table for people, then one line of JSON for whoever collects them."""

import json
from typing import Any


def report(
    name: str, value: float, unit: str, target: str, holds: bool, details: dict[str, Any], rows: list[tuple[str, str]]
) -> None:
    """Print `rows` as a table of two columns, and as the last line the result.

    Args:
        name: the benchmark's, as in its file's name.
        value: a ratio or a count measured in this run.
        unit: of the value.
        target: what is aimed at, such as `>= 0.90`.
        holds: whether the value reaches it.
        details: everything else that was measured.
        rows: label and text.
    """
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        print(f"{label:<{width}}  {text}")
    result = {"name": name, "value": value, "unit": unit, "target": target, "holds": holds, "details": details}
    print(json.dumps(result, allow_nan=False))
