"""How much of the bare truncated forward's speed the evidence scan keeps, and how its memory grows with the corpus.

The same batches are read by both in the same run, in alternating order, so that what else the machine does falls on
both. The scan's time includes encoding all latents, keeping what is active, merging and writing the store.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _report import report

from mikit.evidence.corpora import Corpus, Document, corpus_of, load_corpus
from mikit.evidence.postings import PostingsWriter
from mikit.evidence.scan import Active, batches, bos_activations, by_length, read_active, scan
from mikit.evidence.store import Findings, identity, write
from mikit.evidence.windows import cut_windows
from mikit.settings import Params, make_params
from mikit.targets import Target, load_target
from mikit.targets.hooks import batch_of, read_residual

RATIO = 0.90
GROWTH_MIB = 64.0
"""Memory that ten times the tokens may add: the corpus itself and its windows are 20 to 30 MiB of it."""


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="target to scan")
    parser.add_argument("--tokens", type=int, default=32_768, help="content tokens to scan")
    parser.add_argument("--batch", type=int, default=Params().batch, help="windows in a forward pass")
    parser.add_argument(
        "--sizes", type=int, nargs=2, default=(100_000, 1_000_000), help="tokens between which memory is compared"
    )
    parser.add_argument("--peak-of", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak_of:
        print(peak_of_scan(given.peak_of))
        return
    target = load_target(given.model)
    speed = compare(target, given.tokens, given.batch)
    small, large = (_peak_in_a_process(size) for size in given.sizes)
    growth, (low, high) = large - small, speed["ratio_quartiles"]
    details = {**speed, "memory_growth_mib": round(growth, 1), "memory_growth_target_mib": GROWTH_MIB}
    rows = [
        ("tokens, latents, L0", f"{speed['tokens']:,}, {speed['latents']:,}, {speed['l0']:.1f}"),
        ("bare truncated forward", f"{speed['bare_tokens_per_second']:,.0f} tokens/s"),
        ("scan", f"{speed['scan_tokens_per_second']:,.0f} tokens/s"),
        ("merging and writing", f"{speed['finish_share']:.1%} of the bare forward's time"),
        ("ratio", f"{speed['ratio']:.3f} (target >= {RATIO}), quartiles over batches {low:.3f} to {high:.3f}"),
        (f"peak memory, {given.sizes[0]:,} tokens", f"{small:,.0f} MiB"),
        (f"peak memory, {given.sizes[1]:,} tokens", f"{large:,.0f} MiB"),
    ]
    holds = speed["ratio"] >= RATIO and growth <= GROWTH_MIB
    report("evidence_scan", round(speed["ratio"], 4), "of bare forward's tokens/s", f">= {RATIO}", holds, details, rows)


def compare(target: Target, tokens: int, batch: int) -> dict[str, Any]:
    """Read the same batches bare and as the scan does, turn about.

    Returns:
        The ratio of speeds, from the median over batches of their ratio and the share of merging and writing; and what else was measured.
    """
    params = make_params({"model": target.name, "layer": target.layer, "corpus_tokens": tokens, "batch": batch})
    corpus = load_corpus(target.default_corpus, target)
    table = cut_windows(target, corpus, params.protocol.window_tokens, tokens, params.document_tokens)
    bare, full, active = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        postings, massive = PostingsWriter(Path(folder) / "shards", target.sae.d_sae), 0

        def step(rows: np.ndarray, texts: list[list[int]]) -> Active:
            found = read_active(target, texts)
            postings.add(found.latent, rows[found.text], found.position, found.value)
            return found

        read_residual(target, *batch_of(target, [table.text(0)] * batch))
        for number, rows in enumerate(batches(by_length(table), batch)):
            texts = [table.text(row) for row in rows]
            ways: list[tuple[list[float], Callable]] = [
                (bare, lambda texts=texts: read_residual(target, *batch_of(target, texts))),
                (full, lambda rows=rows, texts=texts: step(rows, texts)),
            ]
            for seconds, way in ways if number % 2 else reversed(ways):
                started = time.perf_counter()
                found = way()
                seconds.append(time.perf_counter() - started)
                if isinstance(found, Active):
                    active, massive = active + len(found.value), massive + found.massive
        started = time.perf_counter()
        findings = Findings(table, bos_activations(target), massive, *postings.merge())
        write(Path(folder), identity(target, corpus, params), corpus.name, findings)
        finish = time.perf_counter() - started
    n_tokens = int(table.lengths.sum())
    slower = [b / a + finish / sum(bare) for a, b in zip(bare, full, strict=True)]
    low, middle, high = statistics.quantiles(slower, n=4)
    return {
        "ratio": 1 / middle,
        "ratio_quartiles": [1 / high, 1 / low],
        "tokens": n_tokens,
        "latents": target.sae.d_sae,
        "l0": active / n_tokens,
        "batch": batch,
        "threads": torch.get_num_threads(),
        "bare_tokens_per_second": n_tokens / sum(bare),
        "scan_tokens_per_second": n_tokens / (sum(full) + finish),
        "finish_share": finish / sum(bare),
        "peak_memory_mib": _peak_mib(),
    }


def peak_of_scan(tokens: int) -> float:
    """Scan so many tokens of made-up text in the planted model's words; this process's peak memory in MiB."""
    target = load_target("planted")
    params = make_params({"corpus_tokens": None, "document_tokens": None})
    with tempfile.TemporaryDirectory() as folder:
        scan(target, made_up(target, tokens), params, Path(folder) / "store")
    return _peak_mib()


def made_up(target: Target, tokens: int, document_tokens: int = 256) -> Corpus:
    """Documents of the target's words in random order."""
    rng = np.random.default_rng(0)
    words = np.array(" ".join(text for _, text in target.own_documents or ()).split())
    texts = (" ".join(rng.choice(words, document_tokens)) for _ in range(tokens // document_tokens))
    return corpus_of("made up", [Document(str(number), text) for number, text in enumerate(texts)])


def _peak_in_a_process(tokens: int) -> float:
    command = [sys.executable, __file__, "--peak-of", str(tokens)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _peak_mib() -> float:
    """This process's peak memory. On Linux `getrusage` counts in what its parent held when it was started."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


if __name__ == "__main__":
    main()
