"""Texts of unlike length in one pass: each read as alone, with hardly any padding, and never by a model that mixes them up."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from test_targets_models import FAMILIES, language_model, model_of

from mikit.targets import hooks, load_target
from mikit.targets.anatomy import hook_path
from mikit.targets.hooks import batch_of, read_residual, read_texts
from mikit.targets.packing import LONGEST_ROW, keeps_apart, pack

TEXTS = [[3 + (7 * text + step) % 47 for step in range(1 + 5 * text % 23)] for text in range(40)]
"""Enough for several rows."""
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=40)


def padded(lengths):
    """A batch in which each id tells its text and position."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = 1000 * torch.arange(1, len(lengths) + 1)[:, None] + torch.arange(max(lengths))
    return ids.where(mask, -1), mask


@given(LENGTHS, st.integers(1, 200))
def test_every_position_lies_in_one_row_and_comes_back_to_its_text(lengths, row):
    ids, mask = padded(lengths)
    packed = pack(ids, mask, row)
    assert torch.equal(packed.unpacked(packed.ids[..., None])[..., 0][mask], ids[mask])
    assert len(packed.where[mask].unique()) == sum(lengths)
    steps = torch.arange(ids.shape[1]).expand_as(ids)
    assert torch.equal(packed.unpacked(packed.positions[..., None])[..., 0][mask], steps[mask])


@given(LENGTHS, st.integers(1, 200))
def test_positions_go_on_within_a_text_alone(lengths, row):
    """transformers takes a step of other than 1 for the beginning of another text."""
    ids, mask = padded(lengths)
    packed = pack(ids, mask, row)
    same_text = packed.ids[:, 1:] == packed.ids[:, :-1] + 1
    assert torch.equal((packed.positions.diff(dim=1) == 1) & (packed.ids[:, 1:] >= 1000), same_text | filler(packed))


def filler(packed):
    """What fills up a row counts on by itself: its ids are all the first of the first text."""
    return (packed.ids[:, 1:] == packed.ids[:, :-1]) & (packed.positions.diff(dim=1) == 1)


@given(LENGTHS)
@example([33] * 6 + [32])
@example([100, 100, 99])
def test_rows_are_hardly_longer_than_needed_or_texts_are_padded(lengths):
    packed = pack(*padded(lengths))
    rows, width = packed.ids.shape
    assert width <= sum(lengths) / rows + max(lengths)
    assert packed.is_worth_it == (width <= LONGEST_ROW and rows * width <= 0.9 * len(lengths) * max(lengths))


def test_what_saves_next_to_nothing_is_read_padded(planted):
    texts = [planted.ids_of(text)[:n] for (_, text), n in zip(planted.own_documents, (20, 20, 20, 19), strict=False)]
    spy = Spy(planted)
    read_texts(planted, *batch_of(planted, texts))
    spy.handle.remove()
    assert spy.positions == 4 * 21


def test_texts_of_usual_lengths_leave_little_to_fill_up():
    lengths = torch.randint(7, 34, (32,), generator=torch.Generator().manual_seed(0)).tolist()
    packed = pack(*padded(lengths))
    assert packed.ids.numel() < 1.05 * sum(lengths) < 0.75 * 32 * max(lengths)


def check_each_is_read_as_alone(lm):
    read = read_texts(lm, *batch_of(lm, TEXTS))
    for row, text in enumerate(TEXTS):
        alone = read_residual(lm, *batch_of(lm, [text]))[0]
        torch.testing.assert_close(read[row, : 1 + len(text)], alone, rtol=1e-4, atol=1e-5)
    return read


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_is_read_in_a_row_with_others_as_alone(family, attention):
    model = model_of(family)
    if attention == "sdpa" and not model._supports_sdpa:
        attention = "eager"
    model.set_attn_implementation(attention)
    check_each_is_read_as_alone(language_model(model, 1))


@pytest.mark.parametrize("family", ["Mistral", "Gemma2", "Gemma3"])
def test_a_window_that_slides_stays_within_a_text(family):
    wide, model = model_of(family), model_of(family)
    model.config.sliding_window = 3
    for block in model.model.layers:
        if getattr(block.self_attn, "sliding_window", None):
            block.self_attn.sliding_window = 3
    lm = language_model(model, 2)
    assert keeps_apart(lm, reader(lm))
    read, far = check_each_is_read_as_alone(lm), check_each_is_read_as_alone(language_model(wide, 2))
    assert not torch.allclose(read[4], far[4]), "the window counts"


def reader(lm):
    return partial(hooks._read, lm)


def test_the_usual_families_take_texts_in_a_row():
    for family in FAMILIES:
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            lm = language_model(model_of(family).to(dtype), 1)
            assert keeps_apart(lm, reader(lm)), (family, dtype)


class Spy:
    """Counts positions that a model's first block computes."""

    def __init__(self, lm):
        self.positions = 0
        self.handle = lm.model.get_input_embeddings().register_forward_hook(self)

    def __call__(self, _module, _inputs, output):
        self.positions += output.shape[:-1].numel()


