"""The client of language models, against a real server that misbehaves in every way that servers do."""

import json
import re
import time
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_server import Raw, completion, refusal, scripted

from mikit.errors import BadInput
from mikit.llm.cache import ReplyCache
from mikit.llm.client import Client, retry_after
from mikit.llm.failures import LlmFailure, LlmUnusable
from mikit.llm.ledger import Ledger, total
from mikit.llm.prices import Price, price_of, read_prices
from mikit.llm.replies import answer_of, mismatch
from mikit.llm.requests import Question, Reply
from mikit.llm.secrets import check_url, llm_key

SCHEMA = {
    "type": "object",
    "properties": {"claimed": {"type": "array", "items": {"type": "integer"}}},
    "required": ["claimed"],
    "additionalProperties": False,
}
GOOD = {"claimed": [1, 2]}
KEY = "sk-a-secret-that-nobody-may-see"


def question(user="which?", model="m", purpose="judge"):
    return Question(purpose, model, "answer in JSON", user, SCHEMA, max_tokens=50, temperature=0.0)


def client(server, tmp_path, **changes):
    given = {"timeout": 2.0, "attempts": 3, "concurrency": 1, "first_wait": 0.01} | changes
    ledger = Ledger(tmp_path / "ledger.jsonl")
    return Client(server.url, KEY, ReplyCache(tmp_path / "cache"), ledger, **given)


def sequence(*answers):
    """A script that gives these answers in turn, the last one ever after."""
    left = list(answers)
    return lambda _request: left.pop(0) if len(left) > 1 else left[0]


# --- twenty shapes of reply: a valid one never costs a second call ---

SHAPES = {
    "bare": '{"claimed": [1, 2]}',
    "spaced": '\n\n  {\n "claimed" : [ 1 ,\n 2 ] }\n',
    "fenced as json": '```json\n{"claimed": [1, 2]}\n```',
    "fenced": '```\n{"claimed": [1, 2]}\n```',
    "fenced, never closed": '```json\n{"claimed": [1, 2]}',
    "fences within fences": '````markdown\n```json\n{"claimed": [1, 2]}\n```\n````',
    "prose before": 'Here is what you asked for: {"claimed": [1, 2]}',
    "prose after": '{"claimed": [1, 2]}\nI hope that this helps! {smile}',
    "prose with braces around": 'Of {all of these} I choose {"claimed": [1, 2]} and not {those}.',
    "thinking aloud": '<think>maybe {"claimed": [9]}?</think>{"claimed": [1, 2]}',
    "byte-order mark": '\ufeff{"claimed": [1, 2]}',
    "trailing commas": '{"claimed": [1, 2,],}',
    "comments": '{\n// the first two\n"claimed": [1, 2]\n}',
    "single quotes": "{'claimed': [1, 2]}",
    "typographic quotes": "{\u201cclaimed\u201d: [1, 2]}",
    "a bare list": "[1, 2]",
    "an object in a list": '[{"claimed": [1, 2]}]',
    "wrapped": '{"answer": {"claimed": [1, 2]}}',
    "JSON in a JSON string": json.dumps('{"claimed": [1, 2]}'),
    "an extra part": '{"reason": "they fit, \\"both\\"", "claimed": [1, 2]}',
    "an example first": 'The form is {"claimed": ["..."]}. My answer:\n\n{"claimed": [1, 2]}',
    "line breaks inside a string": '{"reason": "one\ntwo", "claimed": [1, 2]}',
}


@pytest.fixture(scope="module")
def echo():
    """A server that answers with the text that the question holds."""
    with scripted(lambda request: request["messages"][-1]["content"]) as server:
        yield server


@pytest.mark.parametrize("shape", SHAPES)
def test_a_valid_object_in_any_shape_costs_one_call(echo, tmp_path, shape):
    before = len(echo.requests)
    answer = client(echo, tmp_path).ask(question(SHAPES[shape]))
    assert answer["claimed"] == [1, 2]
    assert len(echo.requests) == before + 1


