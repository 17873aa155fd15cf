"""A model host gives what a model here gives, to several at once, and nothing that a client sends harms it or others."""

import dataclasses
import json
import pickle
import socket
import struct
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mikit import paths
from mikit.errors import BadInput, MikitError
from mikit.evidence import open_evidence
from mikit.evidence.observe import logit_lens
from mikit.experiments.activation import text_activations
from mikit.experiments.near_tokens import by_embedding
from mikit.experiments.steering import changes, continuations, following_kl, prompt_sites
from mikit.runs import model_host
from mikit.runs.model_host import ModelHost, Request
from mikit.runs.prepare import make_evidence
from mikit.settings import make_params
from mikit.targets import Options
from mikit.targets.hooks import batch_of, logits, read_residual
from mikit.targets.remote import messages, served_target
from mikit.targets.remote.messages import Message, pack, receive, send, unpack

WORDS = "the quick red fox saw a river and the bank of a new apple was sweet"
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def address():
    """The socket of a host in threads of this process."""
    with tempfile.TemporaryDirectory(prefix="mikit-") as folder:
        path = Path(folder) / "s"
        host = ModelHost(path.parent)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen()
            for work in (lambda: host.listen(listener), host.compute):
                threading.Thread(target=work, daemon=True).start()
            yield path


@pytest.fixture(scope="module")
def remote(address):
    target = served_target(address, "planted", None, Options())
    yield target
    target.model.host_client.close()


