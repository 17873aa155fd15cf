"""What is checked of a target before anything expensive: seconds on a short text, one line for each failure.

An SAE that is read at the wrong place, or in another way than it was trained, still gives numbers, and explanations of
them that look like any other. Each check names the usual cause. Where a limit must be set, it was set from figures
measured on the two targets that ship here; where a mistake has a known alternative, the two are compared instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mikit.errors import BadInput
from mikit.targets.anatomy import hook_path, n_blocks
from mikit.targets.base import Target
from mikit.targets.closeness import closeness, difference
from mikit.targets.hooks import batch_of, logits, read_residual, read_texts
from mikit.targets.positions import ordinary_positions
from mikit.targets.pretrained import refuse_half
from mikit.targets.sae import Sae
from mikit.targets.sample import sample_ids

LEAST_VARIANCE = 0.4
"""Variance explained. Measured: planted 0.90, demo SAE 0.81; read at its block's MLP -0.14, at its attention -0.76."""
LEAST_L0 = 0.5
MOST_SHARE = 0.1
"""Share of the latents that are active, where an SAE states no L0: planted 0.01, demo SAE 0.008; a JumpReLU or TopK SAE
read as plain ReLU 0.13 and more."""
L0_FACTOR = 2.0
"""How far L0 may be from what the SAE states; the demo SAE is within 5 % of it, read as plain ReLU off by a factor of 16."""
MARGIN = 0.02
"""By how much an alternative must explain more to be believed. Measured on the demo SAE: the right layer explains 0.05 more
than either neighbour, the right `apply_b_dec_to_input` 0.08 more than the wrong one."""
LEAST_OVERLAP = 0.95
"""Jaccard index of the active latents in float32 and in the SAE's own dtype."""
PADDED = 3
"""Texts that are read alone and in a padded batch."""
COPIES = 3
"""Of each in the batch, so that it fills more than one row where several texts share one."""


@dataclass(frozen=True)
class Check:
    """One thing that must hold."""

    name: str
    holds: bool
    found: str
    """What was measured, with what would be valid."""
    cause: str
    """The usual cause, if it does not hold."""

    def __str__(self) -> str:
        return f"{self.name}: {self.found}" + ("" if self.holds else f": the usual cause is {self.cause}")


def require_fit(target: Target, feature: int | None = None) -> list[Check]:
    """All checks.

    Raises:
        BadInput: one does not hold; the line names the usual cause.
    """
    done = []
    for check in checks(target, feature):
        if not check.holds:
            raise BadInput(f"preflight of {target.name}: {check}")
        done.append(check)
    return done


@torch.inference_mode()
def checks(target: Target, feature: int | None = None) -> Iterator[Check]:
    """The checks one after another, up to the first that does not hold: those after it would measure nonsense.

    Args:
        target: model and SAE.
        feature: the latent that is to be explained, if it is known.
    """
    texts = sample_ids(target)
    for group in (_precision, _shapes, _start, _hook, _padding, _fit):
        for check in group(target, texts, feature):
            yield check
            if not check.holds:
                return


Texts = list[list[int]]


def _precision(target: Target, _texts: Texts, _feature: int | None) -> Iterator[Check]:
    try:
        refuse_half(target.model.config, str(target.model.dtype).removeprefix("torch."))
        refusal = ""
    except BadInput as error:
        refusal = str(error)
    found = str(target.model.dtype).removeprefix("torch.")
    yield Check("model precision", not refusal, refusal or found, "dtype=float16 with a Gemma model")
    others = {str(value.dtype) for value in vars(target.sae).values() if isinstance(value, Tensor)} - {"torch.float32"}
    found = f"{', '.join(sorted(others)) or 'float32'} (valid: float32, threshold included)"
    yield Check("SAE precision", not others, found, "an SAE that was cast to the model's precision")


def _shapes(target: Target, texts: Texts, feature: int | None) -> Iterator[Check]:
    sae, width = target.sae, target.model.get_input_embeddings().weight.shape[1]
    width = getattr(target.model.config.get_text_config(), "hidden_size", width)
    d_in, d_sae = sae.d_in, sae.d_sae
    fits = d_in == width and sae.W_enc.shape == (d_in, d_sae) and sae.b_enc.shape == sae.threshold.shape == (d_sae,)
    found = f"W_dec {tuple(sae.W_dec.shape)}, W_enc {tuple(sae.W_enc.shape)}, stream {width}"
    yield Check("shapes", fits, found, "an SAE of another model, or a matrix with its axes the other way round")
    if feature is not None:
        found = f"feature {feature} of {d_sae} latents (valid: 0 to {d_sae - 1})"
        yield Check("index", 0 <= feature < d_sae, found, "an index that belongs to an SAE of another width")
    found = f"{len(texts)} texts of {sum(map(len, texts))} tokens"
    yield Check("sample", len(texts) >= PADDED, found, "a tokenizer that is not the model's")


