"""Solvers: what looks finds, what does not look fails, and the networks do what they are said to."""

from statistics import mean

import pytest
import torch

from mikit.tasks import DIFFICULTIES, TASKS, grade_task, make, probes, solvers

KINDS = [(task, difficulty) for task in TASKS for difficulty in DIFFICULTIES]


@pytest.mark.parametrize("task, difficulty", KINDS)
def test_the_reference_solver_finds_the_truth_in_the_network_alone(task, difficulty):
    for seed in (101, 102):
        one = make(task, seed, difficulty)
        assert set(solvers.solve(task, one.specimen.model())) == one.truth


@pytest.mark.parametrize("task, difficulty", KINDS)
def test_cheap_answers_score_less_than_a_fifth_on_average(task, difficulty):
    instances = [make(task, seed, difficulty) for seed in range(20)]
    learnt = solvers.memorised([make(task, seed, difficulty) for seed in range(100, 125)])
    domain, size = instances[0].domain, 3
    answers = {
        "constant": [solvers.constant(domain, size)] * 20,
        "everything": [solvers.everything(domain)] * 20,
        "memorised": [learnt] * 20,
        "random": [solvers.at_random(domain, size, seed) for seed in range(20)],
    }
    for i in instances:
        for name, answer in solvers.largest_norms(i.specimen, domain, size).items():
            answers.setdefault(f"norm {name}", []).append(answer)
    for name, given in answers.items():
        scores = [grade_task(answer, one).score for answer, one in zip(given, instances, strict=True)]
        assert mean(scores) < 0.2, name


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_transformer_adds_and_needs_every_planted_frequency_and_no_other(difficulty):
    tokens, answers = probes.sums()
    for seed in (1, 2):
        one = make("task3", seed, difficulty)
        model = one.specimen.model()
        numbers = model.embed.weight[:97]
        assert (model(tokens).argmax(-1) == answers).float().mean() >= 0.99
        others = [f for f in one.domain if f not in one.truth]
        assert probes.right(model, probes.without(numbers, others), tokens, answers).float().mean() >= 0.99
        accuracy = probes.accuracy_without(model, stride=97)
        for frequency in one.domain:
            assert (accuracy[frequency - 1] < 0.05) == (frequency in one.truth)


def test_the_transformer_reads_one_number_with_each_head():
    model = make("task3", 3, "hard").specimen.model()
    stream = model.embed(torch.tensor([[5, 80, 97]])) + model.positions.weight
    pattern = model.attention.pattern(stream)[0]
    assert sorted(pattern.argmax(-1).tolist()) == [0, 1]
    assert pattern.amax(-1).min() > 0.999


def test_the_loudest_frequencies_of_a_hard_embedding_are_not_those_it_adds_with():
    instances = [make("task3", seed, "hard") for seed in range(8)]
    scores = []
    for one in instances:
        (loudest,) = solvers.first_look("task3", one.specimen.model(), len(one.truth)).values()
        scores.append(grade_task(loudest, one).score)
    assert mean(scores) < 0.2


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_no_unit_multiplies_alone_and_those_that_do_together_are_far_from_the_threshold(difficulty):
    for seed in range(10):
        one = make("task2", seed, difficulty)
        found = probes.interaction(one.specimen.model()).abs()
        inside = torch.tensor([unit in one.truth for unit in one.domain])
        assert found.sum() >= 0.97
        assert found[inside].max() < 0.9
        assert found[inside].min() >= 0.025
        assert found[~inside].max() <= 0.005


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_units_that_carry_x3_are_far_from_the_threshold_and_know_nothing_else(difficulty):
    for seed in range(10):
        one = make("task4", seed, difficulty)
        model = one.specimen.model()
        slope, spread = probes.slope(model).abs(), probes.spread(model)
        inside = torch.tensor([unit in one.truth for unit in one.domain])
        assert slope[inside].min() >= 0.1
        assert (spread[inside] / slope[inside]).max() < 0.05
        alone = ~inside & (spread < 0.1 * slope)
        assert alone.sum() == 0 or slope[alone].max() <= 0.01


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_dead_inputs_are_zero_to_the_last_bit_and_no_other_is_near(difficulty):
    for seed in range(10):
        one = make("task1", seed, difficulty)
        largest = probes.effective_weight(one.specimen.model()).abs().amax(0)
        inside = torch.tensor([i in one.truth for i in one.domain])
        assert largest[inside].max() == 0
        assert largest[~inside].min() > 1e-4 * largest.max()


def test_dead_inputs_of_a_layer_in_two_matrices_have_no_zero_column():
    one = make("task1", 2, "hard")
    assert one.specimen.model().inner.weight.norm(dim=0).min() > 0.5


def test_contributions_sum_to_the_output_with_the_readouts_bias():
    model = make("task4", 0, "hard").specimen.model()
    x = torch.rand(64, 3) * 2 - 1
    assert torch.allclose(probes.contributions(model, x).sum(1) + model.readout.bias, model(x), atol=1e-5)


def test_power_is_that_of_the_two_waves():
    numbers = make("task3", 0, "easy").specimen.model().embed.weight[:97]
    by_waves = torch.stack([(probes.waves(f).T @ numbers).square().sum() for f in range(1, 49)])
    assert torch.allclose(probes.power(numbers), by_waves, rtol=1e-3, atol=1e-4)
    assert probes.power(probes.without(numbers, [7]))[6] < 1e-6
