"""What strangers hand over: odd paths, hostile text, damaged files. Each is told in one line, or mended."""

import json
import os

import builders
import pytest

from mikit import explain_feature, paths
from mikit.errors import BadInput, MikitError, StepFailed
from mikit.evidence import corpora
from mikit.evidence.corpora import load_corpus
from mikit.runs import engine
from mikit.runs.directory import RunDirectory
from mikit.runs.freshness import sources_hash
from mikit.runs.kernel import Keeper
from mikit.runs.report import summary
from mikit.settings import make_params
from mikit.settings_sources import effective, from_assignments
from mikit.strict_yaml import parse
from mikit.targets import smollm2


class TestCorpora:
    @pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-this-name/x", "a\0b", "\udcff", os.devnull])
    def test_what_is_no_path_is_an_unknown_corpus(self, name):
        with pytest.raises(BadInput, match="unknown corpus"):
            load_corpus(name)

    def test_a_pipe_is_never_waited_for(self, tmp_path):
        os.mkfifo(tmp_path / "pipe.txt")
        with pytest.raises(BadInput, match="unknown corpus"):
            load_corpus(str(tmp_path / "pipe.txt"))
        with pytest.raises(BadInput, match="has no text in it"):
            load_corpus(str(tmp_path))

    def test_only_the_files_that_are_read_are_hashed(self, tmp_path):
        (tmp_path / "a.txt").write_text("one", "utf-8")
        params = make_params({"corpus": str(tmp_path)})
        before = sources_hash(params)
        (tmp_path / "below").mkdir()
        for other in ("b.bin", "below/c.txt"):
            (tmp_path / other).write_text("two", "utf-8")
        assert sources_hash(params) == before
        (tmp_path / "a.txt").write_text("three", "utf-8")
        assert sources_hash(params) != before

    @pytest.mark.parametrize(
        "line, reason",
        [
            ("{bad", "Expecting property name"),
            ("[1]", "no object"),
            ('"text"', "no object"),
            ('{"txt": "a"}', "no object"),
            ('{"text": "\\ud800"}', "surrogates not allowed"),
            ('{"id": "\\ud800", "text": "a"}', "surrogates not allowed"),
            ("[" * 100_000, "recursion"),
        ],
    )
    def test_a_bad_line_is_told_by_its_number(self, tmp_path, line, reason):
        (tmp_path / "c.jsonl").write_text(f'{{"text": "good"}}\n\n{line}\n', "utf-8")
        with pytest.raises(BadInput, match=rf"line 3: not readable .*{reason}") as raised:
            load_corpus(str(tmp_path / "c.jsonl"))
        assert "\n" not in str(raised.value)

    def test_a_line_ends_at_a_line_feed_and_a_file_may_start_with_a_mark(self, tmp_path):
        text = "one\u2028two\x85three"
        (tmp_path / "c.jsonl").write_text("\ufeff" + json.dumps({"text": text}, ensure_ascii=False), "utf-8")
        (tmp_path / "c.txt").write_text("\ufeffword", "utf-8")
        assert [document.text for document in load_corpus(str(tmp_path / "c.jsonl")).documents] == [text]
        assert [document.text for document in load_corpus(str(tmp_path / "c.txt")).documents] == ["word"]


class TestParameters:
    @pytest.mark.parametrize("text", ['!!int "abc"', '!!bool "x"', '!!float "q"', '!!timestamp "x"', '!!binary "aGk="'])
    def test_a_tag_makes_no_text_into_something_else(self, text):
        with pytest.raises(BadInput, match="would be read as"):
            parse(text, "here")

    def test_a_number_of_thousands_of_digits_is_refused(self):
        with pytest.raises(BadInput, match="^here: "):
            parse("9" * 5000, "here")

    def test_the_protocol_is_set_by_its_parts_and_each_part_once(self, tmp_path):
        with pytest.raises(BadInput, match="such as protocol.n_select=10"):
            from_assignments(["protocol=1"])
        (tmp_path / "p.yaml").write_text("protocol.n_select: 11\nprotocol:\n  n_select: 12\n", "utf-8")
        with pytest.raises(BadInput, match=r"'protocol.n_select' is given twice"):
            effective({}, {}, tmp_path / "p.yaml")


class TestDamage:
    def test_outputs_that_a_step_cannot_have_found_are_found_again(self):
        first = explain_feature()
        path = RunDirectory(make_params({})).step_path(2)
        whole = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps(whole | {"outputs": {"x": 1}}), "utf-8")
        assert explain_feature().meta.interpretations == first.meta.interpretations
        assert json.loads(path.read_text("utf-8"))["outputs"] == whole["outputs"]

    @pytest.mark.parametrize(
        "fault",
        [
            {"files": {}},
            pytest.param({"made_of": {}}, marks=pytest.mark.slow),
            pytest.param({"tokens_read": None}, marks=pytest.mark.slow),
        ],
    )
    def test_evidence_that_says_too_little_is_made_again(self, fault):
        first = explain_feature()
        (meta,) = (paths.outputs() / "evidence").glob("*/meta.json")
        whole = json.loads(meta.read_text("utf-8"))
        left = {name: value for name, value in (whole | fault).items() if value is not None}
        meta.write_text(json.dumps(left), "utf-8")
        assert explain_feature(run="again").meta.interpretations == first.meta.interpretations
        assert json.loads(meta.read_text("utf-8")) == whole

    @pytest.mark.parametrize("content", ["", '["id", "te', "[1]\n"])
    def test_a_damaged_cache_of_the_embedded_corpus_is_made_again(self, tmp_path, monkeypatch, content):
        monkeypatch.setenv("MIKIT_CACHE", str(tmp_path))
        monkeypatch.setattr(corpora, "wheel_folder", lambda: tmp_path)
        monkeypatch.setattr(corpora, "_wikipedia", lambda _dump: iter([corpora.Document("w", "prose")]))
        monkeypatch.setattr(corpora, "_news", lambda _folder: iter([]))
        (tmp_path / f"embedded-corpus-v{corpora.CLEANING}.jsonl").write_text(content, "utf-8")
        for _made_then_read in range(2):
            assert [document.text for document in load_corpus("embedded").documents] == ["prose"]

    def test_damaged_weights_are_told_with_their_folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr(smollm2, "weights_folder", lambda: tmp_path)
        (tmp_path / "config.json").write_text('{"model_type": "llama"', "utf-8")
        with pytest.raises(MikitError, match="can't be read .* delete the folder") as raised:
            smollm2.load_language_model()
        assert str(tmp_path) in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_a_kernel_that_dies_between_notebooks_sends_nobody_to_a_missing_one(self, monkeypatch):
        from nbclient.exceptions import DeadKernelError

        def dead(_keeper, **_options):
            raise DeadKernelError

        monkeypatch.setattr(Keeper, "ready", dead)
        monkeypatch.setattr(engine, "_preflight", lambda _keeper, _code, _manner: None)
        with pytest.raises(StepFailed, match="^step 1 failed: the kernel died"):
            engine.run_pipeline(make_params({}))


def test_no_token_steers_the_terminal():
    meta = builders.trace().meta
    said = meta.interpretations.model_copy(update={"input": "Fires on \u202e\x9b31m\x1b[2J."})
    shown = summary("planted", meta.model_copy(update={"interpretations": said}))
    assert not set("".join(shown)) & set("\u202e\x9b\x1b\n")
    assert any(r"\u202e" in line for line in shown)
