"""The one reader and the one editor of the residual stream, held against transformers itself."""

import pytest
import torch

from mikit.targets.hooks import batch_of, logits, read_residual

ROUNDING = {"rtol": 1e-5, "atol": 1e-4}


@pytest.fixture(scope="module")
def texts(planted):
    """Texts of unequal length."""
    return [
        planted.ids_of(text)[:length] for (_, text), length in zip(planted.own_documents, (20, 7, 32, 1), strict=False)
    ]


@pytest.fixture(scope="module")
def batch(planted, texts):
    return batch_of(planted, texts)


def _hooks(lm):
    return {
        name: [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        for name, module in lm.model.named_modules()
    }


def test_a_batch_has_one_bos_in_front_and_padding_behind(planted, texts, batch):
    ids, mask = batch
    assert ids[:, 0].tolist() == [planted.bos_id] * len(texts)
    assert mask.sum(1).tolist() == [1 + len(text) for text in texts]
    assert [row[1 : 1 + len(text)].tolist() for row, text in zip(ids, texts, strict=True)] == texts


def test_no_text_is_an_empty_batch(planted):
    ids, mask = batch_of(planted, [])
    assert ids.shape == mask.shape == (0, 1)


def test_the_residual_is_the_hidden_state_of_transformers(planted, batch):
    ids, mask = batch
    hidden = planted.model(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
    torch.testing.assert_close(read_residual(planted, ids, mask)[mask], hidden[planted.layer + 1][mask], **ROUNDING)


def test_of_texts_of_one_length_it_is_so_to_the_bit(planted, batch):
    ids = batch[0][:, :2]
    hidden = planted.model(input_ids=ids, output_hidden_states=True).hidden_states
    assert torch.equal(read_residual(planted, ids), hidden[planted.layer + 1])


def test_the_residual_is_the_output_of_the_hooked_module(planted, batch):
    ids, mask = batch
    seen = []
    module = planted.model.get_submodule(planted.hook_point)
    handle = module.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with torch.no_grad():
        planted.model(input_ids=ids, attention_mask=mask.long())
    handle.remove()
    output = seen[0][0] if isinstance(seen[0], tuple) else seen[0]
    torch.testing.assert_close(read_residual(planted, ids, mask)[mask], output[mask], **ROUNDING)


def test_reading_stops_at_the_hook_point(planted, batch):
    above = planted.model.get_submodule(f"model.layers.{planted.layer + 1}")
    ran = []
    handle = above.register_forward_hook(lambda *_: ran.append(True))
    read_residual(planted, *batch)
    handle.remove()
    assert ran == []


def test_padding_changes_nothing(planted, texts, batch):
    together, scores = read_residual(planted, *batch), logits(planted, *batch)
    for row, text in enumerate(texts):
        alone = batch_of(planted, [text])
        n = 1 + len(text)
        torch.testing.assert_close(together[row, :n], read_residual(planted, *alone)[0], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(scores[row, :n], logits(planted, *alone)[0], rtol=1e-5, atol=1e-4)


def test_logits_without_an_edit_are_those_of_transformers(planted, batch):
    ids, mask = batch
    with torch.no_grad():
        expected = planted.model(input_ids=ids, attention_mask=mask.long()).logits
    assert torch.equal(logits(planted, ids, mask), expected)


def test_an_edit_of_strength_0_leaves_logits_bit_identical(planted, batch):
    direction = planted.sae.W_dec[3]
    assert torch.equal(logits(planted, *batch, edit=lambda x: x + 0.0 * direction), logits(planted, *batch))


def test_an_edit_reaches_the_logits_from_its_position_on(planted, batch):
    ids, mask = batch

    def edit(residual):
        edited = residual.clone()
        edited[:, 5] += 8 * planted.sae.W_dec[3]
        return edited

    changed = (logits(planted, ids, mask, edit) != logits(planted, ids, mask)).any(-1)
    assert changed[:, 5].all()
    assert not changed[:, :5].any()


def test_an_edit_sees_what_a_reader_reads(planted, batch):
    seen = []

    def edit(residual):
        seen.append(residual.clone())
        return residual

    ids, mask = batch
    logits(planted, ids, mask, edit=edit)
    torch.testing.assert_close(seen[0].float()[mask], read_residual(planted, ids, mask)[mask], **ROUNDING)


def test_a_failing_edit_raises_and_leaves_the_model_as_it_was(planted, batch):
    before = logits(planted, *batch)

    def fail(_residual):
        raise ValueError("edit failed")

    with pytest.raises(ValueError, match="edit failed"):
        logits(planted, *batch, edit=fail)
    assert torch.equal(logits(planted, *batch), before)


def test_no_hook_is_left_behind(planted, batch):
    before = _hooks(planted)
    read_residual(planted, *batch)
    logits(planted, *batch, edit=lambda x: x)
    with pytest.raises(ZeroDivisionError):
        logits(planted, *batch, edit=lambda _: 1 / 0)
    with pytest.raises(IndexError):
        read_residual(planted, batch[0] + planted.vocab_size, batch[1])
    assert _hooks(planted) == before


def test_nothing_read_carries_a_gradient(planted, batch):
    assert not read_residual(planted, *batch).requires_grad
    assert not logits(planted, *batch).requires_grad
