"""A question to a language model, and what came back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from mikit.files import value_hash


@dataclass(frozen=True)
class Question:
    """What is asked of a model."""

    purpose: str
    """Role under which it is counted, such as `writer`."""
    model: str
    system: str
    """What the model is told to do."""
    user: str
    """What it is told to do it on."""
    schema: Mapping[str, Any]
    """JSON schema of the answer, an object."""
    max_tokens: int
    temperature: float

    def key(self, base_url: str | None) -> str:
        """Hash of the request: everything that the reply follows from, no secret among it."""
        return value_hash(
            [base_url, self.model, self.system, self.user, dict(self.schema), self.max_tokens, self.temperature]
        )


class Reply(BaseModel):
    """What came back for one question, as it lies in the cache."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str | None
    """None for no text at all."""
    finish: str | None = None
    """Why the model stopped."""
    refusal: str | None = None
    failure: str | None = None
    """Kind of an outage that outlasted all attempts; asked again unless replies are only replayed."""
    detail: str = ""
    model: str = ""
    """As the server names it."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the server had in a cache of its own."""
    attempts: int = 1
    """Requests sent for it, failed ones among them."""
    seconds: float = 0.0
