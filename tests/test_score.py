"""Explanations that a person brings: read strictly, judged by the same gates, kept, and never able to do harm."""

import csv
import json

import pytest

import mikit
from mikit.cli import main
from mikit.errors import BadInput
from mikit.evidence.vocabulary import Vocabulary
from mikit.runs.score import Row, all_pass, expected_false_passes_of, explanation_of_row, read_rows, write_table
from mikit.targets.planted.truth import truths
from mikit.trace import Scored

pytestmark = pytest.mark.usefixtures("outputs")

TRUTHS = {truth.name: truth for truth in truths()}


def quoted(tokens) -> str:
    return ", ".join(json.dumps(token) for token in sorted(tokens))


def true_words(name) -> dict[str, str]:
    truth = TRUTHS[name]
    after = f" after {' or '.join(json.dumps(cue) for cue in sorted(truth.cues))} within {truth.within}"
    return {
        "explanation": f"fires on {quoted(truth.own)}{after if truth.cues else ''}",
        "output": f"promotes {quoted(truth.promotes)}",
    }


@pytest.mark.parametrize("name", ["fruits", "royal_animals"])
def test_what_was_planted_is_confirmed_when_a_person_says_it(name):
    scored = mikit.score_explanation(**true_words(name), model="planted", feature=TRUTHS[name].index)
    assert scored.gates.all_pass, scored.gates.reasons
    assert scored.confirmed
    assert not any(all_pass(null) for null in scored.nulls.values())


def test_a_too_narrow_explanation_shows_in_recall_and_is_not_confirmed():
    """One word of ten: every text it speaks of fires, and most that fires goes unexplained, other fruits among it."""
    scored = mikit.score_explanation(
        explanation='fires on " pear"', output=true_words("fruits")["output"], model="planted", feature=3, nulls=False
    )
    assert scored.input_score.coverage.value == 1.0
    assert scored.input_score.recall.value < 0.3
    assert not scored.confirmed


@pytest.mark.parametrize(
    "wrong, end",
    [
        ({"explanation": true_words("berries")["explanation"]}, "input"),
        ({"output": true_words("fruits_again")["output"]}, "output"),
        ({"output": true_words("fruits")["output"].replace("promotes", "suppresses")}, "output"),
    ],
    ids=["sibling", "same trigger, other effect", "the other way"],
)
def test_an_explanation_that_is_wrong_in_one_point_fails_there(wrong, end):
    scored = mikit.score_explanation(**(true_words("fruits") | wrong), model="planted", feature=3, nulls=False)
    assert getattr(scored.gates, end) == "fail"


def test_an_explanation_without_its_cue_fails_the_input_gate():
    truth = TRUTHS["royal_animals"]
    scored = mikit.score_explanation(
        explanation=f"fires on {quoted(truth.own)}", model="planted", feature=truth.index, nulls=False
    )
    assert scored.gates.input == "fail"


def test_a_dead_feature_has_no_gates_whatever_is_said_of_it():
    scored = mikit.score_explanation(**true_words("fruits"), model="planted", feature=TRUTHS["unused"].index)
    assert {scored.gates.input, scored.gates.output, scored.gates.chain} == {"none"}


def test_what_was_scored_is_read_again_and_a_torn_file_is_made_again(outputs):
    given = {"explanation": 'fires on "apple"', "model": "planted", "feature": 3, "nulls": False, "run": "again"}
    first = mikit.score_explanation(**given)
    [path] = [
        path
        for path in (outputs / "layer-0" / "feature-3" / "scores").iterdir()
        if Scored.model_validate_json(path.read_bytes()) == first
    ]
    stamp = path.stat().st_mtime_ns
    assert mikit.score_explanation(**given) == first
    assert path.stat().st_mtime_ns == stamp
    path.write_text(path.read_text()[:100])
    assert mikit.score_explanation(**given).gates == first.gates


def test_a_table_is_scored_row_by_row_and_says_how_many_false_passes_to_expect(tmp_path, capsys):
    table = tmp_path / "mine.csv"
    rows = [
        {"feature": TRUTHS[name].index, "who": name, **true_words(name), "rule": ""} for name in ("fruits", "berries")
    ]
    rows.append({"feature": 3, "who": "=HYPERLINK(1)", "explanation": "", "output": "",
                 "rule": json.dumps({"any_of": [{"tokens": sorted(TRUTHS["fruits"].own)}]})})  # fmt: skip
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert main(["score", str(table), "--model", "planted", "--out", str(tmp_path / "out.csv")]) == 0
    said = capsys.readouterr().out
    assert "false passes are expected among 3" in said
    with (tmp_path / "out.csv").open(newline="") as file:
        results = list(csv.DictReader(file))
    assert [row["input_gate"] for row in results] == ["pass"] * 3
    assert [row["chain_gate"] for row in results] == ["pass", "pass", "undecided"]
    assert results[2]["who"] == "'=HYPERLINK(1)"


