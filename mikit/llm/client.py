"""The one place that speaks to a language model's server."""

import email.utils
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from mikit import paths
from mikit.errors import BadInput
from mikit.llm.cache import ReplyCache
from mikit.llm.dialect import TOO_LONG, Dialect, load_dialect, save_dialect
from mikit.llm.failures import OUTAGES, BudgetSpent, LlmFailure, LlmUnusable, Transient
from mikit.llm.ledger import Ledger
from mikit.llm.prices import read_prices
from mikit.llm.replies import answer_of
from mikit.llm.requests import Question, Reply
from mikit.llm.secrets import NO_KEY, check_url, hide, llm_key
from mikit.settings import Params

log = logging.getLogger(__name__)

Answer = dict[str, Any] | LlmFailure
"""What was asked for, or why it is not there."""
IN_A_ROW = 3
"""Questions that end in an outage, one after another, before the run is stopped: what follows would be worth nothing."""
LONGEST_WAIT = 120.0
"""Seconds; a server that asks for more is not waited for."""
TELLS = 300
"""Characters of a server's message that are passed on."""
RETRIED = {408, 409, 425, 429, 500, 502, 503, 504, 529}


@dataclass(eq=False)
class Client:
    """A server with its cache, its ledger and its limits. Safe to use from several threads."""

    base_url: str | None
    """None is OpenAI's own."""
    key: str | None
    cache: ReplyCache
    ledger: Ledger
    timeout: float = 60.0
    """Seconds without a byte before an attempt is given up."""
    attempts: int = 6
    concurrency: int = 4
    first_wait: float = 1.0
    """Seconds before the second attempt; doubled for each further one, with jitter."""
    token_budget: int | None = None
    money_budget: float | None = None
    """US dollars."""
    replay: bool = False
    """Whether only the cache answers."""
    _dialects: dict[str, Dialect] = field(default_factory=dict)
    _outages: int = 0
    _stopped: Exception | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._probing = threading.Lock()

    @cached_property
    def _server(self) -> Any:
        import openai

        # without an address the library would take one from the environment that no trace tells of
        url = self.base_url or "https://api.openai.com/v1"
        return openai.OpenAI(api_key=self.key or NO_KEY, base_url=url, timeout=self.timeout, max_retries=0)

    def ask(self, question: Question) -> dict[str, Any]:
        """The answer to a question, an object that fits its schema.

        Raises:
            LlmFailure: there is none; its kind says why, and the ledger counts it.
            BadInput: the server refuses the key, or knows no such model.
            LlmUnusable: too many questions in a row went unanswered.
        """
        key = question.key(self.base_url)
        reply = self.cache.get(key, outages=self.replay)
        if reply is None:
            reply = self._paid(question, key)
        elif not reply.failure:
            self.ledger.settle(question, key, reply)
        try:
            if reply.failure:
                raise LlmFailure(reply.failure, reply.detail)  # type: ignore[arg-type]
            answer = answer_of(reply, question.schema)
        except LlmFailure:
            self.ledger.count(question, key, reply, failed=True)
            raise
        self.ledger.count(question, key, reply, failed=False)
        return answer

    def ask_all(self, questions: Sequence[Question]) -> list[Answer]:
        """Each question's answer, or the failure in its place; several are asked at a time.

        Raises:
            BadInput, LlmUnusable: as for `ask`.
        """

        def settled(question: Question) -> Answer:
            try:
                return self.ask(question)
            except LlmFailure as failure:
                return failure

        if len(questions) < 2 or self.concurrency < 2:
            return [settled(question) for question in questions]
        with ThreadPoolExecutor(min(self.concurrency, len(questions))) as pool:
            return list(pool.map(settled, questions))

    # --- one reply ---

    def _paid(self, question: Question, key: str) -> Reply:
        """A reply from the server, in the cache before it is used."""
        if self.replay:
            self._stop(
                LlmUnusable(
                    f"no reply to a {question.purpose} question is recorded in {self.cache.folder}: valid: the run's own "
                    "parameters and prompts, or a run without llm_replay"
                )
            )
        started, sent = time.monotonic(), self._Counter()
        try:
            reply = self._with_retries(question, key, sent)
        except Transient as failure:
            detail = self._hidden(failure.args[0])
            self.cache.put(key, Reply(text=None, failure=failure.kind, detail=detail, attempts=sent.n))
            self.ledger.count(question, key, Reply(text=None, attempts=sent.n), failed=True)
            self._note_outage(failure.kind, detail)
            raise LlmFailure(failure.kind, detail) from None
        except LlmFailure as failure:
            if failure.kind == "budget":
                self.ledger.refused(question)
            else:
                lost = Reply(text=None, failure=failure.kind, detail=self._hidden(str(failure)), attempts=sent.n)
                self.cache.put(key, lost)
                self.ledger.count(question, key, lost, failed=True)
            raise
        self._outages = 0
        reply = reply.model_copy(update={"attempts": sent.n, "seconds": round(time.monotonic() - started, 3)})
        self.cache.put(key, reply)
        self.ledger.paid(question, key, reply)
        return reply

    class _Counter:
        n = 0

    def _with_retries(self, question: Question, key: str, sent: "_Counter") -> Reply:
        import tenacity

        def wait(state: tenacity.RetryCallState) -> float:
            failure = state.outcome.exception() if state.outcome else None
            backoff = self.first_wait * 2 ** (state.attempt_number - 1) * random.uniform(0.5, 1.5)
            asked = failure.wait if isinstance(failure, Transient) else None
            # as long as the server says and a little more, so that all who wait do not come back at once
            return min(backoff, LONGEST_WAIT) if asked is None else asked + random.uniform(0, min(self.first_wait, 1))

        def passes(failure: BaseException) -> bool:
            return isinstance(failure, Transient) and (failure.wait or 0) <= LONGEST_WAIT

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self.attempts),
            wait=wait,
            retry=tenacity.retry_if_exception(passes),
            reraise=True,
        )
        return retrying(self._in_its_dialect, question, key, sent)

    def _in_its_dialect(self, question: Question, key: str, sent: "_Counter") -> Reply:
        """One attempt; a parameter that the model does not take is left out, now and ever after."""
        while True:
            dialect = self._dialect(question.model)
            try:
                return self._attempt(question, key, dialect, sent)
            except _Refused as refused:
                with self._probing:
                    if self._dialect(question.model) != dialect:
                        continue
                    other = dialect.without(refused.complaint)
                    if other is None:
                        raise LlmFailure("bad_request", self._hidden(refused.complaint)[:TELLS]) from None
                    log.info("%s: a parameter was refused; asking in another form", question.model)
                    self._dialects[question.model] = other
                    save_dialect(self.cache.folder, self.base_url, question.model, other)

    def _dialect(self, model: str) -> Dialect:
        if model not in self._dialects:
            self._dialects[model] = load_dialect(self.cache.folder, self.base_url, model)
        return self._dialects[model]

    def _attempt(self, question: Question, key: str, dialect: Dialect, sent: "_Counter") -> Reply:
        import openai

        self._may_go_on()
        sent.n += 1
        self.ledger.note("sent", question, key)
        refused = None
        try:
            raw = self._server.chat.completions.with_raw_response.create(**dialect.arguments(question))
        except openai.APITimeoutError:
            self._failed(question, key, "timeout")
            raise Transient("timeout", f"nothing for {self.timeout:g} s") from None
        except openai.APIConnectionError as error:
            self._failed(question, key, "connection")
            why = f"{error}{': ' + str(error.__cause__) if error.__cause__ else ''}"
            raise Transient("connection", self._hidden(why)) from None
        except openai.APIStatusError as error:
            self._failed(question, key, f"status {error.status_code}")
            refused = error.response
        except openai.OpenAIError as error:
            self._failed(question, key, "malformed")
            raise Transient("server", self._hidden(str(error))[:TELLS]) from None
        if refused is not None:
            # not while the library's error is handled: it holds what the server said, the key perhaps, and a notebook
            # shows what an error came from
            self._sort(refused.status_code, refused.text, refused.headers, question)
        try:
            return self._read(raw.http_response.headers.get("content-type", ""), raw.text)
        except Transient as failure:
            self._failed(question, key, failure.kind)
            raise

    def _failed(self, question: Question, key: str, why: str) -> None:
        self.ledger.note("failed", question, key, why=why)

    def _may_go_on(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        ledger = self.ledger
        if self.token_budget is not None and ledger.most_tokens >= self.token_budget:
            raise BudgetSpent(f"{ledger.most_tokens} of {self.token_budget} tokens are spent")
        if self.money_budget is not None:
            if ledger.unpriced:
                self._stop(BadInput("llm_money_budget: the model has no price: add it to the file of llm_prices"))
            if ledger.most_usd >= self.money_budget:
                raise BudgetSpent(f"{ledger.most_usd:.4f} of {self.money_budget:g} dollars are spent")

    def _stop(self, error: Exception) -> NoReturn:
        """End this and every further question in the same way: one that can't be answered is not asked again."""
        self._stopped = error
        raise error

    def _sort(self, status: int, body: str, headers: Mapping[str, str], question: Question) -> NoReturn:
        """What an error of the server means."""
        said = self._hidden(" ".join(_message_in(body).split()))[:TELLS]
        where = self.base_url or "https://api.openai.com/v1"
        if status in (401, 403):
            keys = "LLM_API_KEY, LLM_API_KEY_FILE or OPENAI_API_KEY"
            self._stop(BadInput(f"{where} refuses the key ({status}: {said}): valid: one of its own in {keys}"))
        if status == 404:
            self._stop(
                BadInput(
                    f"{where} has no model {question.model!r}, or is not the address of an API ({said}): valid: a model "
                    "of that server in LLM_MODEL, and an address that ends in /v1 or the like in LLM_BASE_URL"
                )
            )
        if status in RETRIED or status >= 500:
            kind = "rate_limit" if status == 429 else "html" if _is_html(body) else "server"
            raise Transient(kind, f"status {status}: {said}", wait=retry_after(headers))  # type: ignore[arg-type]
        if TOO_LONG.search(said):
            raise LlmFailure("too_long", said)
        raise _Refused(said)

    def _read(self, content_type: str, body: str) -> Reply:
        """The reply in the body of a response."""
        if "html" in content_type or _is_html(body):
            raise Transient("html", f"a web page instead of an answer: {' '.join(body.split())[:80]}")
        try:
            given = json.loads(body)
            choice = given["choices"][0]
            message = choice.get("message") or {}
            usage = given.get("usage") or {}
            content = message.get("content")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise Transient("server", "a response without a choice") from None
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        details = usage.get("prompt_tokens_details") or {}
        refusal = message.get("refusal")
        return Reply(
            text=self._hidden(content) if isinstance(content, str) else None,
            finish=choice.get("finish_reason"),
            refusal=self._hidden(str(refusal)) if refusal else None,
            model=self._hidden(str(given.get("model") or "")),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            cached_tokens=int(details.get("cached_tokens") or 0),
        )

    def _hidden(self, text: str) -> str:
        return hide(text, [self.key])

    def _note_outage(self, kind: str, detail: str) -> None:
        if kind not in OUTAGES:
            return
        with self._lock:
            self._outages += 1
            if self._outages >= IN_A_ROW and self._stopped is None:
                where = self.base_url or "https://api.openai.com/v1"
                self._stopped = LlmUnusable(
                    f"{where} answered none of {IN_A_ROW} questions in a row ({detail[:120]}): see to the server or "
                    "LLM_BASE_URL; the replies so far are kept: the same command goes on from there"
                )
        if self._stopped is not None:
            raise self._stopped


class _Refused(Exception):
    """The server takes no request of this form."""

    def __init__(self, complaint: str) -> None:
        super().__init__(complaint)
        self.complaint = complaint


def _is_html(body: str) -> bool:
    return body.lstrip()[:15].lower().startswith(("<!doctype", "<html"))


def _message_in(body: str) -> str:
    """The text of an error, wherever a server puts it."""
    try:
        given = json.loads(body)
    except ValueError:
        return body[:TELLS]
    error = given.get("error", given.get("detail", given)) if isinstance(given, dict) else given
    if isinstance(error, dict):
        return " ".join(str(error[name]) for name in ("message", "param", "code") if error.get(name)) or str(error)
    return str(error)


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Seconds that a server asks to wait: a number or a date; None where it asks for nothing that can be read."""
    given = headers.get("retry-after", "").strip()
    try:
        return max(float(given), 0.0)
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(given).timestamp() - now(), 0.0)
    except (ValueError, TypeError):
        return None


def open_client(params: Params, ledger_path: Path | None) -> Client:
    """The client that params and environment describe.

    Args:
        params: `llm_...`.
        ledger_path: where the run's ledger lies; None keeps it in memory.

    Raises:
        BadInput: no model is named, the address is none, or a file can't be read.
    """
    if not params.llm_model:
        raise BadInput("explainer llm needs a model: valid: --llm-model NAME, or LLM_MODEL in the environment")
    key = llm_key(os.environ)
    if key is None and params.llm_base_url is None and not params.llm_replay:
        raise BadInput(
            "explainer llm needs a server: valid: a key in OPENAI_API_KEY, LLM_API_KEY or a file named in "
            "LLM_API_KEY_FILE, or the address of a server that wants none in LLM_BASE_URL"
        )
    prices_path = paths.existing(params.llm_prices) if params.llm_prices else paths.params() / "prices.yaml"
    if prices_path is None:
        raise BadInput(f"llm_prices = {params.llm_prices!r}: there is no such file")
    return Client(
        base_url=check_url(params.llm_base_url, "LLM_BASE_URL") if params.llm_base_url else None,
        key=key,
        cache=ReplyCache(paths.outputs() / "llm-cache"),
        ledger=Ledger(ledger_path, read_prices(prices_path) if prices_path.exists() else {}),
        timeout=params.llm_timeout,
        attempts=params.llm_retries + 1,
        first_wait=params.llm_first_wait,
        concurrency=params.llm_concurrency,
        token_budget=params.llm_token_budget,
        money_budget=params.llm_money_budget,
        replay=params.llm_replay,
    )
