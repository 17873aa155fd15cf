"""Corpora: what can be read, how documents are split, how wiki markup becomes prose, and activations for training."""

import bz2
import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mikit.errors import BadInput
from mikit.evidence import wikitext
from mikit.evidence.activations import cache_activations, chunks, draws, read_activations
from mikit.evidence.corpora import SHARES, Document, corpus_of, load_corpus, split_of
from mikit.evidence.vocabulary import Vocabulary, vocabulary_of
from mikit.targets.hooks import batch_of, read_residual


class TestReading:
    def test_a_text_file_has_a_document_a_paragraph(self, tmp_path):
        (tmp_path / "two.txt").write_text("The first one\nstill.\n\n\nThe second.\n\n   \n", "utf-8")
        corpus = load_corpus(str(tmp_path / "two.txt"))
        assert [document.text.strip() for document in corpus.documents] == ["The first one\nstill.", "The second."]
        assert corpus.name == "two.txt"

    def test_a_jsonl_file_has_a_document_a_line(self, tmp_path):
        rows = [{"id": 7, "text": "naïve"}, {"text": "second", "other": 1}]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows), "utf-8")
        documents = load_corpus(str(tmp_path / "rows.jsonl")).documents
        assert [(document.id, document.text) for document in documents] == [("7", "naïve"), ("2", "second")]

    def test_a_folder_has_a_document_a_text_file(self, tmp_path):
        for name in ("b.txt", "a.txt", "c.md"):
            (tmp_path / name).write_text(f"text of {name}", "utf-8")
        assert [document.id for document in load_corpus(str(tmp_path)).documents] == ["a.txt", "b.txt"]

    def test_a_target_brings_its_own(self, planted):
        for name in ("planted", "full"):
            corpus = load_corpus(name, planted)
            assert [(document.id, document.text) for document in corpus.documents] == list(planted.own_documents)

    @pytest.mark.parametrize(
        "name, content, fault",
        [
            ("none.txt", None, "unknown corpus .*none.txt.* valid: 'embedded', 'full', or the path"),
            ("empty.txt", b" \n\n \n", "'empty.txt' has no text in it"),
            ("latin.txt", "na\xefve".encode("latin-1"), "not readable as UTF-8"),
            ("torn.jsonl", b'{"text": "a"}\n{"text": ', "not readable"),
            ("nameless.jsonl", b'{"words": "a"}\n', "not readable .* 'text' field"),
            ("number.jsonl", b'{"text": 5}\n', "not readable .* 'text' field"),
            ("list.jsonl", b'["a"]\n', "not readable"),
            ("twice.jsonl", b'{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n', "two documents share an id"),
        ],
    )
    def test_what_cannot_be_read_is_named_in_one_line(self, tmp_path, name, content, fault):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=fault) as raised:
            load_corpus(str(tmp_path / name))
        assert "\n" not in str(raised.value)

    def test_a_changed_word_changes_the_hash(self):
        one, other = (corpus_of("c", [Document("a", text)]) for text in ("one word", "two words"))
        assert one.hash != other.hash
        assert one.hash == corpus_of("other name", [Document("a", "one word")]).hash

    def test_the_embedded_corpus_is_clean_prose(self):
        try:
            corpus = load_corpus("embedded")
        except BadInput as missing:
            pytest.skip(str(missing))
        assert len(corpus) > 400
        text = " ".join(document.text for document in corpus.documents)
        assert len(text) > 2_000_000
        assert not any(mark in text for mark in ("[[", "{{", "<ref", "|thumb", "px|"))

    def test_reading_a_corpus_needs_no_parser_of_wiki_markup(self):
        probe = "import sys, mikit.evidence.corpora; sys.exit('mwparserfromhell' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


class TestSplits:
    def test_shares_are_as_said(self):
        counts = Counter(split_of(f"document {number}") for number in range(20_000))
        assert all(abs(100 * counts[split] / 20_000 - share) < 1.5 for split, share in SHARES.items())

    @given(st.text(max_size=40))
    def test_the_id_alone_decides(self, key):
        assert split_of(key) == split_of(key) == Document(key, "one").split == Document(key, "other").split

    def test_a_split_stays_what_it_was(self):
        assert [split_of(key) for key in ("a", "b", "c", "wiki:Anarchism", "planted-00001")] == SPLITS_SINCE_EVER