@pytest.mark.parametrize(
    "kind, reply",
    [
        ("empty", Reply(text="")),
        ("empty", Reply(text=None)),
        ("empty", Reply(text="  \n")),
        ("refusal", Reply(text=None, refusal="I won't.")),
        ("refusal", Reply(text="", finish="content_filter")),
        ("refusal", Reply(text="I'm sorry, but I can't help with that.")),
        ("refusal", Reply(text="I can\u2019t assist with this request.")),
        ("truncated", Reply(text='{"claimed": [1, 2', finish="length")),
        ("malformed", Reply(text="the first and the second")),
        ("malformed", Reply(text='{"claimed": [1, 2')),
        ("wrong_schema", Reply(text='{"claimed": "all"}')),
        ("wrong_schema", Reply(text='{"other": 1}')),
        ("wrong_schema", Reply(text='{"claimed": [true]}')),
    ],
)
def test_a_reply_without_an_answer_is_a_failure_of_its_own_kind(kind, reply):
    with pytest.raises(LlmFailure) as caught:
        answer_of(reply, SCHEMA)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "kind, answer",
    [
        ("empty", completion("")),
        ("empty", completion(None)),
        ("empty", Raw(json.dumps({"choices": [{"message": None, "finish_reason": "stop"}]}))),
        ("refusal", completion(None, refusal="I won't.")),
        ("refusal", completion("", finish="content_filter")),
        ("truncated", completion('{"claimed": [1, 2', finish="length")),
        ("malformed", completion("the first and the second")),
        ("wrong_schema", {"claimed": "all"}),
    ],
)
def test_a_worthless_reply_costs_one_call_is_counted_and_is_not_paid_again(tmp_path, kind, answer):
    with scripted(lambda _: answer) as server:
        for _ in range(2):
            asking = client(server, tmp_path)
            with pytest.raises(LlmFailure) as caught:
                asking.ask(question())
            assert caught.value.kind == kind
            cost = asking.ledger.used[""]["judge"]
            assert (cost.calls, cost.failed_calls) == (1, 1)
    assert len(server.requests) == 1


@given(st.text(max_size=200))
def test_no_text_at_all_breaks_the_parser(text):
    try:
        assert mismatch(answer_of(Reply(text=text), SCHEMA), SCHEMA) is None
    except LlmFailure as failure:
        assert failure.kind in {"empty", "malformed", "wrong_schema", "refusal"}


@given(st.lists(st.integers(0, 99), max_size=5), st.text(max_size=40), st.text(max_size=40))
def test_an_object_is_found_in_any_prose_that_holds_no_bracket(numbers, before, after):
    plain = re.compile(r"[\[\]{}\"'`\\<>/\u201c\u201d\ufeff]")
    text = f"{plain.sub('', before)}\n{json.dumps({'claimed': numbers})}\n{plain.sub('', after)}"
    assert answer_of(Reply(text=text), SCHEMA) == {"claimed": numbers}


# --- faults of the way ---


@pytest.mark.parametrize(
    "fault",
    [
        refusal(429, "slow down", {"Retry-After": "0.05"}),
        refusal(429, "slow down"),
        refusal(500, "oh no"),
        refusal(503, "busy"),
        Raw("<html><body>Bad gateway</body></html>", 502, {"Content-Type": "text/html"}),
        Raw("<!DOCTYPE html><p>log in</p>", 200, {"Content-Type": "text/html"}),
        Raw('{"object": "something else"}'),
        Raw("not JSON at all"),
        Raw(json.dumps({"choices": [{"message": {"content": "x" * 900}}]}), reset=True),
    ],
    ids=["429 with", "429 without", "500", "503", "502 page", "200 page", "no choices", "no JSON", "reset"],
)
def test_a_fault_that_passes_is_asked_again_and_counted(tmp_path, fault):
    with scripted(sequence(fault, GOOD)) as server:
        asking = client(server, tmp_path)
        assert asking.ask(question()) == GOOD
    assert len(server.requests) == 2
    cost = asking.ledger.used[""]["judge"]
    assert (cost.calls, cost.retries, cost.failed_calls, cost.total_tokens) == (1, 1, 0, 110)


