"""Step 5: add the feature's direction to the residual stream and see what the next token does."""

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mikit.experiments.directions import Direction, control_directions
from mikit.experiments.measure import eligible_ids, lens_tokens, most_moved
from mikit.experiments.setting import Setting
from mikit.experiments.steering import Changes, Site, changes, continuations, following_kl, prompt_sites
from mikit.settings import Protocol
from mikit.targets.state import state_of
from mikit.trace import Completion, Control, Dose, Intervention, LensToken, Observation

N_MOVED = 50
"""Tokens listed a side."""
FOLLOWING = 8
"""Teacher-forced positions after the steered one."""
N_COMPLETIONS = 3
COMPLETION_TOKENS = 16


def scoring_dose(doses: Sequence[Dose], kl_target: float) -> float:
    """The dose whose mean KL is nearest the target; of two equally near ones the smaller."""
    return min(doses, key=lambda dose: (abs(dose.kl - kl_target), dose.dose)).dose


def why_null(kl: float, random_kl: float, protocol: Protocol) -> str | None:
    """One line if an intervention does nothing to speak of; None if it does something.

    Args:
        kl: mean KL at the scoring dose, nats.
        random_kl: median KL of random directions of the same norm.
        protocol: holds both limits.
    """
    if kl < protocol.null_kl:
        return f"KL at the scoring dose is {kl:.2g} nats, below {protocol.null_kl:g}"
    if kl < protocol.null_kl_ratio * random_kl:
        share = f"{protocol.null_kl_ratio:g} of the {random_kl:.2g} nats of random directions"
        return f"KL at the scoring dose is {kl:.2g} nats, below {share} at the same norm"
    return None


def intervene(setting: Setting, feature: int, observation: Observation, illustrate: bool = True) -> Intervention:
    """What adding `dose * ref * W_dec[feature]` does on the `explain` prompts, beside its controls at the scoring dose.

    Args:
        setting: target, prompts, doses.
        feature: the latent.
        observation: gives its scale and its neighbours.
        illustrate: also what is shown and never scored, which takes most of the time: what the model goes on with, and
            how far the effect reaches into text that follows.
    """
    if observation.ref <= 0:
        return _nothing_to_steer(setting)
    target, protocol = setting.target, setting.protocol
    prompts, tokens = setting.prompts["explain"], eligible_ids(setting)
    sites = prompt_sites(prompts, protocol.position)
    unit_dose = observation.ref * target.sae.W_dec[feature]
    own = changes(target, sites, torch.stack([dose * unit_dose for dose in protocol.doses]), tokens, setting.batch)
    doses = [Dose(dose=dose, kl=float(kl)) for dose, kl in zip(protocol.doses, own.kl.mean(1), strict=True)]
    dose = scoring_dose(doses, protocol.kl_target)
    at_dose = protocol.doses.index(dose)
    directions = control_directions(setting, feature, observation.neighbours)
    strengths = torch.stack([dose * observation.ref * direction.vector for direction in directions])
    beside = changes(target, sites, strengths, tokens, setting.batch)
    controls = _controls(setting, directions, beside, tokens)
    random_kl = float(np.median([control.kl for control in controls if control.kind == "random_direction"]))
    reason = why_null(doses[at_dose].kl, random_kl, protocol)
    effect = own.logprob[at_dose].mean(0)
    return Intervention(
        position=protocol.position,
        doses=doses,
        scoring_dose=dose,
        null=reason is not None,
        null_reason=reason,
        random_kl=random_kl,
        promoted=_moved(setting, tokens, effect, 1, N_MOVED),
        suppressed=_moved(setting, tokens, effect, -1, N_MOVED),
        teacher_forced=_following(setting, sites, dose * unit_dose) if illustrate else [],
        completions=_completions(setting, dose * unit_dose, dose) if illustrate else [],
        controls=controls,
        n_prompts=len(prompts),
    )


def _nothing_to_steer(setting: Setting) -> Intervention:
    doses = [Dose(dose=dose, kl=0.0) for dose in setting.protocol.doses]
    return Intervention(
        position=setting.protocol.position,
        doses=doses,
        scoring_dose=doses[0].dose,
        null=True,
        null_reason="the feature never fires on explain, so there is no strength to steer it at",
        random_kl=0.0,
        promoted=[],
        suppressed=[],
        teacher_forced=[],
        completions=[],
        controls=[],
        n_prompts=len(setting.prompts["explain"]),
    )


def _moved(
    setting: Setting, tokens: Int[np.ndarray, " token"], effect: Float[np.ndarray, " token"], sign: int, n: int
) -> list[LensToken]:
    """The tokens most raised (`sign` 1) or most lowered (-1), none that went the other way."""
    order = most_moved(sign * effect, n)
    order = order[sign * effect[order] > 0]
    return lens_tokens(setting.vocabulary, tokens[order], effect[order])


def _controls(
    setting: Setting, directions: Sequence[Direction], beside: Changes, tokens: Int[np.ndarray, " token"]
) -> list[Control]:
    return [
        Control(
            name=direction.name,
            kind=direction.kind,
            latent=direction.latent,
            cosine=direction.cosine,
            kl=float(kl.mean()),
            promoted=_moved(setting, tokens, logprob.mean(0), 1, setting.protocol.n_output_tokens),
            suppressed=_moved(setting, tokens, logprob.mean(0), -1, setting.protocol.n_output_tokens),
        )
        for direction, logprob, kl in zip(directions, beside.logprob, beside.kl, strict=True)
    ]


def _following(setting: Setting, sites: Sequence[Site], vector: Float[Tensor, " d_model"]) -> list[float]:
    """Mean KL at each teacher-forced position behind the steered prompts, nats."""
    written = _clean_continuations(state_of(setting.target), setting, FOLLOWING)
    return following_kl(setting.target, sites, written, vector, setting.batch).tolist()


@lru_cache(maxsize=2)
def _clean_continuations(_state: Hashable, setting: Setting, n: int) -> tuple[tuple[int, ...], ...]:
    """How the unchanged model goes on from the `explain` prompts: the same for every feature."""
    sites = prompt_sites(setting.prompts["explain"], setting.protocol.position)
    return tuple(map(tuple, continuations(setting.target, sites, None, n, setting.batch)))


def _completions(setting: Setting, vector: Float[Tensor, " d_model"], dose: float) -> list[Completion]:
    """Prompts of the length that most have, as these are written together."""
    target, prompts = setting.target, setting.prompts["explain"]
    [(length, _)] = Counter(map(len, prompts)).most_common(1)
    chosen = [ids for ids in prompts if len(ids) == length][:N_COMPLETIONS]
    sites = prompt_sites(chosen, setting.protocol.position)
    clean = continuations(target, sites, None, COMPLETION_TOKENS, setting.batch)
    steered = continuations(target, sites, vector, COMPLETION_TOKENS, setting.batch)
    return [
        Completion(prompt=target.text_of(site.ids), clean=target.text_of(was), steered=target.text_of(now), dose=dose)
        for site, was, now in zip(sites, clean, steered, strict=True)
    ]