def test_a_gate_that_does_not_pass_can_be_an_exit_status():
    words = [
        "--explanation",
        f"fires on {quoted(TRUTHS['metals'].own)}",
        "--feature",
        "3",
        "--no-nulls",
        "--require-gates",
    ]
    assert main(["score", *words]) == 3
    assert main(["score", *words[:1], true_words("fruits")["explanation"], *words[2:]]) == 0


BAD_ROWS = {
    "no feature column": ("explanation\nx\n", "valid: feature, and explanation, output or rule"),
    "no explanation column": ("feature\n3\n", "valid: feature, and explanation"),
    "empty": ("", "columns none"),
    "no rows": ("feature,explanation\n", "holds no explanation"),
    "a word for an index": ("feature,explanation\nthree,x\n", "line 2: feature = 'three'"),
    "a superscript for an index": ("feature,explanation\n²,x\n", "line 2: feature = '²'"),
    "nothing said": ('feature,explanation\n3,""\n', "line 2: neither explanation, output nor rule"),
    "a comma unquoted": ('feature,explanation\n3,fires on "a", "b"\n', "quote texts that hold commas"),
    "a value missing": ("feature,explanation,output\n3,x\n", "fewer values than columns"),
    "a column twice": ("feature,rule,rule\n3,x,y\n", "a column is given twice"),
    "not text": (b"feature,rule\n3,\xff\xfe\n", "can't be read as CSV"),
}


@pytest.mark.parametrize("content, said", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_table_with_a_fault_is_refused_in_one_line_that_names_it(tmp_path, content, said, capsys):
    path = tmp_path / "mine.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        read_rows(path)
    assert main(["score", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_every_row_is_checked_before_the_first_is_scored(tmp_path, capsys, outputs):
    path = tmp_path / "mine.csv"
    path.write_text('feature,explanation\n4,"fires on ""apple"""\n3,"fires on ""zeitgeist"""\n')
    before = set((outputs / "layer-0").glob("feature-4/*"))
    assert main(["score", str(path)]) == 2
    assert '"zeitgeist" is no token of this model' in capsys.readouterr().err
    assert set((outputs / "layer-0").glob("feature-4/*")) == before


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "valid: a CSV file, or --explanation"),
        (["no.csv"], "can't be read as CSV"),
        (["no.csv", "--explanation", "x"], "valid: a CSV file, or --explanation"),
        (["no.csv", "--feature", "3"], "valid: one of the two"),
        (["--explanation", "fires on fruit"], "valid: fires on"),
        (["--explanation", 'fires on "lanternx"'], 'near it: " lantern"'),
        (["--rule", "{"], "rule: Invalid JSON"),
        (["--rule", '{"any_of": []}'], "rule: any_of: List should have at least 1"),
        (["--rule", '{"any_of": [{"token": ["x"]}]}'], "rule: any_of.0.token"),
        (["--output", '"apple"'], "says neither: valid: promotes"),
        (["--explanation", 'fires on "apple"', "--feature", "9999"], "feature 9999 is out of range"),
    ],
)
def test_a_bad_explanation_is_one_line_and_status_2(words, said, capsys):
    assert main(["score", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_word_is_found_with_the_space_that_running_text_gives_it():
    import numpy as np

    vocabulary = Vocabulary(("x", " red", "red"), np.array([1, 5, 2]), frozenset())
    row = Row(0, 'fires on "x" or "red"; or on " red"', None, None, "here")
    first, second = explanation_of_row(row, vocabulary).input.rule.any_of
    assert (first.tokens, second.tokens) == (["x", "red"], [" red"])
    spaced = Vocabulary((" red",), np.array([5]), frozenset())
    assert explanation_of_row(Row(0, 'fires on "red"', None, None, "here"), spaced).input.rule.any_of[0].tokens == [
        " red"
    ]


def test_expected_false_passes_carry_their_interval():
    assert expected_false_passes_of([], 10) is None
    assert "1 of 20: 15.0 false passes are expected among 300 (95 % interval 2.7 to " in expected_false_passes_of(
        [True] + [False] * 19, 300
    )


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-2", "@SUM(1)", "\tx", "\rx"])
def test_no_cell_of_a_table_is_a_formula(tmp_path, text):
    write_table([{"who": text}], tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        assert [row["who"] for row in csv.DictReader(file)] == [f"'{text}"]
