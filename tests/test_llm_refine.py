"""Refinement as a person types it: through the command line, papermill and the notebook of the rounds, kills included."""

import json
import signal
import subprocess
import sys

import psutil
import pytest
from llm_server import Raw, scripted
from planted_lab import TRUTH
from planted_writer import PerfectWriter, role_of
from test_neuronpedia import record, row

from mikit.cli import main
from mikit.files import file_hash
from mikit.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("outputs")]
ENVIRONMENT = {"LLM_API_KEY": "sk-none-of-your-business"}
FRUITS = TRUTH["fruits"]
WRONG = "It fires on the word the."


def folder_of(outputs, run, feature=FRUITS.index):
    return outputs / "layer-0" / f"feature-{feature}" / run


def trace(folder):
    return Trace.model_validate_json((folder / "trace.json").read_bytes())


def with_model(server):
    return ["--explainer", "llm", "--llm-model", "m", "--llm-base-url", server.url, "--no-nulls",
            "--set", "max_hypotheses=1", "--set", "llm_concurrency=1"]  # fmt: skip


def hashes(folder):
    return {path.name: file_hash(path) for path in folder.glob("step?.json")}


def test_a_run_with_rounds_survives_a_kill_within_one_and_repairs_what_was_wrong(outputs):
    good, victim, due = PerfectWriter("fruits", wrong_input=WRONG), {}, [True]
    folder = folder_of(outputs, "rounds")

    def script(request):
        is_in_round = good.asked.count("write_input") == 2 and role_of(request) == "judge_windows"
        if is_in_round and due:
            due.clear()
            victim["steps"] = hashes(folder) | {f"1/{k}": v for k, v in hashes(folder / "rounds" / "1").items()}
            process = psutil.Process(victim["command"].pid)
            kernels = process.children(recursive=True)
            for each in [process, *kernels]:
                each.kill()
            psutil.wait_procs(kernels, timeout=30)
            return Raw(reset=True)
        return good(request)

    with scripted(script) as server:
        words = ["--feature", str(FRUITS.index), "--run", "rounds", "--max-rounds", "3", *with_model(server)]
        for status in (-signal.SIGKILL, 0):
            victim["command"] = subprocess.Popen(
                [sys.executable, "-m", "mikit.cli", "run", *words], stderr=subprocess.PIPE, text=True
            )
            told = victim["command"].communicate()[1]
            assert victim["command"].returncode == status, told
        bodies = [json.dumps(request, sort_keys=True) for request in server.requests]
        assert len(set(bodies)) == server.paid_replies == len(bodies) - 1
    found = trace(folder)
    assert found.meta.gate_pass.all_pass and found.meta.token_cost.total_tokens == server.paid_tokens
    [first] = found.rounds
    assert (first.component, first.better, first.steps_rerun) == ("input", True, [2, 3, 4, 8])
    before = victim["steps"]
    assert "1/step2.json" in before and "1/step4.json" not in before
    after = hashes(folder) | {f"1/{k}": v for k, v in hashes(folder / "rounds" / "1").items()}
    assert {name: after[name] for name in before} == before, "what was done before the kill was not done again"
    assert {"round1 step2", "round1 step3", "round1 step4"} <= set(found.provenance.ledger)
    told = json.dumps(json.loads((folder / "refine.ipynb").read_text())["cells"])
    assert "round 1, input" in told and FRUITS.name in told


def test_refine_goes_on_with_a_finished_run_and_then_has_nothing_to_mend(outputs, capsys):
    folder = folder_of(outputs, "later")
    with scripted(PerfectWriter("fruits", wrong_input=WRONG)) as server:
        words = ["--feature", str(FRUITS.index), "--run", "later"]
        assert main(["run", *words, *with_model(server)]) == 0
        first, before = trace(folder), hashes(folder)
        assert first.meta.gate_pass.input == "fail" and not (folder / "rounds").exists()
        assert main(["refine", *words, "--max-rounds", "3"]) == 0
        second = trace(folder)
        assert second.meta.gate_pass.all_pass and second.meta.confirm_batches == 2 and second.meta.rounds == 1
        after = hashes(folder)
        assert {k: v for k, v in after.items() if k != "step9.json"} == {
            k: v for k, v in before.items() if k != "step9.json"
        }
        assert (folder / "refine.ipynb").exists() and (folder / "report.html").exists()
        asked = len(server.requests)
        capsys.readouterr()
        assert main(["refine", *words]) == 0
        assert "nothing is left" in capsys.readouterr().out
        assert len(server.requests) == asked and trace(folder) == second


def test_refine_works_with_the_statistical_explainer_too(outputs, tmp_path, capsys):
    """Its evidence is a record in which the feature fires on another word as well."""
    path = tmp_path / "record.json"
    shown = [
        row([f" {word}", " the", " old"], [0.0, 40.0 - i, 0.0]) for i, word in enumerate(["sat", "ran", "saw"] * 4)
    ]
    fruit = sorted(FRUITS.own)
    shown += [row([" a", fruit[i % len(fruit)], " and"], [0.0, 20.0 - i / 10, 0.0]) for i in range(12)]
    path.write_text(json.dumps(record(activations=shown)))
    words = ["--feature", str(FRUITS.index), "--run", "offline"]
    misled = ["--source", "neuronpedia", "--neuronpedia-record", str(path), "--explainer", "statistical", "--no-nulls"]
    assert main(["run", *words, *misled, "--set", "max_hypotheses=1"]) == 0
    folder = folder_of(outputs, "offline")
    assert trace(folder).meta.gate_pass.input == "fail"
    assert main(["refine", *words, "--max-rounds", "2"]) == 0
    second = trace(folder)
    assert second.meta.confirm_batches == 2 and second.meta.rounds == 2
    assert [each.component for each in second.rounds] == ["input", "input"]
    assert len({*second.rounds[0].changes, *second.rounds[1].changes}) == 2 and second.rounds[0].better