SPLITS_SINCE_EVER = ["select", "explain", "explain", "confirm", "explain"]


class TestWikiMarkup:
    def test_running_text_stays(self):
        raw = "'''Rivers''' are [[stream|flowing water]] that runs towards an [[ocean]], a lake or another river."
        assert wikitext.prose(raw) == "Rivers are flowing water that runs towards an ocean, a lake or another river."

    @pytest.mark.parametrize(
        "markup",
        [
            "[[File:River.jpg|thumb|260px|A river with many words in its long caption of a picture]]",
            "{| class=wikitable\n| a cell with quite a lot of words in it, more than eight\n|}",
            "{{Infobox river | name = A river with a long name that has many words in it}}",
            "== A heading of a few words ==",
            "* [[a river]]\n* [[another river]], the long one",
            "<ref>A reference with quite a number of words in it, more than eight of them</ref>",
            "[[Category:Rivers with a long name of more than eight words in all here]]",
            "<math>a + b + c + d + e + f + g + h + i + j</math>",
            "== References ==\nWhat follows this heading is no prose of the article at all, so it goes.",
        ],
    )
    def test_everything_else_goes(self, markup):
        prose = "This is the only sentence of the article that anybody would want to read."
        assert wikitext.prose(f"{prose}\n\n{markup}\n") == prose

    def test_articles_are_read_from_a_dump_without_redirects(self, tmp_path):
        pages = [("A river", "Text of it."), ("Moved", "#REDIRECT [[A river]]"), ("A lake", "Other text.")]
        body = "".join(f"<page><title>{t}</title><revision><text>{x}</text></revision></page>" for t, x in pages)
        path = tmp_path / "dump.xml.bz2"
        path.write_bytes(bz2.compress(f'<mediawiki xmlns="http://x/">{body}</mediawiki>'.encode()))
        assert list(wikitext.articles(path)) == [("A river", "Text of it."), ("A lake", "Other text.")]


class TestActivations:
    def test_cached_rows_are_the_residual_stream_of_the_texts(self, planted, tmp_path):
        documents = load_corpus("planted", planted).documents[:5]
        written = cache_activations(planted, documents, tmp_path / "acts.f32", length=20, batch=3)
        rows = read_activations(tmp_path / "acts.f32", planted.sae.d_in)
        runs = list(chunks(planted, documents, 20))
        assert written == len(rows) == sum(map(len, runs))
        expected = [read_residual(planted, *batch_of(planted, [run]))[0, 1:].numpy() for run in sorted(runs, key=len)]
        assert np.allclose(rows, np.concatenate(expected), atol=1e-4)

    def test_every_row_is_drawn_once_before_any_is_drawn_again(self):
        rows = np.arange(12, dtype=np.float32)[:, None]
        batches = draws(rows, 4, seed=0)
        first, second = ([float(x) for _ in range(3) for x in next(batches)[:, 0]] for _ in range(2))
        assert sorted(first) == sorted(second) == rows[:, 0].tolist()
        assert first != second


class TestVocabulary:
    def test_only_printable_tokens_that_were_seen_are_eligible(self):
        vocabulary = Vocabulary(
            ("<bos>", " the", " ", "\n", "\ufffd", " rare"), np.array([9, 9, 9, 9, 9, 2]), frozenset([0])
        )
        assert vocabulary.eligible(5).tolist() == [False, True, False, False, False, False]
        assert vocabulary.eligible(2).tolist() == [False, True, False, False, False, True]

    def test_of_tokens_with_one_text_the_most_frequent_is_meant(self):
        assert Vocabulary(("a", "b", "a"), np.array([1, 0, 4]), frozenset()).id_of == {"a": 2, "b": 1}

    def test_texts_keep_their_leading_space(self, planted):
        vocabulary = vocabulary_of(planted, np.zeros(planted.vocab_size, int))
        assert len(vocabulary.texts) == planted.vocab_size
        assert any(text.startswith(" ") for text in vocabulary.texts)
