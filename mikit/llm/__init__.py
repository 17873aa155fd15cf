"""A language model behind an OpenAI-compatible server: asked with retries, remembered by request, counted and bounded."""

from mikit.llm.client import Client, open_client
from mikit.llm.failures import BudgetSpent, LlmFailure
from mikit.llm.requests import Question, Reply

__all__ = ["BudgetSpent", "Client", "LlmFailure", "Question", "Reply", "open_client"]