def test_a_wait_that_the_server_asks_for_is_kept(tmp_path):
    with scripted(sequence(refusal(429, "slow down", {"Retry-After": "0.4"}), GOOD)) as server:
        start = time.monotonic()
        client(server, tmp_path).ask(question())
    assert 0.4 <= time.monotonic() - start < 5


def test_a_wait_beyond_reason_is_a_failure_at_once(tmp_path):
    tomorrow = refusal(429, "come back tomorrow", {"Retry-After": "86400"})
    with scripted(lambda _: tomorrow) as server, pytest.raises(LlmFailure) as caught:
        client(server, tmp_path).ask(question())
    assert caught.value.kind == "rate_limit"
    assert len(server.requests) == 1


def test_a_date_to_wait_for_is_read():
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, lambda: 20.0) == 40.0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


def test_silence_is_given_up_after_the_time_out(tmp_path):
    with scripted(lambda _: Raw(silent=True)) as server:
        asking = client(server, tmp_path, timeout=0.2, attempts=2)
        with pytest.raises(LlmFailure) as caught:
            asking.ask(question())
    assert caught.value.kind == "timeout"
    assert asking.ledger.used[""]["judge"].failed_calls == 1


def test_a_server_that_answers_nothing_ends_the_run_in_one_line(tmp_path):
    with scripted(lambda _: refusal(500, "broken")) as server:
        asking = client(server, tmp_path, attempts=1)
        with pytest.raises(LlmUnusable, match="answered none of 3 questions") as caught:
            asking.ask_all([question(str(i)) for i in range(10)])
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_the_run_at_once_and_is_not_told(tmp_path, status):
    with scripted(lambda _: refusal(status, f"Incorrect API key provided: {KEY}")) as server:
        asking = client(server, tmp_path)
        for _ in range(3):
            with pytest.raises(BadInput, match="refuses the key") as caught:
                asking.ask_all([question(str(i)) for i in range(5)])
    assert KEY not in str(caught.value) and "\n" not in str(caught.value)
    assert len(server.requests) == 1


def test_an_unknown_model_ends_the_run_in_one_line(tmp_path):
    with scripted(lambda _: refusal(404, "no such model")) as server, pytest.raises(BadInput, match="LLM_MODEL"):
        client(server, tmp_path).ask(question())


def test_a_question_that_is_too_long_is_a_failure_and_no_reason_to_ask_otherwise(tmp_path):
    long = refusal(400, "This model's maximum context length is 8 tokens; max_tokens", code="context_length_exceeded")
    with scripted(lambda _: long) as server, pytest.raises(LlmFailure, match="too_long"):
        client(server, tmp_path).ask(question())
    assert len(server.requests) == 1


# --- what a model accepts ---


def picky(*unknown):
    """A model that refuses parameters by name, and names them."""

    def script(request):
        form = request.get("response_format", {}).get("type")
        for name in unknown:
            if name in request or name == form:
                return refusal(400, f"Unsupported parameter: '{name}' is not supported with this model.", param=name)
        return GOOD

    return script


@pytest.mark.parametrize(
    "unknown",
    [
        ["max_tokens"],
        ["max_tokens", "max_completion_tokens"],
        ["temperature"],
        ["json_schema"],
        ["response_format"],
        ["json_schema", "json_object", "temperature", "max_tokens"],
    ],
)
def test_a_parameter_that_a_model_does_not_take_is_left_out_and_probed_once(tmp_path, unknown):
    with scripted(picky(*unknown)) as server:
        assert client(server, tmp_path).ask(question("first")) == GOOD
        probes = len(server.requests)
        assert client(server, tmp_path).ask(question("second")) == GOOD
        assert len(server.requests) == probes + 1
    assert not set(unknown) & set(server.requests[-1])


def test_a_refusal_that_names_nothing_is_tried_without_a_format(tmp_path):
    with scripted(lambda r: refusal(400, "bad request") if "response_format" in r else GOOD) as server:
        assert client(server, tmp_path).ask(question()) == GOOD


def test_a_server_that_refuses_everything_gives_a_failure(tmp_path):
    with scripted(lambda _: refusal(400, "no")) as server, pytest.raises(LlmFailure, match="bad_request"):
        client(server, tmp_path).ask(question())
    assert len(server.requests) <= 4


