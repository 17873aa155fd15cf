"""Runs of one process share what is large or slow to make, and none of them can change it for the next."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mikit.evidence.store import DamagedEvidence, open_store
from mikit.experiments.measure import ablate, measure
from mikit.explainers import get_explainer
from mikit.runs import open_run, steps
from mikit.runs.reset import _bits

SMALL = {"model": "planted", "feature": 3, "corpus_tokens": 4096, "document_tokens": 64}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIKIT_OUTPUTS", str(tmp_path_factory.mktemp("outputs")))
        run = open_run(**SMALL, run="first")
        run.need(steps.intervene)
        yield run


@pytest.fixture
def again(first, monkeypatch):
    """Another run on the same evidence."""
    monkeypatch.setenv("MIKIT_OUTPUTS", str(first.directory.path.parents[2]))
    return lambda **others: open_run(**SMALL | {"run": "second"} | others)


def measured(run, like):
    return measure(run.setting, run.feature, like.need(steps.observe), like.need(steps.intervene), "select")


def test_another_run_has_the_same_evidence_vocabulary_prompts_and_measurements(first, again):
    second = again()
    assert second.store is first.store and second.vocabulary is first.vocabulary and second.prompts is first.prompts
    assert measured(second, first) is measured(first, first)


def test_who_explains_makes_no_difference_to_what_is_measured(first):
    other = replace(first.setting, explainer=get_explainer("statistical"))
    assert other == first.setting and hash(other) == hash(first.setting)


@pytest.mark.parametrize("others", [{"seed": 1}, {"batch": 7}, {"protocol": {"position": "all_tokens"}}])
def test_what_a_measurement_depends_on_makes_another(first, again, others):
    second = again(**others)
    assert second.setting != first.setting
    assert measured(second, first) is not measured(first, first)


def test_another_corpus_is_other_evidence(first, again):
    assert again(corpus_tokens=2048).store is not first.store


def test_nothing_of_it_can_be_changed(first):
    ablation = ablate(first.setting, 3, first.need(steps.observe), "select")
    arrays = [
        first.store.token_counts,
        first.store.firing_counts,
        *first.store.arrays.values(),
        first.vocabulary.counts,
        measured(first, first).doses,
        measured(first, first).controls,
        ablation.own,
        ablation.controls,
    ]
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    for mapping in (first.prompts, first.store.arrays, first.vocabulary.id_of):
        with pytest.raises(TypeError):
            mapping["explain"] = 0
    with pytest.raises(TypeError):
        first.prompts["explain"][0][0] = 0


@pytest.fixture
def folder(first, tmp_path):
    """A copy of the evidence."""
    found = next(first.directory.path.parents[2].glob("evidence/*/meta.json")).parent
    return shutil.copytree(found, tmp_path / "store")


def test_an_open_store_is_not_read_again_and_a_changed_one_is(folder):
    store = open_store(folder)
    assert open_store(folder) is store
    path = folder / "token_counts.npy"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DamagedEvidence, match=r"token_counts\.npy is not what was written"):
        open_store(folder)
    path.unlink()
    with pytest.raises(DamagedEvidence, match="is missing"):
        open_store(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("shape", [(8,), (3, 5), (1,), (4, 6)])
@pytest.mark.parametrize("way", ["whole", "turned", "cut"])
def test_the_sum_of_bits_sees_each_changed_number(dtype, shape, way):
    tensor = torch.arange(1, 2 + 2 * int(np.prod(shape))).to(dtype)
    tensor = {
        "whole": lambda: tensor[: int(np.prod(shape))].reshape(shape),
        "turned": lambda: tensor[: int(np.prod(shape))].reshape(shape).t(),
        "cut": lambda: tensor[1 : 1 + int(np.prod(shape))].reshape(shape),
    }[way]()
    before = int(_bits(tensor))
    assert int(_bits(tensor)) == before
    for index in np.ndindex(*tensor.shape):
        was = tensor[index].item()
        tensor[index] = -was
        assert int(_bits(tensor)) != before
        tensor[index] = was
    assert int(_bits(tensor)) == before
