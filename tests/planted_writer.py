"""A scripted language model that knows one planted feature: it reads the very prompts that a real one would be given."""

import json
import re
from collections.abc import Sequence
from typing import Any

from planted_lab import TRUTH

from mikit.targets.planted.truth import Truth

DATA = re.compile(r"<data (\w+)>\n(.*?)\n</data \1>", re.DOTALL)


def data_in(request: dict[str, Any]) -> list[Any]:
    """The material in a prompt, in order."""
    return [json.loads(text) for _, text in DATA.findall(request["messages"][-1]["content"])]


def role_of(request: dict[str, Any]) -> str:
    schema = request["response_format"]["json_schema"]["schema"]["properties"]
    if "hypotheses" in schema:
        parts = schema["hypotheses"]["items"]["properties"]
        return "write_output" if "direction" in parts else "write_input"
    names = {"silent": "author", "fires": "judge_windows", "claimed": "judge_tokens", "score": "plausibility"}
    return next(role for name, role in names.items() if name in schema)


def tokens_of(text: str) -> list[str]:
    """Tokens of the planted model: words and marks, most with a space before them."""
    return re.findall(r" ?[^\W_]+| ?[^\w\s]", text)


class PerfectWriter:
    """Answers as the truth of a feature has it; `wrong` texts are written first, and judged by what they mention."""

    def __init__(self, name: str, wrong_input: str | None = None, wrong_output: str | None = None) -> None:
        self.truth: Truth = TRUTH[name]
        self.inputs = [*filter(None, [wrong_input]), f"It fires on words of the group {name}."]
        self.outputs = [*filter(None, [wrong_output]), f"It moves words that belong to {name}."]
        self.asked: list[str] = []

    def __call__(self, request: dict[str, Any]) -> Any:
        role = role_of(request)
        self.asked.append(role)
        return getattr(self, role)(request, data_in(request))

    def _next(self, options: Sequence[str], data: Sequence[Any]) -> str:
        """The first that is not among those tried before."""
        tried = {each["tried before, and failed"] for part in data if isinstance(part, list) for each in part
                 if isinstance(each, dict) and "tried before, and failed" in each}  # fmt: skip
        return next((text for text in options if text not in tried), options[-1])

    def write_input(self, _request, data):
        return {"hypotheses": [{"text": self._next(self.inputs, data), "rule": None}]}

    def write_output(self, _request, data):
        way = "promotes" if self.truth.promotes else "suppresses"
        return {"hypotheses": [{"text": self._next(self.outputs, data), "direction": way}]}

    def _means_it(self, hypothesis: str) -> bool:
        return hypothesis in (self.inputs[-1], self.outputs[-1])

    def _fires(self, hypothesis: str, text: str) -> bool:
        fires = bool(self.truth.fires(tokens_of(text)))
        return fires if self._means_it(hypothesis) else " the" in text

    def author(self, request, data):
        hypothesis, style = data
        [n_fires, n_silent] = map(
            int, re.findall(r"Write (\d+) texts.*? and (\d+) near", request["messages"][-1]["content"])[0]
        )
        part = int(re.search(r"part (\d+) of", request["messages"][-1]["content"])[1])
        words = [token for text in style for token in tokens_of(text)]
        words = [word for word in words if word.isascii() and word.strip().isalpha() and word not in self.truth.own]
        words = [word if word.startswith(" ") else f" {word}" for word in words if word not in self.truth.faint]
        own, cues = sorted(self.truth.own), sorted(self.truth.cues)

        def around(i: int, middle: list[str]) -> str:
            shift = (part * 37 + i * 3) % len(words)
            turned = (words + words)[shift : shift + 12]
            return "".join([*turned[:6], *middle, *turned[6:]]).strip()

        if not self._means_it(hypothesis):
            return {
                "fires": [around(i, [" the"]) for i in range(n_fires)],
                "silent": [around(i + 50, [" a"]) for i in range(n_silent)],
            }
        fires = [around(i, [*cues[:1], own[(i + part) % len(own)]]) for i in range(n_fires)]
        return {"fires": fires, "silent": [around(i + 50, []) for i in range(n_silent)]}

    def judge_windows(self, _request, data):
        hypothesis, texts = data
        return {"fires": [int(number) for number, text in texts.items() if self._fires(hypothesis, text)]}

    def judge_tokens(self, _request, data):
        hypothesis, tokens = data
        moved = (self.truth.promotes or self.truth.suppresses) if self._means_it(hypothesis) else {" the", " a", " of"}
        return {"claimed": [int(number) for number, token in tokens.items() if token in moved]}

    def plausibility(self, _request, _data):
        return {"score": 4}


class Writers:
    """A perfect writer for each of several features: a question goes to the one whose feature it is about."""

    def __init__(self, names: Sequence[str]) -> None:
        self.writers = {name: PerfectWriter(name) for name in names}

    def __call__(self, request: dict[str, Any]) -> Any:
        role, data = role_of(request), data_in(request)
        if role == "plausibility":
            return {"score": 4}
        named = re.search(r"(?:of the group|belong to) (\w+)\.", json.dumps(data))
        return self.writers[named[1] if named else self._about(role, data)](request)

    def _about(self, role: str, data: Sequence[Any]) -> str:
        """The feature whose own tokens are shown most: those on which it fires, or those that it moves."""
        if role == "write_input":
            shown = [token for window in data[0] for token, _ in window["active"][:1]]
        else:
            shown = [*data[0], *data[1]]

        def held(name: str) -> float:
            truth = self.writers[name].truth
            own = truth.own if role == "write_input" else truth.promotes | truth.suppresses
            return sum(token in own for token in shown)

        return max(self.writers, key=held)
