"""What tokens cost: by model, from a file that the user edits."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from mikit import strict_yaml
from mikit.errors import BadInput

PARTS = ("prompt", "cached", "completion")


@dataclass(frozen=True)
class Price:
    """US dollars for a million tokens."""

    prompt: float
    cached: float
    """Prompt tokens that the server had in its cache."""
    completion: float

    def of(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float:
        """Dollars; the cached tokens are among the prompt's."""
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.prompt + cached_tokens * self.cached + completion_tokens * self.completion) / 1e6


def read_prices(path: Path) -> dict[str, Price]:
    """Prices by model, a name with `*` for many.

    Raises:
        BadInput: the file can't be read, or a price is no number of at least 0.
    """
    prices = {}
    for name, given in strict_yaml.read_mapping(path).items():
        parts = given if isinstance(given, dict) else {}
        values = [parts.get("prompt"), parts.get("cached", parts.get("prompt")), parts.get("completion")]
        good = all(isinstance(v, int | float) and not isinstance(v, bool) and v >= 0 for v in values)
        if not good or not set(parts) <= set(PARTS):
            raise BadInput(f"{path}: {name}: valid: prompt, completion and perhaps cached, dollars a million tokens")
        prices[str(name)] = Price(*(float(v) for v in values if v is not None))
    return prices


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The price of a model: under its own name, else under the longest pattern that fits; None where none is known."""
    if model in prices:
        return prices[model]
    fitting = sorted((name for name in prices if fnmatchcase(model, name)), key=len)
    return prices[fitting[-1]] if fitting else None
