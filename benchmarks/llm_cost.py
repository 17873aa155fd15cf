"""What a run with a language model asks for: calls and tokens by step and purpose, of one planted feature.

The answers are scripted: right, short and well formed, so that all gates pass and every step asks all that it asks in a
good run. Tokens are counted by SmolLM2's tokenizer. A pipeline that asks one question for each hypothesis and step comes
to 17 calls or more for three hypotheses.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _report import report

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from llm_server import completion, scripted
from planted_lab import TRUTH
from planted_writer import PerfectWriter

import mikit
from mikit.targets.smollm2 import weights_folder
from mikit.trace import TokenCost, Trace

FEATURE = "fruits"
OTHER_CALLS = 17
"""Calls of a pipeline that asks one question for each hypothesis and step, for three hypotheses."""
INPUTS = (
    "It fires on words that follow an article in a short sentence.",
    "It fires on the names of things that one can hold in a hand.",
)
OUTPUTS = (
    "It raises the probability of words for people.",
    "It raises the probability of short words that end a sentence.",
)
FRAME = 8
"""Tokens of a chat's frame around two messages."""


class Three(PerfectWriter):
    """Writes the truth and two hypotheses that are wrong, or as many as it is asked for; a rule beside them if told."""

    def __init__(self, n: int, with_rule: bool) -> None:
        super().__init__(FEATURE)
        self.n = n
        self.rule = [{"tokens": sorted(self.truth.own)}] if with_rule else None

    def write_input(self, _request: Any, _data: Any) -> dict[str, Any]:
        """The input hypotheses."""
        texts = [self.inputs[-1], *INPUTS][: self.n]
        return {"hypotheses": [{"text": text, "rule": self.rule} for text in texts]}

    def write_output(self, _request: Any, _data: Any) -> dict[str, Any]:
        """The output hypotheses."""
        texts = [self.outputs[-1], *OUTPUTS][: self.n]
        return {"hypotheses": [{"text": text, "direction": "promotes"} for text in texts]}


def main() -> None:
    """Run, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    count = counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"MIKIT_OUTPUTS": folder, "LLM_API_KEY": "none"}
        whole = run("three", Three(3, with_rule=False), count)
        one = run("one", Three(1, with_rule=False), count, max_hypotheses=1)
        ruled = run("ruled", Three(3, with_rule=True), count)
    rows = [
        (f"{step}, {purpose}", line(cost))
        for step, purposes in whole.provenance.ledger.items()
        for purpose, cost in purposes.items()
    ]
    rows += [
        ("all, three hypotheses an end", line(whole.meta.token_cost)),
        ("all, one hypothesis an end", line(one.meta.token_cost)),
        ("all, three, each with a rule", line(ruled.meta.token_cost)),
    ]
    cost = whole.meta.token_cost
    report(
        "llm_cost", cost.total_tokens, "tokens of a run with three hypotheses an end", "all gates pass",
        whole.meta.gate_pass.all_pass,
        {"calls": cost.calls, "prompt_tokens": cost.prompt_tokens, "completion_tokens": cost.completion_tokens,
         "calls_of_one_question_each": OTHER_CALLS, "ratio_of_calls": round(cost.calls / OTHER_CALLS, 1),
         "one_hypothesis": one.meta.token_cost.total_tokens, "with_rules": ruled.meta.token_cost.total_tokens}, rows,
    )  # fmt: skip


def counter() -> Callable[[str], int]:
    """How many tokens SmolLM2's tokenizer makes of a text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(weights_folder())
    return lambda text: len(tokenizer(text)["input_ids"])


def run(name: str, writer: Three, count: Callable[[str], int], **more: Any) -> Trace:
    """A run whose every reply is counted; no two runs share a reply."""

    def script(request: dict[str, Any]) -> Any:
        answer = json.dumps(writer(request))
        asked = sum(count(message["content"]) for message in request["messages"])
        return completion(answer, prompt=asked + FRAME, output=count(answer))

    with scripted(script) as server:
        return mikit.explain_feature(
            feature=TRUTH[FEATURE].index, run=name, explainer="llm", llm_model=name, llm_base_url=server.url,
            nulls=False, **more,
        )  # fmt: skip


def line(cost: TokenCost) -> str:
    """Calls and tokens."""
    return f"{cost.calls:3} calls {cost.prompt_tokens:7,} prompt tokens {cost.completion_tokens:6,} completion tokens"


if __name__ == "__main__":
    main()
