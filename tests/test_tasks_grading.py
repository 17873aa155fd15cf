"""Answers: what is one and what is rejected, and a score under which knowing nothing is worth nothing."""

import random
from statistics import mean

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mikit.errors import BadInput
from mikit.tasks import DIFFICULTIES, TASKS, Grade, Reason, Rejection, grade_task, make, task1, task2, task3, task4
from mikit.tasks.grading import LONGEST, corrected

INSTANCE = make("task3", 5, "medium")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


class Trap(list):
    """A list that does something when it is read."""

    def __iter__(self):
        raise SystemExit("read")


@pytest.mark.parametrize(
    "submission, reason",
    [
        ("1,2,3", Reason.NOT_A_LIST),
        ("²", Reason.NOT_A_LIST),
        ("", Reason.NOT_A_LIST),
        (b"\x01", Reason.NOT_A_LIST),
        (None, Reason.NOT_A_LIST),
        (7, Reason.NOT_A_LIST),
        (True, Reason.NOT_A_LIST),
        (float("nan"), Reason.NOT_A_LIST),
        ({"1": 2}, Reason.NOT_A_LIST),
        ({1: 2}, Reason.NOT_A_LIST),
        (range(10**12), Reason.NOT_A_LIST),
        (object(), Reason.NOT_A_LIST),
        (Trap([1]), Reason.NOT_A_LIST),
        (torch.tensor(3), Reason.NOT_A_LIST),
        (torch.empty(2, device="meta"), Reason.NOT_A_LIST),
        ([], Reason.EMPTY),
        ((), Reason.EMPTY),
        (np.array([]), Reason.EMPTY),
        ([1] * (LONGEST + 1), Reason.TOO_LONG),
        (["²"], Reason.NOT_AN_INTEGER),
        (["--5"], Reason.NOT_AN_INTEGER),
        (["5"], Reason.NOT_AN_INTEGER),
        ([True], Reason.NOT_AN_INTEGER),
        ([1, False], Reason.NOT_AN_INTEGER),
        ([np.bool_(True)], Reason.NOT_AN_INTEGER),
        ([2.0], Reason.NOT_AN_INTEGER),
        ([float("nan")], Reason.NOT_AN_INTEGER),
        ([float("inf")], Reason.NOT_AN_INTEGER),
        ([None], Reason.NOT_AN_INTEGER),
        ([[1, 2]], Reason.NOT_AN_INTEGER),
        ([1, [2]], Reason.NOT_AN_INTEGER),
        ([{"a": 1}], Reason.NOT_AN_INTEGER),
        (np.ones((2, 2), dtype=int), Reason.NOT_AN_INTEGER),
        (np.array([1.5]), Reason.NOT_AN_INTEGER),
        (torch.tensor([True]), Reason.NOT_AN_INTEGER),
        ([0], Reason.OUT_OF_RANGE),
        ([49], Reason.OUT_OF_RANGE),
        ([-1], Reason.OUT_OF_RANGE),
        ([10**400], Reason.OUT_OF_RANGE),
        ([-(10**5000)], Reason.OUT_OF_RANGE),
        ([np.uint64(2**64 - 1)], Reason.OUT_OF_RANGE),
    ],
    ids=lambda value: None if isinstance(value, Reason) else ascii(type(value).__name__),
)
def test_what_is_no_answer_is_rejected_with_a_reason(submission, reason):
    result = grade_task(submission, INSTANCE)
    assert isinstance(result, Rejection)
    assert result.reason is reason
    assert "valid: " in result.message
    assert "\n" not in result.message
    assert len(result.message) < 160


@given(ANYTHING)
def test_nothing_that_is_submitted_is_an_exception(submission):
    result = grade_task(submission, INSTANCE)
    assert isinstance(result, Grade | Rejection)
    assert isinstance(result, Rejection) or 0.01 < result.score < 0.99


def test_a_rejection_says_the_same_whatever_the_truth_is():
    other = make("task3", 6, "medium")
    assert other.truth != INSTANCE.truth
    for submission in ([0], ["x"], "x", []):
        assert grade_task(submission, INSTANCE) == grade_task(submission, other)


@pytest.mark.parametrize("form", [list, tuple, set, frozenset, np.array, torch.tensor])
def test_any_list_of_whole_numbers_is_an_answer(form):
    answer = sorted(INSTANCE.truth)
    result = grade_task(form(answer), INSTANCE)
    assert result == Grade(score=pytest.approx(0.9899), solved=True, precision=1.0, recall=1.0)


@given(st.lists(st.sampled_from(list(INSTANCE.domain)), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_order_and_repetition_do_not_matter(answer, shuffle):
    again = [*answer, *answer]
    shuffle.shuffle(again)
    assert grade_task(again, INSTANCE) == grade_task(answer, INSTANCE)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_truth_is_solved_everything_is_worth_nothing_and_nearly_all_is_not_solved(task, difficulty):
    one = make(task, 11, difficulty)
    truth = sorted(one.truth)
    assert grade_task(truth, one).solved
    assert grade_task(list(one.domain), one).score == pytest.approx(0.0101)
    stranger = next(number for number in one.domain if number not in one.truth)
    for near in (truth[1:], [*truth, stranger]):
        result = grade_task(near, one)
        assert not result.solved
        assert result.score < 0.98


@given(st.sets(st.integers(0, 19), min_size=1, max_size=8), st.sets(st.integers(0, 19), min_size=1))
def test_a_right_number_more_never_costs_and_a_wrong_one_never_pays(truth, answer):
    truth, answer = frozenset(truth), frozenset(answer)
    before = corrected(answer, truth, 20)
    for number in range(20):
        after = corrected(answer | {number}, truth, 20)
        assert after >= before if number in truth else after <= before


def test_scores_print_as_001_to_099():
    right, wrong = sorted(INSTANCE.truth), [n for n in INSTANCE.domain if n not in INSTANCE.truth]
    for answer, printed in ((right, "0.99"), (wrong, "0.01")):
        score = grade_task(answer, INSTANCE).score
        assert 0.01 < score < 0.99
        assert f"{score:.2f}" == printed


def test_precision_and_recall_are_shares_of_the_answer_and_of_the_truth():
    truth = sorted(INSTANCE.truth)
    stranger = next(number for number in INSTANCE.domain if number not in INSTANCE.truth)
    result = grade_task([truth[0], stranger], INSTANCE)
    assert (result.precision, result.recall) == (0.5, 1 / len(truth))


def test_random_answers_score_next_to_nothing():
    draws = random.Random(0)
    scores = [grade_task(draws.sample(list(INSTANCE.domain), 5), INSTANCE).score for _ in range(300)]
    assert mean(scores) < 0.1


def test_a_tasks_own_grader_refuses_instances_of_another():
    for module in (task1, task2, task3, task4):
        one = make(module.TASK.id, 1)
        assert module.grade(sorted(one.truth), one).solved
        stranger = make("task2" if module is task1 else "task1", 1)
        with pytest.raises(BadInput, match="an instance of task"):
            module.grade([1], stranger)