# --- cache, replay, ledger, budget ---


def test_a_question_is_paid_once_whoever_asks_it_again(tmp_path):
    with scripted(lambda _: GOOD) as server:
        client(server, tmp_path).ask(question())
        client(server, tmp_path).ask(question())
        assert len(server.requests) == 1
        client(server, tmp_path).ask(question(model="another"))
        assert len(server.requests) == 2


def test_a_recorded_reply_answers_when_the_server_is_gone_and_counts_as_it_did(tmp_path):
    with scripted(sequence(refusal(500, "once"), GOOD)) as server:
        recorded = client(server, tmp_path)
        recorded.ask(question())
    replayed = Client(server.url, None, ReplyCache(tmp_path / "cache"), Ledger(), replay=True)
    assert replayed.ask(question()) == GOOD
    assert replayed.ledger.used == recorded.ledger.used
    assert replayed.ledger.spent_tokens == 0
    with pytest.raises(LlmUnusable, match="recorded"):
        replayed.ask(question("never asked"))


def test_a_damaged_reply_is_asked_for_again(tmp_path):
    with scripted(lambda _: GOOD) as server:
        client(server, tmp_path).ask(question())
        for path in (tmp_path / "cache").rglob("*.json"):
            path.write_text("{")
        assert client(server, tmp_path).ask(question()) == GOOD
    assert len(server.requests) == 2


def test_the_ledger_says_what_the_server_counted(tmp_path):
    answers = sequence(refusal(500, "x"), GOOD, completion("nothing", prompt=7, output=3), GOOD)
    with scripted(answers) as server:
        asking = client(server, tmp_path)
        for i in range(4):
            asking.ask_all([question(str(i))])
    again = Ledger(tmp_path / "ledger.jsonl")
    assert again.sent == len(server.requests) == 5
    assert again.spent_tokens == asking.ledger.spent_tokens == server.paid_tokens == 3 * 110 + 10
    cost = total(asking.ledger.used[""])
    assert (cost.calls, cost.failed_calls, cost.retries, cost.total_tokens) == (4, 1, 1, 340)
    assert cost.usd is None


def test_a_reply_that_was_kept_and_not_yet_written_down_at_a_kill_is_counted_later_and_once(tmp_path, monkeypatch):
    with scripted(lambda _: GOOD) as server:
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "paid", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                client(server, tmp_path).ask(question())
        for _ in range(3):
            asking = client(server, tmp_path)
            assert asking.ask(question()) == asking.ask(question()) == GOOD
            assert asking.ledger.spent_tokens == server.paid_tokens == 110
            assert asking.ledger.sent == len(server.requests) == 1


def test_a_ledger_is_priced_as_by_hand(tmp_path):
    ledger = Ledger(prices={"m*": Price(prompt=2.0, cached=0.5, completion=8.0)})
    asked = question()
    reply = Reply(text="{}", prompt_tokens=1000, cached_tokens=400, completion_tokens=50)
    ledger.count(asked, "k", reply, failed=False)
    ledger.count(asked, "k", reply, failed=False)
    assert ledger.used[""]["judge"].usd == pytest.approx((600 * 2.0 + 400 * 0.5 + 50 * 8.0) / 1e6)


