"""How many features are in flight, who holds the model for them, and how the language model is shared out."""

from pathlib import Path

import psutil
import pytest

from mikit.errors import BadInput
from mikit.runs import work
from mikit.runs.sweep import Sweep
from mikit.runs.sweep_spec import make_spec
from mikit.settings import make_params


def sweep_of(explainer="statistical", **told):
    params = make_params({"run": "s", "explainer": explainer})
    return Sweep(params, make_spec({"features": [1, 2], **told}, params, "x.yaml"))


@pytest.mark.parametrize(
    "explainer, told, in_flight, hosts",
    [
        ("statistical", {}, 1, 0),
        ("statistical", {"workers": 2}, 2, 0),
        ("statistical", {"workers": 2, "in_flight": 3}, 3, 2),
        ("statistical", {"workers": 2, "model_host": True}, 2, 2),
        ("llm", {}, 4, 1),
        ("llm", {"workers": 2}, 8, 2),
        ("llm", {"in_flight": 1}, 1, 0),
        ("llm", {"in_flight": 8, "model_host": False}, 8, 0),
    ],
)
def test_a_model_host_serves_where_more_features_are_in_flight_than_are_computed_for(explainer, told, in_flight, hosts):
    sweep = sweep_of(explainer, **told)
    assert (sweep.in_flight, sweep.hosts) == (in_flight, hosts)
    assert sweep.job((0, 1))["hosts"] == hosts


def test_questions_are_shared_out_among_the_features_in_flight():
    def each(**told):
        return sweep_of("llm", **told).job((0, 1))["params"]["llm_concurrency"]

    assert each(in_flight=8, llm_concurrency=16) == 2
    assert each(in_flight=8, llm_concurrency=3) == 1, "every feature may ask"
    assert each(in_flight=8) == make_params({}).llm_concurrency
    plain, told = sweep_of("llm"), sweep_of("llm", in_flight=8, llm_concurrency=16)
    assert plain.identity == told.identity, "a sweep may go on with another number"


def test_fewer_features_in_flight_than_workers_is_one_line():
    with pytest.raises(
        BadInput, match=r"^x.yaml: sweep: in_flight = 1 with workers = 2: valid: at least one a worker$"
    ):
        sweep_of(workers=2, in_flight=1)


def test_each_host_has_a_gpu_of_its_own_and_kernels_have_none(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    job = sweep_of(workers=2, in_flight=4).job((0, 1)) | {"logs": str(tmp_path)}
    try:
        kernels = [work._environment(job, number) for number in range(4)]
        addresses = [kernel["MIKIT_MODEL_HOST"] for kernel in kernels]
        assert addresses[:2] == addresses[2:] and len(set(addresses)) == 2
        assert {kernel["CUDA_VISIBLE_DEVICES"] for kernel in kernels} == {""}
        found = {str(host.address): psutil.Process(host.pid).environ() for host in work.hosts()}
        assert [found[address]["CUDA_VISIBLE_DEVICES"] for address in addresses[:2]] == ["2", "5"]
        assert all("MIKIT_MODEL_HOST" not in environment for environment in found.values())
        pids = [host.pid for host in work.hosts()]
    finally:
        work.close_all()
    assert not any(psutil.pid_exists(pid) for pid in pids) and not any(Path(each).parent.exists() for each in addresses)
