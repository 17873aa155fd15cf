"""What was asked and paid: every request is written down before it is sent, and again when it is answered.

A line is appended to the ledger's file at each event, so that a process that is killed leaves behind what it spent. A
run counts a reply once, under the step and purpose that asked for it first, whether it was paid now or lay in the cache:
a run that is replayed costs in its trace what it cost when it was recorded.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mikit.llm.prices import Price, price_of
from mikit.llm.requests import Question, Reply
from mikit.trace import TokenCost


@dataclass
class Ledger:
    """The account of one run."""

    path: Path | None = None
    """JSON lines; None keeps it in memory."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    step: str = ""
    """What is being worked on."""
    used: dict[str, dict[str, TokenCost]] = field(default_factory=dict)
    """By step and purpose, since this process began."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[str, str] = {}
        self._counted: set[str] = set()
        self._open: set[str] = set()
        self.spent_tokens, self.spent_usd, self.sent, self.unpriced = 0, 0.0, 0, False
        self._most_tokens, self._most_usd = 0, 0.0
        self.lost = 0
        """Requests that earlier processes sent and did not live to see answered; their replies may have been paid for."""
        for line in _lines(self.path):
            self._take(line)
            if line.get("event") == "sent":
                self.lost += 1
                self._open.add(line["request"])
            elif line.get("event") in ("reply", "failed"):
                self.lost -= 1
                self._open.discard(line["request"])

    @property
    def most_tokens(self) -> int:
        """What was spent at most, each lost request counted as the dearest reply."""
        return self.spent_tokens + self.lost * self._most_tokens

    @property
    def most_usd(self) -> float:
        """The same in US dollars."""
        return self.spent_usd + self.lost * self._most_usd

    def _take(self, line: Mapping[str, Any]) -> None:
        event = line.get("event")
        if event == "sent":
            self.sent += 1
            # asked again: what an earlier process was sent for the same question is lost for good
            self._open.discard(line["request"])
        elif event == "reply":
            tokens, usd = line["prompt_tokens"] + line["completion_tokens"], line["usd"]
            self.spent_tokens += tokens
            self.spent_usd += usd or 0.0
            self._most_tokens, self._most_usd = max(self._most_tokens, tokens), max(self._most_usd, usd or 0.0)
            self.unpriced |= usd is None and bool(tokens)
        elif event == "first":
            self._first.setdefault(line["request"], line["step"])

    def note(self, event: str, question: Question, key: str, **facts: Any) -> None:
        """Write down that a request was sent, answered, or failed."""
        line = {"event": event, "step": self.step, "purpose": question.purpose, "model": question.model, "request": key}
        self._append(line | facts)

    def paid(self, question: Question, key: str, reply: Reply) -> None:
        """Write down what an answer cost."""
        tokens = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
        usd = self._usd(question.model, reply)
        self.note("reply", question, key, **tokens, cached_tokens=reply.cached_tokens, usd=usd, seconds=reply.seconds)

    def settle(self, question: Question, key: str, reply: Reply) -> None:
        """Write down a reply that lay in the cache, if a process of this run sent for it and died before it could."""
        with self._lock:
            if key not in self._open:
                return
            self._open.discard(key)
            self.lost -= 1
        self.paid(question, key, reply)

    def _append(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._take(line)
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _usd(self, model: str, reply: Reply) -> float | None:
        price = price_of(model, self.prices)
        return price.of(reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) if price else None

    def count(self, question: Question, key: str, reply: Reply, failed: bool) -> None:
        """Count a reply under the step that asked for it first, once a step and process."""
        with self._lock:
            fresh = key not in self._first
        if fresh:
            self.note("first", question, key)
        with self._lock:
            if self._first[key] != self.step or key in self._counted:
                return
            self._counted.add(key)
            usd = self._usd(question.model, reply)
            if usd is None and not reply.prompt_tokens + reply.completion_tokens:
                usd = 0.0
            cost = TokenCost(
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.completion_tokens,
                total_tokens=reply.prompt_tokens + reply.completion_tokens,
                cached_tokens=reply.cached_tokens,
                calls=1,
                failed_calls=int(failed),
                retries=reply.attempts - 1,
                seconds=reply.seconds,
                usd=usd,
            )
            by_purpose = self.used.setdefault(self.step, {})
            before = by_purpose.get(question.purpose)
            by_purpose[question.purpose] = cost if before is None else before + cost

    def refused(self, question: Question) -> None:
        """Count a question that was not asked, as the budget was spent."""
        with self._lock:
            by_purpose = self.used.setdefault(self.step, {})
            before = by_purpose.get(question.purpose, TokenCost(usd=0.0))
            by_purpose[question.purpose] = before + TokenCost(failed_calls=1, over_budget=1, usd=0.0)

    def begin(self, step: str) -> None:
        """Count from here on under this step, from nothing if it is done again."""
        with self._lock:
            self.step = step
            self.used.pop(step, None)
            self._counted -= {key for key, first in self._first.items() if first == step}

    def resume(self, step: str) -> None:
        """Go on with a step that another was part of."""
        self.step = step


def total(costs: Mapping[str, TokenCost]) -> TokenCost:
    """The sum over purposes; all zero, and no price, where there is none."""
    found = list(costs.values())
    if not found:
        return TokenCost()
    first, *rest = found
    for cost in rest:
        first = first + cost
    return first


def _lines(path: Path | None) -> Iterator[dict[str, Any]]:
    """The lines of a ledger; one that a kill has cut short is left out."""
    if path is None or not path.exists():
        return
    for text in path.read_text("utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line