@pytest.fixture
def line(address):
    """A connection that says what a test likes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(address))
        connection.settimeout(30)
        yield connection


def texts_of(target, n=6, grows=1):
    """Texts, each longer than the one before it, or all of one length."""
    words = target.ids_of(WORDS)
    return [words[i : i + 4 + grows * i] for i in range(n)]


# --- the same as here ---


def test_a_served_target_has_the_facts_and_the_sae_of_one_that_is_loaded(remote, planted):
    for name in ("name", "layer", "hook_point", "bos_id", "special_ids", "model_id", "model_hash", "tokenizer_hash",
                 "vocab_size", "computes_on", "default_corpus", "own_documents", "own_prompts"):  # fmt: skip
        assert getattr(remote, name) == getattr(planted, name), name
    assert remote.model.dtype == planted.model.dtype
    for name, value in vars(planted.sae).items():
        found = getattr(remote.sae, name)
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value, name


def test_texts_are_the_same_tokens_here_and_there(remote, planted):
    for text in (WORDS, "Anna, 12 <bos>!", "nosuchword é", ""):
        assert remote.ids_of(text) == planted.ids_of(text)
        assert remote.text_of(planted.ids_of(text)) == planted.text_of(planted.ids_of(text))
    assert remote.token_strings(range(50)) == planted.token_strings(range(50))


def test_activations_logits_and_edits_are_the_same_here_and_there(remote, planted):
    texts, sites = texts_of(planted), prompt_sites(texts_of(planted), "last_token")
    ids, mask = batch_of(planted, texts)
    torch.testing.assert_close(read_residual(remote, ids, mask), read_residual(planted, ids, mask), **CLOSE)
    torch.testing.assert_close(logits(remote, ids, mask, keep=2), logits(planted, ids, mask, keep=2), **CLOSE)
    for found, expected in zip(
        text_activations(remote, [3, 5], texts, 4), text_activations(planted, [3, 5], texts, 4), strict=True
    ):
        np.testing.assert_allclose(found, expected, **CLOSE)
    direction = torch.nn.functional.normalize(torch.ones(planted.sae.d_in), dim=0)
    changed = [dataclasses.replace(target, sae=target.sae.reading_along(3, direction)) for target in (remote, planted)]
    own = [text_activations(target, [3], texts, 4) for target in changed]
    for found, expected in zip(*own, strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)
    assert not np.allclose(own[0][0], text_activations(planted, [3], texts, 4)[0]), "it was another SAE"
    vectors, tokens = 5 * planted.sae.W_dec[:3], np.arange(10, 60)
    found, expected = changes(remote, sites, vectors, tokens, 8), changes(planted, sites, vectors, tokens, 8)
    np.testing.assert_allclose(found.logprob, expected.logprob, **CLOSE)
    np.testing.assert_allclose(found.kl, expected.kl, **CLOSE)
    assert expected.kl.max() > 0.01, "an edit that does nothing shows nothing"
    for vector in (None, vectors[0]):
        assert continuations(remote, sites, vector, 4, 8) == continuations(planted, sites, vector, 4, 8)
    written = [[7, 8, 9]] * len(sites)
    np.testing.assert_allclose(
        following_kl(remote, sites, written, vectors[0], 8),
        following_kl(planted, sites, written, vectors[0], 8),
        **CLOSE,
    )


def test_what_weights_tell_is_the_same_here_and_there(remote, planted):
    assert logit_lens(remote, 3) == logit_lens(planted, 3)
    others = np.arange(40, 400)
    assert by_embedding(remote, [30, 31], others) == by_embedding(planted, [30, 31], others)


def test_evidence_is_made_next_to_the_model_and_is_the_same_for_both(remote, planted):
    params = make_params({})
    make_evidence(remote, params.model_dump_json())
    [made] = (paths.outputs() / "evidence").glob("planted-*/meta.json")
    before = made.stat().st_mtime_ns
    assert open_evidence(remote, params).hash == open_evidence(planted, params).hash
    assert made.stat().st_mtime_ns == before


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
shapes = st.lists(st.integers(0, 3), max_size=3)


@given(plain, shapes, st.sampled_from(list(messages.DTYPES.values())), st.booleans())
def test_a_value_that_is_sent_arrives_as_it_was(value, shape, dtype, is_long):
    tensor = torch.randint(0, 2, shape).to(dtype)
    sent = (value, ["long"] * (20_000 if is_long else 1), (tensor, tensor.numpy()))
    one, other = socket.socketpair()
    with one, other:
        tensors = []
        told = pack(sent, tensors)
        writing = threading.Thread(target=send, args=(one, Message({"x": told}, tensors)))
        writing.start()
        arrived = receive(other, 1 << 20, 10)
        writing.join()
    found = unpack(arrived.head["x"], arrived.tensors)
    assert found[0] == value and found[1] == sent[1]
    assert torch.equal(found[2][0], tensor) and found[2][0].dtype == dtype
    np.testing.assert_array_equal(found[2][1], tensor.numpy())


# --- several at once ---


def request_of(remote, ids, mask=None, function=read_residual, **others):
    tensors = []
    told = {name: pack(value, tensors) for name, value in {"ids": ids, "mask": mask, **others}.items()}
    name = f"{function.__module__.removeprefix('mikit.')}.{function.__name__}"
    head = {"ask": name, "fingerprint": remote.model.host_client.fingerprint}
    return Request(Message(head | {"arguments": told}, tensors))


@pytest.fixture
def host(tmp_path, remote, monkeypatch):
    """A host that answers when a test says so, with what its forward passes were asked."""
    host = ModelHost(tmp_path)
    host._opened({"wanted": remote.model.host_client.wanted})
    passes = []
    function = model_host.SERVED["targets.hooks.read_residual"].function

    def counted(lm, ids, mask=None):
        passes.append(len(ids))
        return function(lm, ids, mask)

    entry = model_host.SERVED["targets.hooks.read_residual"]
    monkeypatch.setitem(model_host.SERVED, "targets.hooks.read_residual",
                        dataclasses.replace(entry, function=counted))  # fmt: skip
    host.passes = passes
    return host


def answers(host, requests):
    for request in requests:
        assert host.waiting.add(request)
    host.answer(host.waiting.take())
    return [unpack(request.reply.head["result"], request.reply.tensors) for request in requests]


def test_requests_of_two_clients_that_wait_together_are_answered_as_if_alone(host, remote, planted):
    ids, mask = batch_of(planted, texts_of(planted, grows=0))
    parts = [(ids[:2], mask[:2]), (ids[2:5], mask[2:5]), (ids[:2], mask[:2])]
    found = answers(host, [request_of(remote, *part) for part in parts])
    assert host.passes == [5], "one pass, with what two of them ask only once"
    for each, part in zip(found, parts, strict=True):
        torch.testing.assert_close(each, read_residual(planted, *part), **CLOSE)


def test_features_that_look_at_other_latents_share_the_pass_through_the_model(host, remote, planted):
    ids, mask = batch_of(planted, texts_of(planted, grows=0))
    reading, read = [], model_host.SERVED["experiments.activation.read_activations_here"]
    counted = dataclasses.replace(read, read=lambda *args, **more: reading.append(1) or read.read(*args, **more))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(model_host.SERVED, "experiments.activation.read_activations_here", counted)
        latents = [[3], [5, 7]]
        found = answers(host, [request_of(remote, ids, mask, read.function, latents=each) for each in latents])
    assert len(reading) == 1
    for each, expected in zip(found, latents, strict=True):
        torch.testing.assert_close(each, read.function(planted, ids, mask, expected), **CLOSE)


def test_what_does_not_fit_together_is_computed_apart(host, remote, planted):
    """Texts of unlike length neither: they are read several in a row."""
    ids, mask = batch_of(planted, texts_of(planted))
    padded, also_padded, whole = ((ids[rows], mask[rows]) for rows in (slice(1), slice(1, 3), slice(5, 6)))
    parts = [padded, also_padded, whole, (ids[:1, :5], None), (ids[-1:], None)]
    found = answers(host, [request_of(remote, *part) for part in parts])
    assert host.passes == [1, 2, 1, 1, 1]
    for each, part in zip(found, parts, strict=True):
        torch.testing.assert_close(each, read_residual(planted, *part), **CLOSE)


def test_no_pass_is_larger_than_a_batch(host, remote, planted):
    ids = torch.arange(30, 30 + 40)[:, None].expand(-1, 4)
    found = answers(host, [request_of(remote, ids[i : i + 10]) for i in range(0, 40, 10)])
    assert host.passes == [30, 10]
    torch.testing.assert_close(torch.cat(found), read_residual(planted, ids), **CLOSE)


def test_one_bad_request_among_others_fails_alone(host, remote, planted):
    good, bad = request_of(remote, torch.full((1, 4), 30)), request_of(remote, torch.full((1, 4), 10**6))
    for request in (bad, good):
        assert host.waiting.add(request)
    host.answer(host.waiting.take())
    assert "token 1000000: valid: 0 to" in bad.reply.head["error"]["line"]
    assert "result" in good.reply.head


def test_a_full_queue_sends_a_client_away_until_there_is_room(remote, address, planted, monkeypatch):
    ids = batch_of(planted, texts_of(planted, 1))[0]
    tries = []
    real = model_host.Waiting.add

    def full_twice(self, request):
        tries.append(request)
        return len(tries) > 2 and real(self, request)

    monkeypatch.setattr(model_host.Waiting, "add", full_twice)
    torch.testing.assert_close(read_residual(remote, ids), read_residual(planted, ids), **CLOSE)
    assert len(tries) == 3
    waiting = model_host.Waiting(limit=1)
    assert [real(waiting, Request(Message({}))) for _ in range(2)] == [True, False]


def test_a_target_that_had_to_make_room_is_opened_again(remote, address, planted, monkeypatch):
    ids = batch_of(planted, texts_of(planted, 1))[0]
    expected = read_residual(planted, ids)
    monkeypatch.setattr(model_host, "TARGETS", 1)
    other = served_target(address, "planted", None, Options(planted_seed=7))
    assert not torch.allclose(read_residual(other, ids), expected)
    torch.testing.assert_close(read_residual(remote, ids), expected, **CLOSE)
    other.model.host_client.close()


# --- what is refused ---


def reply_to(line, message):
    send(line, message)
    return receive(line, 1 << 20, 30).head


def test_another_fingerprint_is_refused_in_one_line(remote, line):
    request = request_of(remote, torch.zeros((1, 2), dtype=torch.long)).message
    error = reply_to(line, Message(request.head | {"fingerprint": "0123"}, request.tensors))["error"]["line"]
    assert "\n" not in error and "fingerprint 0123 is asked of a model host that holds" in error
    wanted = remote.model.host_client.wanted
    error = reply_to(line, Message({"ask": "open", "wanted": wanted, "fingerprint": "0123"}))["error"]["line"]
    assert "model, SAE or precision have changed" in error and "\n" not in error


def test_a_target_that_there_is_not_is_the_same_line_as_here(address):
    with pytest.raises(BadInput, match="planted has no SAE at layer 7: valid: 0"):
        served_target(address, "planted", 7, Options())


def test_an_edit_given_as_code_is_refused_before_it_is_sent(remote):
    with pytest.raises(MikitError, match=r"logits can't be asked of a model host: function is no data"):
        logits(remote, torch.zeros((1, 2), dtype=torch.long), edit=lambda residual: residual)


HEAD = {"ask": "targets.hooks.read_residual", "fingerprint": "0"}
FRAMES = {
    "noise": b"\xff" * 64,
    "a frame that is no JSON": struct.pack(">I", 4) + b"abcd",
    "a pickle": struct.pack(">I", len(pickle.dumps({"head": {}}))) + pickle.dumps({"head": {}}),
    "an object without a head": struct.pack(">I", 2) + b"{}",
    "a tensor of an unknown type": {"head": HEAD, "tensors": [["object", 1]]},
    "a tensor of negative size": {"head": HEAD, "tensors": [["float32", -1]]},
    "a tensor larger than its bytes": {"head": HEAD, "tensors": [["float32", 1 << 39]]},
    "more bytes than the tensors have": ({"head": HEAD, "tensors": []}, b"left over"),
    "deep nesting": struct.pack(">I", 200_000) + b"[" * 200_000,
    "a request that is too long": (
        {"head": HEAD, "tensors": [["uint8", messages.REQUEST_BYTES + 1]]}, messages.REQUEST_BYTES + 1,
    ),
}  # fmt: skip


def is_over(line):
    """Whether the host has closed the connection: with bytes left unread, the system calls that a reset."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def as_bytes(told):
    if isinstance(told, bytes):
        return told
    told, blob = told if isinstance(told, tuple) else (told, b"")
    text = json.dumps(told).encode()
    size, blob = (blob, b"") if isinstance(blob, int) else (len(blob), blob)
    return struct.pack(">I", len(text)) + text + struct.pack(">I", size) + blob