def test_prices_come_from_a_file_and_the_longest_pattern_wins(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text('"a*": {prompt: 1, completion: 2}\n"a-b*": {prompt: 3, cached: 0, completion: 4}\n')
    prices = read_prices(path)
    assert price_of("a-b-c", prices) == Price(3, 0, 4)
    assert price_of("a", prices) == Price(1, 1, 2)
    assert price_of("b", prices) is None
    path.write_text("a: {prompt: -1, completion: 2}\n")
    with pytest.raises(BadInput, match="dollars"):
        read_prices(path)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_budget_of_tokens_is_exceeded_by_no_more_than_the_calls_in_flight(tmp_path, concurrency):
    with scripted(lambda _: GOOD) as server:
        asking = client(server, tmp_path, token_budget=1000, concurrency=concurrency)
        answers = asking.ask_all([question(str(i)) for i in range(30)])
    assert 1000 <= server.paid_tokens < 1000 + 110 * concurrency
    spent = [answer for answer in answers if isinstance(answer, LlmFailure)]
    assert {failure.kind for failure in spent} == {"budget"}
    assert len(spent) == 30 - server.paid_replies
    assert asking.ledger.used[""]["judge"].over_budget == len(spent)


def test_a_budget_holds_over_restarts(tmp_path):
    with scripted(lambda _: GOOD) as server:
        client(server, tmp_path, token_budget=200).ask_all([question(str(i)) for i in range(5)])
        client(server, tmp_path, token_budget=200).ask_all([question(str(i)) for i in range(5, 9)])
    assert server.paid_replies == 2


def test_a_budget_of_money_needs_a_price(tmp_path):
    with scripted(lambda _: GOOD) as server:
        asking = client(server, tmp_path, money_budget=1.0)
        with pytest.raises(BadInput, match="no price"):
            asking.ask_all([question(str(i)) for i in range(3)])
        priced = client(server, tmp_path / "b", money_budget=0.0005)
        priced.ledger.prices = {"m": Price(1.0, 1.0, 1.0)}
        priced.ask_all([question(str(i)) for i in range(30)])
    assert priced.ledger.spent_usd == pytest.approx(5 * 110 / 1e6)


# --- secrets ---


def test_a_key_comes_from_its_own_variable_then_a_file_then_the_common_one(tmp_path):
    file = tmp_path / "key"
    file.write_text("from-file\n")
    everything = {"LLM_API_KEY": "own", "LLM_API_KEY_FILE": str(file), "OPENAI_API_KEY": "common"}
    assert llm_key(everything) == "own"
    assert llm_key(everything | {"LLM_API_KEY": ""}) == "from-file"
    assert llm_key({"OPENAI_API_KEY": "common"}) == "common"
    assert llm_key({}) is None
    with pytest.raises(BadInput, match="can't be read"):
        llm_key({"LLM_API_KEY_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize("name", ["LLM_API_KEY", "LLM_API_KEY_FILE", "OPENAI_API_KEY"])
def test_a_key_that_can_be_none_is_refused_and_not_told(tmp_path, name):
    file = tmp_path / "key"
    for text in ("sk-two\nsk-lines", "sk-with space", "sk-\u00e9"):
        file.write_text(text)
        with pytest.raises(BadInput, match="the key alone") as caught:
            llm_key({name: str(file) if name == "LLM_API_KEY_FILE" else text})
        assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_a_key_that_the_server_sends_back_is_not_in_what_an_error_came_from(tmp_path, status):
    with scripted(lambda _: refusal(status, f"Incorrect API key provided: {KEY}")) as server:
        asking = client(server, tmp_path, attempts=1)
        with pytest.raises((BadInput, LlmFailure, LlmUnusable)) as caught:
            asking.ask(question())
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in shown and "Incorrect API key" in shown


@pytest.mark.parametrize(
    "url", ["ftp://x", "localhost:8000", "http://user:pass@host/v1", "https://host/v1?api_key=abc", "http://host/ x"]
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url):
    with pytest.raises(BadInput) as caught:
        check_url(url, "LLM_BASE_URL")
    assert "pass" not in str(caught.value) and "abc" not in str(caught.value)


@pytest.mark.parametrize("placeholder", ["x", "c", "EMPTY", "none"])
def test_a_key_that_stands_for_none_spoils_no_reply(tmp_path, placeholder):
    with scripted(lambda _: GOOD) as server:
        asking = Client(server.url, placeholder, ReplyCache(tmp_path / "cache"), Ledger())
        assert asking.ask(question()) == GOOD
    assert server.keys == [f"Bearer {placeholder}"]


def test_a_key_is_sent_and_never_written_even_if_the_server_sends_it_back(tmp_path):
    with scripted(sequence(refusal(500, f"for {KEY}"), completion(json.dumps(GOOD) + KEY, refusal=None))) as server:
        client(server, tmp_path).ask(question())
    assert server.keys[0] == f"Bearer {KEY}"
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) >= 2
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