def _start(target: Target, texts: Texts, _feature: int | None) -> Iterator[Check]:
    """One BOS, at index 0, and the one that the tokenizer would put there."""
    tokenizer, bos = target.tokenizer, target.bos_id
    cause = "a tokenizer that adds a BOS to a text that has one, or the BOS of another model"
    yield Check(
        "BOS", bos in target.special_ids, f"id {bos}, a {_kind(target, bos)} token (valid: a special one)", cause
    )
    text = target.text_of(texts[0])
    written = target.tokenizer.decode([bos]) + text
    for given in (text, written):
        ids, _ = batch_of(target, [target.ids_of(given)])
        at = (ids[0] == bos).nonzero().flatten().tolist()
        yield Check("one BOS", at == [0], f"at {at} of {given[:24]!r} (valid: [0])", cause)
    own = tokenizer(text)["input_ids"]
    first = own[0] if own and own[0] in target.special_ids else bos
    yield Check("tokenizer's BOS", first == bos, f"the tokenizer begins with {first}, the target with {bos}", cause)


def _kind(target: Target, token: int) -> str:
    return "special" if token in target.special_ids else "content"


def _hook(target: Target, texts: Texts, _feature: int | None) -> Iterator[Check]:
    """What is read at the hook point is the output of the block, as the module and as transformers give it."""
    cause = "a hook point inside the block (MLP, attention, norm) or another layer's"
    ids, mask = batch_of(target, texts[:PADDED])
    limit = closeness(target.model.dtype)
    try:
        read = read_residual(target, ids, mask)
    except (AttributeError, IndexError) as error:
        yield Check("hook point", False, f"{target.hook_point} can't be read ({error})", cause)
        return
    seen: list[Tensor] = []
    block = target.model.get_submodule(hook_path(target.model, target.layer))
    handle = block.register_forward_hook(lambda _m, _i, out: seen.append(out[0] if isinstance(out, tuple) else out))
    try:
        found = target.model(
            input_ids=ids, attention_mask=mask.long(), output_hidden_states=True, use_cache=False
        ).hidden_states
    finally:
        handle.remove()
    same = read.shape == seen[0].shape
    far = difference(read[mask], seen[0].float()[mask]) if same else float("inf")
    where = f"{target.hook_point} differs from the output of block {target.layer}"
    yield Check("hook tensor", far <= limit, f"{where} by {far:.2g} of its norm (valid: {limit:g})", cause)
    if target.layer + 1 < n_blocks(target.model):
        far = difference(read[mask], found[target.layer + 1].float()[mask])
        where = f"{target.hook_point} differs from transformers' hidden state"
        yield Check("hidden state", far <= limit, f"{where} by {far:.2g} of its norm (valid: {limit:g})", cause)
    sae_weights = {f"SAE {name}": value for name, value in vars(target.sae).items() if isinstance(value, Tensor)}
    looked_at = {
        "residual stream": read[mask],
        **sae_weights,
        "activations": target.sae.encode(read[mask].to(target.sae.W_enc.device)),
        "logits": logits(target, ids, mask, keep=1),
    }
    broken = [name for name, tensor in looked_at.items() if not bool(tensor.isfinite().all())]
    overflow = "an overflow in float16, or damaged weights"
    yield Check("finite", not broken, f"not finite: {', '.join(broken)}" if broken else "all", overflow)


def _padding(target: Target, texts: Texts, _feature: int | None) -> Iterator[Check]:
    """Texts of unlike length read alike alone, padded behind or in front, and several in a row if the model takes them so."""
    cause = "padding or a neighbour that is attended to, or positions that are not counted from the text's beginning"
    cut = [text[: max(2, len(text) - 7 * i)] for i, text in enumerate(texts[:PADDED])]
    alone = COPIES * [read_residual(target, *batch_of(target, [text]))[0] for text in cut]
    ids, mask = batch_of(target, COPIES * cut)
    limit = closeness(target.model.dtype)
    in_front = _moved_left(ids, mask)
    for name, read, (rows, marks) in (
        ("right padding", read_residual, (ids, mask)),
        ("left padding", read_residual, in_front),
        ("texts in a row", read_texts, (ids, mask)),
    ):
        together = read(target, rows, marks)
        far = max(difference(together[i][marks[i]], text) for i, text in enumerate(alone))
        found = f"a batch differs from its texts alone by {far:.2g} of the norm (valid: {limit:g})"
        yield Check(name, far <= limit, found, cause)