def test_padding_is_not_computed():
    lm = language_model(model_of("Llama"), 1)
    spy = Spy(lm)
    read_texts(lm, *batch_of(lm, TEXTS))
    spy.positions = 0
    read_texts(lm, *batch_of(lm, TEXTS))
    spy.handle.remove()
    needed = sum(map(len, TEXTS)) + len(TEXTS)
    assert needed <= spy.positions <= 1.03 * needed < 0.7 * len(TEXTS) * (1 + max(map(len, TEXTS)))


@pytest.mark.smollm2
def test_the_embedded_model_takes_texts_in_a_row():
    target = load_target("smollm2-135m")
    assert keeps_apart(target, reader(target))


def test_the_planted_model_is_too_short_for_it(planted):
    """And small enough to be read padded, in which equal texts are read equally to the bit."""
    assert not keeps_apart(planted, reader(planted))


def mixing(change):
    """A model of which a text's neighbours in a row are not kept apart."""
    model = model_of("Llama")
    forward = model.forward
    model.forward = lambda **arguments: forward(**change(arguments))
    return language_model(model, 1)


def without_positions(arguments):
    return {name: value for name, value in arguments.items() if name != "position_ids"}


def with_a_mask(arguments):
    """As a model does that makes a mask of its own: texts in a row see each other."""
    return {"attention_mask": torch.ones_like(arguments["input_ids"])} | arguments


def in_one_row_alone(arguments):
    """As an attention does that looks at where positions start anew in a batch of one row alone."""
    if len(arguments["input_ids"]) > 1:
        return with_a_mask(arguments)
    return arguments


def with_few_positions(arguments):
    if arguments["input_ids"].shape[1] > 100:
        raise RuntimeError("The size of tensor a (64) must match the size of tensor b (192)")
    return arguments


def refusing(arguments):
    if "position_ids" in arguments:
        raise TypeError("forward() got an unexpected keyword argument 'position_ids'")
    return arguments


@pytest.mark.parametrize("change", [without_positions, with_a_mask, in_one_row_alone, with_few_positions, refusing])
def test_a_model_that_mixes_texts_up_reads_them_padded(change):
    lm = mixing(change)
    assert not keeps_apart(lm, reader(lm))
    check_each_is_read_as_alone(lm)


def test_it_is_tried_once_for_a_hook_point_and_not_at_all_without_padding(planted):
    lm = language_model(model_of("Llama"), 1)
    spy = Spy(lm)
    read_texts(lm, *batch_of(lm, [TEXTS[3], TEXTS[3]]))
    assert spy.positions == 2 * (1 + len(TEXTS[3]))
    needed = pack(*batch_of(lm, TEXTS)).ids.numel()
    for at, tried in ((lm, True), (lm, False), (replace(lm, hook_point=hook_path(lm.model, 2)), True)):
        spy.positions = 0
        read_texts(at, *batch_of(lm, TEXTS))
        assert spy.positions == needed + tried * (4 * LONGEST_ROW + 2 * 8)
    spy.handle.remove()


def test_texts_longer_than_what_was_tried_are_read_padded(planted):
    ids = planted.ids_of(" ".join(text for _, text in planted.own_documents))[: LONGEST_ROW + 8]
    spy = Spy(planted)
    read_texts(planted, *batch_of(planted, [ids, ids[:5], ids[:5]]))
    spy.handle.remove()
    assert spy.positions == 3 * (1 + len(ids))


def test_a_model_with_few_positions_is_not_even_tried():
    """On a GPU a position that there is not ends the process."""
    model = model_of("GPT2")
    model.config.n_positions = LONGEST_ROW - 1
    spy = Spy(language_model(model, 1))
    check_each_is_read_as_alone(language_model(model, 1))
    spy.handle.remove()
    assert spy.positions == len(TEXTS) * (1 + max(map(len, TEXTS))) + sum(map(len, TEXTS)) + len(TEXTS)


def test_a_hook_of_somebody_elses_has_the_model_tried_anew():
    """One that looks at BOS finds it at the beginning of a row alone."""
    lm = language_model(model_of("Llama"), 1)
    check_each_is_read_as_alone(lm)

    def without_bos(_module, _inputs, output):
        output = output.clone()
        output[:, 0] = 0
        return output

    handle = lm.model.model.layers[0].register_forward_hook(without_bos)
    check_each_is_read_as_alone(lm)
    handle.remove()
    check_each_is_read_as_alone(lm)
    assert keeps_apart(lm, reader(lm)), "nor is it remembered"


def test_padding_in_front_is_read_as_it_stands(planted):
    texts = [planted.ids_of(text)[:n] for (_, text), n in zip(planted.own_documents, (8, 3), strict=False)]
    ids, mask = batch_of(planted, texts)
    shift = int((~mask[1]).sum())
    ids[1], mask[1] = ids[1].roll(shift), mask[1].roll(shift)
    read = read_texts(planted, ids, mask)
    alone = read_residual(planted, *batch_of(planted, texts[1:]))
    torch.testing.assert_close(read[1][mask[1]], alone[0], rtol=1e-4, atol=1e-4)
