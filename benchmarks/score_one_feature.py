"""How much faster 60 sentences are scored for one latent than one sentence at a time with full logits and all latents.

Both give the same peaks, which is checked, and both are timed in the same run, turn about. What is done differently:
blocks above the hook point and the unembedding are left out, sentences share a pass with hardly any padding, and one
encoder column is read where the other way reads all. The first two give nearly all of it, and the more the shorter the
sentences are: a pass over one short sentence takes about as long as reading the weights. By default sentences are as long
and share a pass as in a run.
"""

import argparse
import itertools
import re
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from _report import report

from mikit.evidence.corpora import load_corpus
from mikit.experiments.activation import peak_activations
from mikit.targets import Target, load_target
from mikit.targets.hooks import batch_of, logits
from mikit.targets.positions import ordinary_positions

RATIO = 8.0
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
SHORTEST = 6
"""Content tokens of a sentence at least."""


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="target")
    parser.add_argument("--feature", type=int, default=170, help="latent")
    parser.add_argument("--sentences", type=int, default=60, help="how many are scored")
    parser.add_argument("--longest", type=int, default=32, help="content tokens of a sentence at most")
    parser.add_argument("--batch", type=int, default=32, help="sentences in a forward pass")
    parser.add_argument("--rounds", type=int, default=5, help="times that each way is timed")
    given = parser.parse_args()
    target = load_target(given.model)
    texts = list(itertools.islice(sentences(target, given.longest), given.sentences))
    ways: dict[str, Callable[[], np.ndarray]] = {
        "one at a time": lambda: one_at_a_time(target, given.feature, texts),
        "batched, all latents": lambda: batched(
            target, list(range(target.sae.d_sae)), given.feature, texts, given.batch
        ),
        "batched": lambda: batched(target, [given.feature], 0, texts, given.batch),
    }
    first = {name: way() for name, way in ways.items()}
    largest = max(float(np.abs(first["batched"] - peaks).max()) for peaks in first.values())
    assert largest < 1e-3 * (1 + float(first["batched"].max())), f"the ways differ by {largest:.3g}"
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(given.rounds):
        for name in list(ways) if turn % 2 else reversed(list(ways)):
            started = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - started)
    ratios = [slow / fast for slow, fast in zip(seconds["one at a time"], seconds["batched"], strict=True)]
    columns = [slow / fast for slow, fast in zip(seconds["batched, all latents"], seconds["batched"], strict=True)]
    ratio, tokens = statistics.median(ratios), sum(map(len, texts))
    details = {
        "sentences": len(texts),
        "tokens": tokens,
        "longest": given.longest,
        "latents": target.sae.d_sae,
        "batch": given.batch,
        "threads": torch.get_num_threads(),
        "ratios": [round(value, 2) for value in ratios],
        "ratio_of_the_column_alone": round(statistics.median(columns), 3),
        "seconds": {name: round(statistics.median(values), 4) for name, values in seconds.items()},
        "largest_difference": largest,
        "firing": int((first["batched"] > 0).sum()),
    }
    rows = [
        ("sentences, tokens", f"{len(texts)}, {tokens:,}"),
        *((name, f"{statistics.median(values) * 1000:,.0f} ms") for name, values in seconds.items()),
        ("largest difference of a peak", f"{largest:.2g}"),
        (
            "ratio",
            f"{ratio:.1f} (target >= {RATIO:g}), in {given.rounds} rounds {min(ratios):.1f} to {max(ratios):.1f}",
        ),
        ("of it from the single column", f"{details['ratio_of_the_column_alone']}"),
    ]
    report("score_one_feature", round(ratio, 3), "times faster", f">= {RATIO:g}", ratio >= RATIO, details, rows)


def sentences(target: Target, longest: int) -> Iterator[list[int]]:
    """Content ids of sentences of the target's corpus, one a document in turn, of different lengths."""
    for document in load_corpus(target.default_corpus, target).documents:
        parts = (target.ids_of(part) for part in SENTENCE.split(document.text[:2000]))
        if fitting := [ids for ids in parts if SHORTEST <= len(ids) <= longest]:
            yield fitting[len(fitting) // 2]


@torch.inference_mode()
def one_at_a_time(target: Target, feature: int, texts: list[list[int]]) -> np.ndarray:
    """The plain way: for each sentence the whole model with its logits, then all latents, then the one that is wanted."""
    peaks = []
    for text in texts:
        ids, mask = batch_of(target, [text])
        seen: list[torch.Tensor] = []

        def read(residual: torch.Tensor, seen: list[torch.Tensor] = seen) -> torch.Tensor:
            seen.append(residual)
            return residual

        logits(target, ids, mask, read)
        acts = target.sae.encode(seen[0].float())[..., feature]
        peaks.append(float(acts[ordinary_positions(seen[0].float(), mask)].max()))
    return np.array(peaks)


def batched(target: Target, latents: list[int], column: int, texts: list[list[int]], batch: int) -> np.ndarray:
    """How the pipeline scores."""
    return peak_activations(target, latents, texts, batch)[0][:, column]


if __name__ == "__main__":
    main()
