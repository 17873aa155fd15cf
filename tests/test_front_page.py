"""The index's tables: what is missing, and what the last runs found; whatever lies in the outputs folder."""

import os

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_compare import write_run
from test_report import ATTACKS, Outline

from mikit import paths
from mikit.errors import BadInput
from mikit.runs import front_page
from mikit.runs.doctor import Finding
from mikit.viz import link, table

TAGS = {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "span", "p", "a", "code", "br"}


def end(folder, seconds):
    """Let a run have ended then."""
    os.utime(folder / "trace.json", (seconds, seconds))
    return folder


def test_without_a_run_the_page_says_what_to_run():
    text = Outline(front_page.runs_table()).text
    assert "No run has ended yet" in text and "make demo" in text


def test_the_newest_run_comes_first_and_no_more_than_asked_for():
    for i in range(5):
        end(write_run(f"run{i}", feature=i), 1_000_000 + i)
    assert [run.folder.name for run in front_page.last_runs(3)] == ["run4", "run3", "run2"]
    text = Outline(front_page.runs_table(2)).text
    assert text.index("feature-4/run4") < text.index("feature-3/run3") and "run2" not in text


def test_fewer_than_one_run_is_refused():
    with pytest.raises(BadInput, match="valid: 1 or more"):
        front_page.last_runs(0)


def test_a_run_shows_its_verdicts_as_marks_and_words():
    gates = builders.gates(input="fail", output="undecided", chain="none")
    write_run("first", meta=builders.meta(gate_pass=gates, confirmed=False))
    text = Outline(front_page.runs_table()).text
    assert "✗ fail? undecided– none" in text and "not explained" in text


def test_a_torn_trace_has_a_row_that_says_so_and_hides_no_other():
    end(write_run("sound"), 10)
    torn = end(write_run("torn"), 20)
    (torn / "trace.json").write_text('{"meta": {')
    text = Outline(front_page.runs_table()).text
    assert "feature-3/torn" in text and "torn, or of another version" in text and "explained, and confirmed" in text


def test_what_is_no_run_is_passed_over():
    place = paths.outputs() / "layer-0" / "feature-1"
    place.mkdir(parents=True)
    (place / "a-file").write_text("x")
    (place / "folder" / "trace.json").mkdir(parents=True)
    (place / "pipe").mkdir()
    os.mkfifo(place / "pipe" / "trace.json")
    (place / "nowhere").symlink_to(place / "gone")
    (paths.outputs() / "layer-x").write_text("a file where a folder is looked for")
    (paths.outputs() / "sweeps").mkdir()
    assert front_page.last_runs() == []
    assert front_page.doctor_table()


def test_reports_and_traces_are_linked_from_the_notebooks_folder(monkeypatch):
    monkeypatch.setenv("MIKIT_OUTPUTS", str(paths.PROJECT / "outputs"))
    run = front_page.LastRun(paths.PROJECT / "outputs/layer-0/a b#?é", front_page.datetime(2025, 1, 1), "planted", None)
    monkeypatch.setattr(front_page, "last_runs", lambda _n: [run])
    monkeypatch.setattr(type(paths.PROJECT), "is_file", lambda _self: True)
    addresses = [attributes["href"] for attributes in Outline(front_page.runs_table()).all("a")]
    assert addresses == [f"../outputs/layer-0/a%20b%23%3F%C3%A9/{name}" for name in ("report.html", "trace.json")]


def test_a_file_that_jupyterlab_cannot_reach_is_named_and_not_linked():
    folder = write_run("first")
    outline = Outline(front_page.runs_table())
    assert outline.all("a") == [] and {"title": str(folder / "trace.json")} in outline.all("span")


@pytest.mark.parametrize("text", ATTACKS)
def test_a_hostile_name_or_verdict_becomes_text(text):
    name = text.replace("/", "_").replace("\x00", "")
    write_run(name, provenance=builders.provenance(model_id=text))
    outline = Outline(front_page.runs_table())
    assert {tag for tag, _ in outline.found} <= TAGS and outline.faults == []
    assert [each for _, each in outline.names() if each.startswith("on")] == []


def test_a_name_that_is_no_unicode_can_be_shown():
    place = paths.outputs() / "layer-0" / "feature-1" / os.fsdecode(b"\xff\xfe")
    place.mkdir(parents=True)
    (place / "trace.json").write_text("{}")
    str(front_page.runs_table()).encode("utf-8")


# --- doctor ---


def test_what_is_missing_comes_first_with_what_to_do():
    findings = [
        Finding("a", "ok", "1"),
        Finding("b", "note", "slow", "wait"),
        Finding("c", "missing", "gone", "get it"),
    ]
    text = Outline(front_page.doctor_table(findings)).text
    assert text.index("✗ missing") < text.index("? note") and "get it" in text and "1 of 3 things" in text


def test_where_all_is_well_one_line_says_so():
    assert "✓ ok 1 of 1 things" in Outline(front_page.doctor_table([Finding("a", "ok", "1")])).text


@given(st.text(), st.text(), st.text())
def test_whatever_a_finding_says_it_becomes_text(name, detail, remedy):
    outline = Outline(front_page.doctor_table([Finding(name, "missing", detail, remedy)]))
    plain = Outline(front_page.doctor_table([Finding("a", "missing", "b", "c" if remedy else "")]))
    assert [tag for tag, _ in outline.found] == [tag for tag, _ in plain.found] and outline.faults == []


# --- tables ---


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), min_size=1, max_size=3), st.text())
def test_whatever_the_cells_of_a_table_hold_they_are_text(rows, caption):
    outline = Outline(table(["a", caption], rows, "x" + caption))
    assert outline.faults == []
    assert len(outline.all("td")) == 2 * len(rows) and {tag for tag, _ in outline.found} <= TAGS


@pytest.mark.parametrize(
    "address", ["javascript:alert(1)", "data:text/html,x", "//evil.example/x", "https://evil.example"]
)
def test_only_files_beside_the_page_are_linked(address):
    assert Outline(link("text", address)).all("a") == []