@pytest.mark.parametrize("name", FRAMES)
def test_what_is_no_request_is_answered_by_one_line_and_the_end_of_the_connection(name, line, remote, planted):
    line.sendall(as_bytes(FRAMES[name]))
    found = receive(line, 1 << 20, 30).head["error"]
    assert found["kind"] == "BadRequest" and "\n" not in found["line"]
    assert is_over(line)
    ids = batch_of(planted, texts_of(planted, 1))[0]
    torch.testing.assert_close(read_residual(remote, ids), read_residual(planted, ids), **CLOSE)


@pytest.mark.parametrize(
    "arguments, fault",
    [
        ({"ask": "os.system"}, "computes no 'os.system': valid: evidence."),
        ({"ask": "runs.model_host.main"}, "computes no"),
        ({"arguments": None}, "without arguments"),
        ({"arguments": {"nothing": {"json": 1}}}, "wrong arguments"),
        ({"arguments": {"ids": {"tensor": 99}}}, "a value that is no data"),
        ({"arguments": {"ids": {"json": "x"}}}, "model host, targets.hooks.read_residual: "),
    ],
)
def test_a_request_for_what_there_is_not_is_one_line(arguments, fault, line, remote):
    head = {"ask": "targets.hooks.read_residual", "fingerprint": remote.model.host_client.fingerprint}
    error = reply_to(line, Message(head | {"arguments": {}} | arguments))["error"]["line"]
    assert fault in error and "\n" not in error


def test_a_request_that_would_be_too_long_is_not_sent(remote, monkeypatch):
    monkeypatch.setattr("mikit.targets.remote.client.REQUEST_BYTES", 100)
    with pytest.raises(MikitError, match="with 800 bytes .valid: at most 100.: valid: a smaller batch"):
        read_residual(remote, torch.zeros((1, 100), dtype=torch.long))


def test_a_slow_client_holds_nobody_up_and_is_let_go(line, remote, planted, monkeypatch):
    monkeypatch.setattr(model_host, "SLOW_SECONDS", 0.2)
    line.sendall(as_bytes({"head": HEAD, "tensors": []})[:20])
    ids = batch_of(planted, texts_of(planted, 1))[0]
    torch.testing.assert_close(read_residual(remote, ids), read_residual(planted, ids), **CLOSE)
    assert is_over(line), "half a request is waited for no longer than that"


def test_a_host_that_has_ended_for_good_is_one_line(tmp_path):
    with pytest.raises(MikitError, match="has ended: start the sweep again"):
        served_target(tmp_path / "gone" / "s", "planted", None, Options())
