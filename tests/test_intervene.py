"""Step 5 on the planted model: doses, null interventions, controls, and what is moved."""

import numpy as np
import pytest
import torch
from planted_lab import TRUTH, lab

from mikit.experiments.directions import control_directions
from mikit.experiments.intervene import intervene, scoring_dose, why_null
from mikit.settings import Protocol
from mikit.trace import Dose, Intervention

LANTERN, METALS, BOS, ILLNESSES = (TRUTH[name].index for name in ("lantern", "metals", "beginning", "illnesses"))


@pytest.fixture(scope="module")
def made():
    return lab()


def test_more_strength_is_more_effect(made):
    found = made.intervention(LANTERN)
    assert [dose.dose for dose in found.doses] == made.setting.protocol.doses
    assert (np.diff([0.0, *(dose.kl for dose in found.doses)]) > 0).all()


def test_the_tokens_moved_are_the_planted_ones(made):
    promoted = made.intervention(LANTERN).promoted
    assert {token.token for token in promoted[:20]} == TRUTH["lantern"].promotes
    assert [token.value for token in promoted] == sorted((token.value for token in promoted), reverse=True)
    suppressed = made.intervention(ILLNESSES).suppressed
    assert {token.token for token in suppressed[:20]} == TRUTH["illnesses"].suppresses
    assert suppressed[0].value == min(token.value for token in suppressed) < 0


def test_only_eligible_tokens_are_listed(made):
    eligible = made.setting.vocabulary.eligible(made.setting.protocol.min_token_count)
    found = made.intervention(LANTERN)
    listed = [*found.promoted, *found.suppressed, *(token for control in found.controls for token in control.promoted)]
    assert all(eligible[token.id] for token in listed)
    assert len(found.promoted) == len(found.suppressed) == 50


def test_a_feature_without_effect_is_null(made):
    found = made.intervention(METALS)
    assert found.null
    assert "KL at the scoring dose" in found.null_reason


def test_a_feature_that_fires_on_no_content_is_null_and_costs_nothing(made):
    found = made.intervention(BOS)
    assert found.null
    assert "never fires on explain" in found.null_reason
    assert found.controls == found.promoted == []


def test_controls_are_of_three_kinds_and_leave_out_the_nearest(made):
    observation, found = made.observation(LANTERN), made.intervention(LANTERN)
    kinds = [control.kind for control in found.controls]
    assert kinds == ["near"] * 4 + ["random_live"] * 4 + ["random_direction"] * 4
    latents = [control.latent for control in found.controls if control.latent is not None]
    assert latents[:4] == observation.neighbours[1:5]
    assert len(set(latents)) == 8
    assert not {LANTERN, observation.neighbours[0]} & set(latents)


def test_controls_have_the_norm_of_the_feature(made):
    setting = made.setting
    own = setting.target.sae.W_dec[LANTERN]
    for control in control_directions(setting, LANTERN, made.observation(LANTERN).neighbours):
        assert float(control.vector.norm()) == pytest.approx(float(own.norm()), rel=1e-5)
        cosine = torch.nn.functional.cosine_similarity(control.vector, own, dim=0)
        assert control.cosine == pytest.approx(float(cosine), abs=1e-5)


def test_random_live_controls_are_not_dense(made):
    store, protocol = made.setting.store, made.setting.protocol
    for control in made.intervention(LANTERN).controls:
        if control.kind == "random_live":
            assert (
                protocol.rare_windows <= store.firing_counts[control.latent] <= protocol.dense_share * store.n_windows
            )


def test_the_same_seed_draws_the_same_controls_and_another_feature_others(made):
    def names(feature, neighbours=(1, 2, 3, 4, 5)):
        return [(c.name, c.vector.tolist()) for c in control_directions(made.setting, feature, neighbours)]

    assert names(LANTERN) == names(LANTERN)
    assert names(LANTERN)[4:] != names(ILLNESSES)[4:]


def test_an_intervention_is_reproducible_and_validates(made):
    again = intervene(made.setting, LANTERN, made.observation(LANTERN))
    assert again == made.intervention(LANTERN)
    assert Intervention.model_validate_json(again.model_dump_json()) == again


def test_the_following_positions_and_completions_are_reported(made):
    found = made.intervention(LANTERN)
    assert len(found.teacher_forced) == 8
    assert min(found.teacher_forced) >= 0
    assert all(completion.clean and completion.steered for completion in found.completions)
    assert {completion.dose for completion in found.completions} == {found.scoring_dose}


def test_the_scoring_dose_is_the_one_nearest_the_target():
    doses = [Dose(dose=dose, kl=kl) for dose, kl in ((0.5, 0.01), (1.0, 0.2), (2.0, 0.4), (4.0, 2.0))]
    assert scoring_dose(doses, 0.25) == 1.0
    assert scoring_dose(doses, 0.3) == 1.0
    assert scoring_dose(doses, 5.0) == 4.0


def test_null_is_less_than_either_limit():
    protocol = Protocol()
    assert why_null(0.1, 0.1, protocol) is None
    assert "below 0.001" in why_null(0.0009, 0.0, protocol)
    assert "random directions" in why_null(0.004, 0.1, protocol)


def test_every_token_can_be_steered(made):
    everywhere = made.setting.protocol.model_copy(update={"position": "all_tokens"})
    found = intervene(
        type(made.setting)(**{**vars(made.setting), "protocol": everywhere}), LANTERN, made.observation(LANTERN)
    )
    assert found.position == "all_tokens"
    assert {token.token for token in found.promoted[:20]} == TRUTH["lantern"].promotes
