"""Runs of one process share what is large or slow to make, and none of them can change it for the next."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mikit import paths
from mikit.evidence.store import DamagedEvidence, open_store
from mikit.experiments.measure import _measure, ablate, measure
from mikit.explainers import get_explainer
from mikit.explainers.statistical.tokens import looks_of
from mikit.runs import open_run, steps
from mikit.targets.state import bits

pytestmark = pytest.mark.usefixtures("outputs")
SMALL = {"model": "planted", "feature": 3, "corpus_tokens": 4096, "document_tokens": 64}


@pytest.fixture(scope="module")
def first(outputs):
    run = open_run(**SMALL, run="first")
    run.need(steps.intervene)
    return run


def again(**others):
    """Another run on the same evidence."""
    return open_run(**SMALL | {"run": "second"} | others)


def measured(run, like):
    return measure(run.setting, run.feature, like.need(steps.observe), like.need(steps.intervene), "select")


def is_kept(run, like):
    """Whether what the run measures was measured before."""
    misses = _measure.cache_info().misses
    measured(run, like)
    return _measure.cache_info().misses == misses


def test_another_run_has_the_same_evidence_vocabulary_prompts_and_measurements(first):
    second = again()
    assert second.store is first.store and second.vocabulary is first.vocabulary and second.prompts is first.prompts
    measured(first, first)
    assert is_kept(second, first)


def test_who_explains_makes_no_difference_to_what_is_measured(first):
    other = replace(first.setting, explainer=get_explainer("statistical"))
    assert other == first.setting and hash(other) == hash(first.setting)


@pytest.mark.parametrize("others", [{"seed": 1}, {"batch": 7}, {"protocol": {"position": "all_tokens"}}])
def test_a_run_with_other_parameters_measures_anew(first, others):
    measured(first, first)
    assert not is_kept(again(**others), first)


@pytest.mark.parametrize("part", ["seed", "batch", "unseen", "prompts", "vocabulary", "protocol", "store", "target"])
def test_each_part_that_a_measurement_follows_from_makes_another_setting(first, part):
    setting = first.setting
    others = {
        "seed": 1,
        "batch": 7,
        "unseen": setting.store,
        "prompts": dict(setting.prompts),
        "vocabulary": replace(setting.vocabulary),
        "protocol": setting.protocol.model_copy(update={"position": "all_tokens"}),
        "store": replace(setting.store),
        "target": replace(setting.target),
    }
    assert replace(setting, **{part: others[part]}) != setting
    assert replace(setting) == setting


def hooked(model):
    handle = model.get_submodule("model.layers.0").register_forward_hook(lambda _m, _i, output: 0 * output)
    return handle.remove


def doubled(model):
    weight = model.get_output_embeddings().weight
    with torch.no_grad():
        weight.mul_(2)
    return lambda: weight.detach().mul_(0.5)


def in_double(_model):
    torch.set_default_dtype(torch.float64)
    return lambda: torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("change", [hooked, doubled, in_double])
def test_what_is_measured_while_the_model_is_changed_is_never_taken_for_the_model(first, change):
    before = measured(first, first)
    undo = change(first.target.model)
    try:
        assert not is_kept(first, first)
        changed = measured(first, first)
    finally:
        undo()
    after = measured(again(), first)
    assert np.array_equal(after.doses, before.doses)
    if change is hooked:
        assert not np.array_equal(changed.doses, before.doses)


def test_a_measurement_is_its_callers_own(first):
    for work in (
        lambda: measured(first, first).doses,
        lambda: ablate(first.setting, 3, first.need(steps.observe), "select").own,
    ):
        found = work()
        before = found.copy()
        torch.from_numpy(found).zero_()
        assert np.array_equal(work(), before) and before.any()


def test_nothing_of_it_can_be_changed(first):
    looks = looks_of(first.vocabulary.texts)
    arrays = [
        first.store.token_counts,
        first.store.firing_counts,
        *first.store.arrays.values(),
        first.vocabulary.counts,
        looks.kind,
        *looks.forms.values(),
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
    found = next(paths.outputs().glob("evidence/*/meta.json")).parent
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
    before = int(bits(tensor))
    assert int(bits(tensor)) == before
    for index in np.ndindex(*tensor.shape):
        was = tensor[index].item()
        tensor[index] = -was
        assert int(bits(tensor)) != before
        tensor[index] = was
    assert int(bits(tensor)) == before


@pytest.mark.parametrize("change", [lambda w: w[:, 1].neg_(), lambda w: w[[0, 1], [1, 3]].neg(), lambda w: w.neg_()])
def test_changes_in_many_places_do_not_cancel(change):
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    weight[:, 1] = torch.tensor([1.0, -1.0]).repeat(32)
    before = int(bits(weight))
    changed = change(weight)
    if changed.shape == (2,):
        weight[[0, 1], [1, 3]] = changed
    assert int(bits(weight)) != before
