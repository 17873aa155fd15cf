"""Rounds of refinement: each does one component of a run anew, in a folder of its own, with what depends on it.

A round starts from the best state so far. Its folder holds the steps that it did; all others are read from the state that
it started from, so that what is up to date is found as in any run, and a round that was killed goes on where it was. The
last step takes the best state, and draws `confirm` once.
"""

import json
import logging
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from mikit.errors import BadInput
from mikit.files import write_json
from mikit.gates import judge_gates
from mikit.refine import REWRITTEN, Component, Rank, failing, rank, tried_input, tried_output, why_stop
from mikit.runs import steps
from mikit.runs.directory import RunDirectory
from mikit.runs.found import Found, chosen
from mikit.runs.run import Run
from mikit.trace import Gates, InputScore, OutputScore, Round, RoundMetrics, StepFile

log = logging.getLogger(__name__)


class Session(BaseModel):
    """One call for refinement: it ends with a draw of `confirm`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: int
    """Rounds that there were before it."""
    max_rounds: int
    batch: int = 1
    """Which draw of `confirm` it ends with."""


class RoundDirectory(RunDirectory):
    """`rounds/K/` of a run: what the round did; what it did not do is read from the state that it started from."""

    def __init__(self, base: RunDirectory, number: int, start: RunDirectory) -> None:
        self.params = base.params
        self.path = base.path / "rounds" / str(number)
        self.start = start
        self._ledger = base.ledger_path
        self.ledger_prefix = f"round{number} "

    @property
    def ledger_path(self) -> Path:
        """The run's."""
        return self._ledger

    def own(self, step: int) -> StepFile | None:
        """The step's file, if the round did it."""
        return super().read(step)

    def read(self, step: int) -> StepFile | None:
        """The step's file, of the round or of the state that it started from."""
        return self.own(step) or self.start.read(step)


@dataclass(frozen=True)
class State:
    """A run as it stands after some round; 0 is the run itself."""

    run: Run
    number: int

    @cached_property
    def found(self) -> Found:
        """Steps 1 to 8."""
        need = self.run.need
        return Found(
            observation=need(steps.observe),
            input_hypotheses=need(steps.hypothesise_input),
            experiments=need(steps.design_input),
            input_eval=need(steps.score_inputs),
            intervention=need(steps.intervene),
            output_hypotheses=need(steps.hypothesise_output),
            output_eval=need(steps.score_outputs),
            chain=need(steps.test_chain),
        )

    @property
    def input_score(self) -> InputScore | None:
        """Of the chosen input hypothesis."""
        scores = self.found.input_eval
        return next((score for score in scores.per_hypothesis if score.hypothesis == scores.chosen), None)

    @property
    def output_score(self) -> OutputScore | None:
        """Of the chosen output hypothesis."""
        scores = self.found.output_eval
        return next((score for score in scores.per_hypothesis if score.hypothesis == scores.chosen), None)

    @cached_property
    def gates(self) -> Gates:
        """On `select`."""
        found = self.found
        return judge_gates(
            found.observation, self.input_score, self.output_score, found.chain, found.intervention, self.run.protocol
        )

    @property
    def metrics(self) -> RoundMetrics:
        """On `select`."""
        inputs, outputs = self.input_score, self.output_score
        return RoundMetrics(
            activation_coverage=inputs.coverage.value if inputs else None,
            boundary_rejection=inputs.rejection.value if inputs else None,
            output_score=outputs.score.value if outputs else None,
            functional_score=self.found.chain.functional_score,
        )

    @property
    def rank(self) -> Rank:
        """What it is compared by."""
        return rank(self.gates, self.metrics)

    @property
    def component(self) -> Component | None:
        """What fails first."""
        return failing(self.gates, self.found.observation.feature_kind)


# --- what is on disk ---


def read_rounds(directory: RunDirectory) -> list[Round]:
    """The rounds that ended, in order."""
    rounds: list[Round] = []
    while (path := directory.path / "rounds" / str(len(rounds) + 1) / "round.json").exists():
        try:
            rounds.append(Round.model_validate_json(path.read_bytes()))
        except ValidationError:
            log.warning("%s is no valid round and is done again", path)
            break
    return rounds


