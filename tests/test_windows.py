"""Windows: what they are cut from, what they never cross, and which texts they are."""

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mikit.errors import BadInput
from mikit.evidence.corpora import Document, corpus_of, load_corpus
from mikit.evidence.windows import cut_windows, first_ids
from mikit.targets.hooks import batch_of
from mikit.trace import SPLITS


@pytest.fixture(scope="module")
def words(planted):
    """Words that are one token each."""
    return sorted({word for _, text in planted.own_documents[:50] for word in text.split() if word.isalpha()})


def corpus(*texts):
    return corpus_of("test", [Document(f"d{number}", text) for number, text in enumerate(texts)])


def text_of(words, length, seed):
    return " ".join(random.Random(seed).choices(words, k=length))


def test_every_window_is_a_run_of_one_documents_tokens(planted):
    whole = load_corpus("planted", planted)
    table = cut_windows(planted, whole, 32, None, None)
    texts = {document.id: planted.ids_of(document.text) for document in whole.documents}
    for window in range(len(table)):
        ids, start = table.text(window), table.start[window]
        assert ids == texts[table.document_of(window)][start : start + len(ids)]
        assert start % 32 == 0


def test_no_document_and_no_text_is_in_two_splits(planted):
    documents = load_corpus("planted", planted).documents
    copies = [Document(f"copy-{document.id}", document.text) for document in documents]
    table = cut_windows(planted, corpus_of("twice", [*documents, *copies]), 32, None, None)
    by_split = [set(np.flatnonzero(table.in_split(split))) for split in SPLITS]
    assert sum(map(len, by_split)) == len(table)
    texts = [tuple(table.text(window)) for window in range(len(table))]
    assert len(set(texts)) == len(texts)
    splits = {}
    for window in range(len(table)):
        splits.setdefault(table.document_of(window), set()).add(table.split_of(window))
    assert all(len(found) == 1 for found in splits.values())


@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=6), width=st.integers(4, 32), limit=st.integers(8, 100)
)
def test_windows_tile_documents_and_short_ends_are_dropped(planted, words, lengths, width, limit):
    given_texts = corpus("", *(text_of(words, n, seed) for seed, n in enumerate(lengths)), text_of(words, 40, 99))
    table = cut_windows(planted, given_texts, width, None, limit)
    shortest = min(8, width)
    for number, document in enumerate(table.documents):
        text = next(d.text for d in given_texts.documents if d.id == document)
        n = min(len(planted.ids_of(text)), limit)
        kept = n - n % width if n % width < shortest else n
        assert table.lengths[table.document == number].sum() == kept
    assert table.lengths.min() >= shortest
    assert (table.lengths <= width).all()


def test_limits_bound_what_is_read(planted):
    whole = load_corpus("planted", planted)
    table = cut_windows(planted, whole, 32, 2_000, 64)
    assert 1_900 < table.lengths.sum() <= 2_000
    assert max(table.lengths[table.document == number].sum() for number in range(len(table.documents))) <= 64


def test_documents_are_read_in_order_of_their_ids_hash(planted):
    whole = load_corpus("planted", planted)
    shuffled = corpus_of("planted", random.Random(1).sample(whole.documents, len(whole)))
    one, other = (cut_windows(planted, c, 32, 3_000, 64) for c in (whole, shuffled))
    assert one.documents == other.documents
    assert (one.ids == other.ids).all()
    hashes = [hashlib.sha256(name.encode()).digest() for name in one.documents]
    assert hashes == sorted(hashes)


def test_special_tokens_written_in_a_text_are_no_content(planted, words):
    special = planted.tokenizer.decode([planted.bos_id])
    plain = text_of(words, 30, 0)
    half = len(plain.split()) // 2
    seamed = " ".join([special, *plain.split()[:half], special, *plain.split()[half:]])
    table = cut_windows(planted, corpus(seamed), 32, None, None)
    assert table.text(0) == planted.ids_of(plain)
    ids, mask = batch_of(planted, [table.text(0)])
    assert (ids == planted.bos_id).nonzero().tolist() == [[0, 0]]
    assert mask.all()


def test_a_corpus_of_short_texts_is_refused(planted, words):
    with pytest.raises(BadInput, match="no document of 8 tokens or more"):
        cut_windows(planted, corpus(text_of(words, 3, 0)), 32, None, None)


@given(limit=st.integers(1, 60), seed=st.integers(0, 20))
def test_the_beginning_of_a_text_is_tokenised_as_in_the_whole_text(planted, words, limit, seed):
    text = text_of(words, 400, seed)
    assert first_ids(planted, text, limit) == planted.ids_of(text)[:limit]


def test_windows_that_hold_a_token_are_found(planted, words):
    table = cut_windows(planted, corpus(text_of(words, 64, 3), text_of(words, 64, 4)), 32, None, None)
    token = table.text(1)[5]
    assert [token in table.text(window) for window in range(len(table))] == table.holding([token]).tolist()
    assert not table.holding([]).any()


@pytest.mark.smollm2
def test_a_chat_prompt_has_one_bos_and_no_special_token_as_content(smollm2):
    chat = [{"role": "user", "content": "Tell me of the river and of the bridge across it, please."}]
    text = smollm2.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    table = cut_windows(smollm2, corpus("<|endoftext|>" + text), 32, None, None)
    assert not smollm2.special_ids & set(table.text(0))
    ids, _ = batch_of(smollm2, [table.text(0)])
    assert (ids[0] == smollm2.bos_id).nonzero().flatten().tolist() == [0]


@pytest.mark.smollm2
def test_the_beginning_of_real_prose_is_tokenised_as_in_the_whole_text(smollm2):
    text = "Rivers, like roads (see below), cross 12 borders: naïve maps don't show that.\n" * 60
    assert first_ids(smollm2, text, 128) == smollm2.ids_of(text)[:128]