def _moved_left(
    ids: Int[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"]
) -> tuple[Int[Tensor, "batch pos"], Bool[Tensor, "batch pos"]]:
    """The same batch with its padding in front."""
    shifts = (~mask).sum(1).tolist()
    rolled = [(row.roll(shift), marks.roll(shift)) for row, marks, shift in zip(ids, mask, shifts, strict=True)]
    return torch.stack([row for row, _ in rolled]), torch.stack([marks for _, marks in rolled])


@dataclass(frozen=True)
class Fit:
    """How an SAE describes a sample."""

    variance: float
    """Share of the variance explained."""
    l0: float
    """Mean number of active latents."""


def fit_of(sae: Sae, x: Float[Tensor, "position d_in"]) -> Fit:
    """How well an SAE describes some positions of the residual stream."""
    acts = sae.encode(x)
    error, total = (x - sae.decode(acts, x)).square().sum(), (x - x.mean(0)).square().sum()
    return Fit(float(1 - error / total), float((acts > 0).sum(1).float().mean()))


def _fit(target: Target, texts: Texts, _feature: int | None) -> Iterator[Check]:
    sae, x = target.sae, _ordinary(target, texts)
    fit = fit_of(sae, x)
    flipped = fit_of(replace(sae, apply_b_dec_to_input=not sae.apply_b_dec_to_input), x)
    found = f"variance explained {fit.variance:.2f} with {sae.apply_b_dec_to_input}, {flipped.variance:.2f} with the contrary"
    cause = "the flag in the SAE's configuration is wrong"
    yield Check("apply_b_dec_to_input", not _better(flipped, fit, sae), found, cause)
    for layer in (target.layer - 1, target.layer + 1):
        if 0 <= layer < n_blocks(target.model):
            there = fit_of(sae, _ordinary(_at(target, layer), texts))
            found = (
                f"variance explained {fit.variance:.2f} at block {target.layer}, {there.variance:.2f} at block {layer}"
            )
            cause = "an SAE of another layer, or resid_pre for resid_post"
            yield Check("layer", not _better(there, fit, sae), found, cause)
    low, high = _l0_range(sae)
    yield Check(
        "L0",
        low <= fit.l0 <= high,
        f"{fit.l0:.1f} (valid: {low:.1f} to {high:.1f})",
        "another activation function than it was trained with (TopK or JumpReLU read as ReLU), or another model",
    )
    yield Check(
        "variance explained",
        fit.variance >= LEAST_VARIANCE,
        f"{fit.variance:.2f} (valid: at least {LEAST_VARIANCE})",
        "an SAE of another model, layer or hook point, or activations that were scaled in training",
    )
    overlap = _overlap(sae, x)
    yield Check(
        "active set",
        overlap >= LEAST_OVERLAP,
        f"Jaccard {overlap:.3f} between float32 and {str(sae.dtype).removeprefix('torch.')} (valid: {LEAST_OVERLAP})",
        "thresholds that its own precision does not resolve: an SAE stored in half precision",
    )


def _better(alternative: Fit, fit: Fit, sae: Sae) -> bool:
    """Whether an alternative fits by itself, and better than what is given."""
    low, high = _l0_range(sae)
    fits = alternative.variance >= LEAST_VARIANCE and low <= alternative.l0 <= high
    return fits and not alternative.variance <= fit.variance + MARGIN


def _at(target: Target, layer: int) -> Target:
    return replace(target, layer=layer, hook_point=hook_path(target.model, layer))


def _ordinary(target: Target, texts: Texts) -> Float[Tensor, "position d_model"]:
    ids, mask = batch_of(target, texts)
    residual = read_residual(target, ids, mask)
    return residual[ordinary_positions(residual, mask)].to(target.sae.W_enc.device)


def _l0_range(sae: Sae) -> tuple[float, float]:
    if sae.expected_l0:
        return sae.expected_l0 / L0_FACTOR, sae.expected_l0 * L0_FACTOR
    return LEAST_L0, max(10.0, MOST_SHARE * sae.d_sae)


def _overlap(sae: Sae, x: Float[Tensor, "position d_in"]) -> float:
    """Jaccard index of the active latents in float32 and with weights and input in the dtype that the SAE is stored in."""
    own: Any = sae.to(x.device, sae.dtype)
    ours, theirs = sae.encode(x) > 0, own.encode(x.to(sae.dtype)) > 0
    return float((ours & theirs).sum() / (ours | theirs).sum().clamp(min=1))