def read_sessions(directory: RunDirectory) -> list[Session]:
    """The calls for refinement, in order."""
    path = directory.path / "rounds" / "sessions.json"
    try:
        return [Session.model_validate(each) for each in json.loads(path.read_text("utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, ValidationError):
        raise BadInput(f"{path} is not what was written: delete {path.parent} to begin refinement anew") from None


def call_for(directory: RunDirectory, max_rounds: int) -> None:
    """Open a session of so many rounds at most. Its last step draws `confirm` from documents that no verdict saw."""
    before = read_sessions(directory)
    trace = directory.read_trace()
    session = Session(
        after=len(read_rounds(directory)),
        max_rounds=max_rounds,
        batch=(trace.meta.confirm_batches if trace else 0) + 1,
    )
    write_json(
        directory.path / "rounds" / "sessions.json", [each.model_dump(mode="json") for each in [*before, session]]
    )


# --- rounds ---


@dataclass(frozen=True)
class Refined:
    """A run with its rounds."""

    states: tuple[State, ...]
    """The run itself, then the state after each round."""
    rounds: tuple[Round, ...]
    session: Session | None
    """The last call for refinement."""
    stopped: str
    """Why no further round follows."""

    @property
    def best(self) -> State:
        """The best state, the first of equal ones."""
        return max(self.states, key=lambda state: state.rank)


def refine(run: Run) -> Refined:
    """Do the rounds that are still to be done: of the last call, or of the run's own `max_rounds` if nobody called yet."""
    run.setting  # noqa: B018  shared by the runs of all rounds
    sessions = read_sessions(run.directory)
    if not sessions and run.params.max_rounds and run.directory.read(9) is None:
        call_for(run.directory, run.params.max_rounds)
        sessions = read_sessions(run.directory)
    rounds = read_rounds(run.directory)
    states = [State(run, 0)]
    for i, each in enumerate(rounds):
        state = _state(run, states, each.number, each.started_from)
        if set(each.steps_rerun) & set(state.run.directory.stale()):
            log.info(
                "round %d and those after it are of other parameters or evidence: they are done again", each.number
            )
            for later in rounds[i:]:
                shutil.rmtree(run.directory.path / "rounds" / str(later.number))
            del rounds[i:]
            break
        states.append(state)
    if not sessions:
        return Refined(tuple(states), (), None, "no refinement was asked for")
    session = sessions[-1]
    while True:
        best = max(states, key=lambda state: state.rank)
        mine = rounds[session.after :]
        spent = bool(mine) and _over_budget(states[-1])
        if stopped := why_stop(best.component, mine, session.max_rounds, spent):
            return Refined(tuple(states), tuple(rounds), session, stopped)
        assert best.component is not None
        state, record = _round(run, states, rounds, best, best.component)
        states.append(state)
        rounds.append(record)


def _state(run: Run, states: list[State], number: int, started_from: int) -> State:
    return State(run.at(RoundDirectory(run.directory, number, states[started_from].run.directory)), number)


def _over_budget(state: State) -> bool:
    directory = state.run.directory
    files = [directory.own(step) for step in range(1, 9)] if isinstance(directory, RoundDirectory) else []
    return any(file.ledger.over_budget for file in files if file)


def _round(
    run: Run, states: list[State], rounds: list[Round], best: State, component: Component
) -> tuple[State, Round]:
    """Do one component anew, and what depends on it."""
    state = _state(run, states, len(states), best.number)
    directory = state.run.directory
    assert isinstance(directory, RoundDirectory)
    changes = _change(state, states, best, component)
    if changes:
        state.found  # noqa: B018  runs what is not up to date
    else:
        # nothing new was found to try: the state is the one that it started from
        state = State(best.run, state.number)
    better = bool(changes) and state.rank > best.rank
    record = Round(
        number=len(states),
        component=component,
        diagnosis=best.gates.reasons[component],
        changes=changes,
        steps_rerun=[step for step in range(1, 9) if directory.own(step)],
        metrics=state.metrics,
        gates=state.gates,
        better=better,
        started_from=best.number,
    )
    log.info("round %d, %s: %s", record.number, component, "better" if better else "no gain")
    write_json(directory.path / "round.json", record.model_dump(mode="json"))
    return _state(run, states, record.number, best.number), record


def _change(state: State, states: list[State], best: State, component: Component) -> list[str]:
    """Write what is to be tried instead, as the round's own file of the first step that changes; it is kept if it is there."""
    run, directory = state.run, state.run.directory
    assert isinstance(directory, RoundDirectory)
    if component == "chain" and (other := _other_pair(states, best)) is not None:
        if directory.own(7) is None:
            run.perform(steps.score_outputs, lambda: best.found.output_eval.model_copy(update={"chosen": other}))
        hypothesis = chosen(best.found.output_hypotheses.hypotheses, other)
        return [f"the pair with {hypothesis.id}: {hypothesis.text}"] if hypothesis else []
    step = REWRITTEN[component]
    n, explainer = run.params.max_hypotheses, run.explainer
    if directory.own(step) is None:
        if component == "input":
            known = _tried_inputs(states)
            run.perform(
                steps.hypothesise_input,
                lambda: explainer.input_hypotheses(best.found.observation, run.vocabulary, n, known),
            )
        else:
            outputs = _tried_outputs(states)
            run.perform(
                steps.hypothesise_output, lambda: explainer.output_hypotheses(best.found.intervention, n, outputs)
            )
    if component == "input":
        return [hypothesis.text for hypothesis in run.need(steps.hypothesise_input).hypotheses]
    return [hypothesis.text for hypothesis in run.need(steps.hypothesise_output).hypotheses]


def _other_pair(states: list[State], best: State) -> str | None:
    """An output hypothesis whose score passes and whose checks nobody has tried; None if there is none."""
    tried = {state.found.output_choice.text for state in states if state.found.output_choice}
    texts = {hypothesis.id: hypothesis.text for hypothesis in best.found.output_hypotheses.hypotheses}
    gate = best.run.protocol.gate_output
    fitting = [
        score
        for score in best.found.output_eval.per_hypothesis
        if score.score.value >= gate and texts[score.hypothesis] not in tried
    ]
    return max(fitting, key=lambda score: score.score.value).hypothesis if fitting else None


def _tried_inputs(states: list[State]) -> list[Any]:
    tried = {}
    for state in states:
        texts = {each.id: each.text for each in state.found.input_hypotheses.hypotheses}
        for score in state.found.input_eval.per_hypothesis:
            tried[texts[score.hypothesis]] = tried_input(texts[score.hypothesis], score)
    return list(tried.values())


def _tried_outputs(states: list[State]) -> list[Any]:
    tried = {}
    for state in states:
        texts = {each.id: each.text for each in state.found.output_hypotheses.hypotheses}
        for score in state.found.output_eval.per_hypothesis:
            of_chosen = score.hypothesis == state.found.output_eval.chosen
            chain = state.gates.reasons["chain"] if of_chosen and state.gates.chain == "fail" else None
            tried[texts[score.hypothesis]] = tried_output(texts[score.hypothesis], score, chain)
    return list(tried.values())


# --- an existing run ---


def continued(params_of_run: RunDirectory, max_rounds: int) -> bool:
    """Call for rounds on a finished run, unless nothing is left to mend.

    Returns:
        Whether rounds will be done.

    Raises:
        BadInput: there is no run to continue.
    """
    directory = params_of_run
    if directory.read(1) is None:
        raise BadInput(
            f"{directory.path} holds no run: valid: one that mikit run began, by --layer, --feature and --run"
        )
    trace = directory.read_trace()
    if trace is None or not directory.finished():
        # it was stopped: what was called for before is done first
        if not read_sessions(directory):
            call_for(directory, max_rounds)
        return True
    if failing(trace.meta.gate_pass, trace.meta.feature_kind) is None:
        return False
    call_for(directory, max_rounds)
    return True
