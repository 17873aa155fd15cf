"""The commands around evidence from elsewhere, refinement and export, as a person types them."""

import json

import pytest
from planted_lab import TRUTH
from test_neuronpedia import record

import mikit
from mikit.cli import main
from mikit.evidence.neuronpedia import read_record

pytestmark = pytest.mark.usefixtures("outputs")

FRUITS = TRUTH["fruits"]


def test_a_run_on_tokens_behind_bos_needs_a_scan_and_then_ends(tmp_path, capsys):
    given = ["--bos-token-root", str(tmp_path / "initial_observation"), "--bos-prompt-id", "prompt-0001"]
    settings = {"model": "planted", "feature": FRUITS.index, "source": "bos_token", "nulls": False, "run": "bos",
                "bos_token_root": given[1]}  # fmt: skip
    with pytest.raises(mikit.errors.BadInput, match="scan-bos"):
        mikit.explain_feature(**settings)
    assert main(["scan-bos", "--model", "planted", *given]) == 0
    assert "prompt-0001" in capsys.readouterr().out
    trace = mikit.explain_feature(**settings)
    assert trace.meta.status == "complete" and trace.input_round.observation.source == "bos_token"
    assert trace.meta.gate_pass.all_pass, trace.meta.gate_pass.reasons
    assert trace.input_round.observation.notes


def test_neuronpedias_own_explanation_is_scored_by_the_same_gates(tmp_path, capsys):
    words = ", ".join(f'"{token.strip()}"' for token in sorted(FRUITS.own))
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record(explanations=[{"description": f"fires on {words}"}])))
    arguments = ["--feature", str(FRUITS.index), "--neuronpedia-record", str(path), "--no-nulls"]
    assert main(["score", "--explanation-from", "neuronpedia", *arguments]) == 0
    assert "input  pass" in capsys.readouterr().out
    assert main(["score", "--explanation-from", "elsewhere", *arguments]) == 2
    path.write_text(json.dumps(record(explanations=[])))
    assert main(["score", "--explanation-from", "neuronpedia", *arguments]) == 2


def test_a_run_on_a_saved_record_passes_and_is_exported_as_a_row(tmp_path, capsys, outputs):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record()))
    trace = mikit.explain_feature(
        model="planted", feature=FRUITS.index, source="neuronpedia", neuronpedia_record=str(path), nulls=False, run="np"
    )
    assert trace.meta.gate_pass.output == "pass"
    folder = outputs / "layer-0" / f"feature-{FRUITS.index}" / "np"
    assert main(["export", str(folder), "--out", str(tmp_path / "rows.jsonl")]) == 0
    [line] = (tmp_path / "rows.jsonl").read_text().splitlines()
    row = read_record(line, "our own row")
    assert row.index == str(FRUITS.index) and len(row.explanations) == 3
    assert row.explanations[0].description == trace.meta.interpretations.input
    assert json.loads(line)["mikit"]["gates"]["output"] == "pass"
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "rows.jsonl")]) == 2


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["refine", "--feature", "3", "--run", "nowhere"], "holds no run"),
        (["run", "--explainer", "llm"], "needs a model"),
        (["run", "--llm-api-key", "a", "--llm-api-key-file", "b"], "one of the two"),
        (["run", "--llm-model", "m", "--llm-base-url", "http://u:pw@127.0.0.1:9/v1", "--explainer", "llm"], "secret"),
    ],
)
def test_what_is_wrong_is_one_line_and_tells_no_secret(arguments, said, capsys, monkeypatch):
    monkeypatch.setenv("LLM_API_KEY", "x")
    if said == "needs a model":
        monkeypatch.delenv("LLM_API_KEY")
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and "pw@" not in told
