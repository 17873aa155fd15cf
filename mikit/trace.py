"""The schema of everything that a run writes to disk: the step files and `trace.json`.

Every model forbids unknown fields and non-finite numbers, so that a file that validates means what it says.
"""

from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Literal[1] = 1

Split = Literal["explain", "select", "confirm"]
SPLITS: tuple[Split, ...] = ("explain", "select", "confirm")
GateVerdict = Literal["pass", "fail", "undecided", "none"]
CheckVerdict = Literal["pass", "fail", "undecided"]
FeatureKind = Literal["normal", "dead", "special_only", "rare", "dense"]
Status = Literal["complete", "dead", "failed", "budget"]
Direction = Literal["promotes", "suppresses"]
Form = Literal["digits", "capitalized", "uppercase", "punctuation", "word_start", "word_part"]
Stratum = Literal["authored", "corpus", "neighbour", "random"]
STRATA: tuple[Stratum, ...] = ("authored", "corpus", "neighbour", "random")
GATED_STRATA: tuple[Stratum, ...] = ("authored", "corpus", "neighbour")
TIMES = frozenset({"started_at", "seconds", "step_seconds", "run"})
"""Fields in which two runs with the same params may differ."""


class Record(BaseModel):
    """Base of all records."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Proportion(Record):
    """A share with its 95 % interval; `value` is None where `n` is 0."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    """Number of cases."""


class Estimate(Record):
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float
    n: int
    """Number of units resampled, such as prompts or documents."""


# --- input end -----------------------------------------------------------------------------------------------------


class Clause(Record):
    """One way to fire: a content token for which every given condition holds. Token texts keep their leading space."""

    tokens: list[str] | None = None
    """The token is one of these."""
    prefix: str | None = None
    """The token, stripped and lower-cased, starts with this and is longer."""
    suffix: str | None = None
    """The token, stripped and lower-cased, ends with this and is longer."""
    form: Form | None = None
    """The token has this form."""
    after: list[str] | None = None
    """One of these tokens stands among the `within` content tokens before it."""
    within: int = Field(default=1, ge=1, le=64)
    """1 means directly before: an n-gram."""


class Rule(Record):
    """A checkable prediction: a text fires when some content token satisfies some clause."""

    any_of: list[Clause] = Field(min_length=1)


class InputHypothesis(Record):
    """What makes the feature fire."""

    id: str
    """`H1`, `H2`, ..."""
    text: str
    """One sentence, for people and for judges."""
    rule: Rule | None
    """The machine-checkable form, where there is one."""


class Window(Record):
    """A run of content tokens of one document with the feature's activation at each."""

    kind: Literal["top", "quantile", "silent_trigger", "silent_random"]
    document: str
    split: Split
    start: int
    """Index of its first token among the document's content tokens."""
    ids: list[int]
    tokens: list[str]
    activations: list[float]
    peak: float
    """Largest activation."""
    peak_index: int
    """Where it lies, among the content tokens."""


class LensToken(Record):
    """A token with a score, such as a logit or a change of log-probability (nats)."""

    id: int
    token: str
    value: float


class Observation(Record):
    """Step 1: the evidence that a writer sees, and the scale on which the feature is measured."""

    source: Literal["corpus", "neuronpedia", "bos_token"]
    corpus: str
    tokens_read: int
    """Content tokens over all splits."""
    feature_kind: FeatureKind
    ref: float
    """99.5th percentile of the non-zero activations on `explain`; 0 for a feature that never fires there."""
    tau: float
    """Firing threshold: 0.25 ref."""
    density: float
    """Share of content tokens with an activation above 0."""
    firing_windows: int
    """Windows of all splits whose peak is at least tau."""
    n_windows: int
    bos_activation: float
    """Activation at BOS, which is never evidence."""
    windows: list[Window]
    """From `explain` alone."""
    promoted: list[LensToken]
    """Logit lens: unembedding of the decoder direction through the final norm's scale, largest first."""
    suppressed: list[LensToken]
    """The same, smallest first."""
    neighbours: list[int]
    """Live latents by decoder cosine, nearest first."""
    neighbour_cosines: list[float]
    notes: list[str] = []
    """What the evidence leaves undefined, and what was measured here in its place."""
    outside: dict[str, Any] = {}
    """Where evidence that was not measured here comes from: address, SAE, counts, explanations of others."""


class InputHypotheses(Record):
    """Step 2."""

    author: str
    """Name of the explainer."""
    hypotheses: list[InputHypothesis]
    note: str | None = None
    """Why there is none, if there is none."""


class TextCase(Record):
    """A text that a hypothesis makes a prediction about."""

    role: Literal["positive", "near_miss"]
    stratum: Stratum | None
    """For near misses."""
    ids: list[int]
    """At most 32 content tokens."""
    text: str
    document: str | None
    """The document it comes from, if it comes from one."""


class InputExperiment(Record):
    """Step 3, for one hypothesis: texts that should fire and texts that should not."""

    hypothesis: str
    split: Split
    cases: list[TextCase]
    shortfall: dict[str, int] = {}
    """By group (`positive` or a stratum), how many texts fewer than asked for could be found."""
    judgements: int = 0
    """Windows that were judged for it: whether the hypothesis predicts them silent."""
    failed_judgements: int = 0
    """Those of them that could not be judged."""
    note: str | None = None
    """Why no text could be written, if none could."""


class InputExperiments(Record):
    """Step 3."""

    experiments: list[InputExperiment]


class ScoredCase(Record):
    """A text with the largest activation over its content tokens."""

    role: Literal["positive", "near_miss"]
    stratum: Stratum | None
    text: str
    document: str | None
    activation: float
    fires: bool
    peak_index: int
    fires_where_said: bool | None = None
    """Whether the feature fires at a token that the rule matches; None without a rule."""


class InputScore(Record):
    """Step 4, for one hypothesis on one split."""

    hypothesis: str
    split: Split
    coverage: Proportion
    """Share of positives that fire, at a token that the rule matches if there is a rule."""
    rejection: Proportion
    """Mean over the non-empty gated strata of the share that stays silent."""
    strata: dict[Stratum, Proportion]
    """Share silent in each stratum."""
    coverage_of_texts: Proportion
    """Share of positives that fire at any token; equal to `coverage` for a hypothesis without a rule."""
    coverage_above_zero: Proportion
    """Coverage with firing meaning any activation above 0."""
    rejection_above_zero: Proportion
    grey_share: float | None
    """Share of all cases with 0 < a < tau."""
    auroc: float | None
    """Of the activation, positives against gated near misses."""
    recall: Proportion
    """Share of naturally firing windows, even over activation quantiles, that are predicted to fire."""
    precision: Proportion
    """Share of natural windows predicted to fire that do; of those sampled."""
    balanced_accuracy: float | None
    """Recall with the share of silent windows, half of which hold a trigger token, that are predicted silent."""
    specificity: Proportion
    """Share of the nearest live features that this one beats on coverage of the same positives."""
    cases: list[ScoredCase]
    judgements: int = 0
    """Windows judged for it, in its experiment and for recall."""
    failed_judgements: int = 0
    """Those of them that could not be judged: more than a tenth leave the gate undecided."""
    note: str | None = None
    """Why its experiment has no written text, if it has none."""


class InputEval(Record):
    """Step 4."""

    per_hypothesis: list[InputScore]
    chosen: str | None
    confirm: InputScore | None = None
    """Filled in by step 9."""


# --- output end ----------------------------------------------------------------------------------------------------


class Control(Record):
    """A direction steered at the same norm as the feature."""

    name: str
    kind: Literal["near", "random_live", "random_direction"]
    latent: int | None
    cosine: float
    """Of its direction with the feature's."""
    kl: float
    """Mean KL at the scoring dose, nats."""
    promoted: list[LensToken]
    """Its 20 most promoted eligible tokens on `explain`."""
    suppressed: list[LensToken]
    """Its 20 most suppressed ones."""


class Dose(Record):
    """What one dose does on `explain`."""

    dose: float
    kl: float
    """Mean over prompts of KL(clean || steered) at the steered position, nats."""


class Completion(Record):
    """A greedy continuation with and without steering."""

    prompt: str
    clean: str
    steered: str
    dose: float


class Intervention(Record):
    """Step 5: what adding `dose * ref * W_dec[feature]` to the residual stream does to the next-token distribution."""

    position: Literal["last_token", "max_activation_token", "all_tokens"]
    doses: list[Dose]
    scoring_dose: float
    """The dose whose mean KL on `explain` is nearest 0.25 nats."""
    null: bool
    """Whether the intervention does nothing to speak of."""
    null_reason: str | None
    random_kl: float
    """Median KL of the random directions at the same norm."""
    promoted: list[LensToken]
    """Mean change of log-probability (nats) over the `explain` prompts: eligible tokens, largest first."""
    suppressed: list[LensToken]
    teacher_forced: list[float]
    """Mean KL at each of the following teacher-forced positions; reported only."""
    completions: list[Completion]
    controls: list[Control]
    n_prompts: int


class OutputHypothesis(Record):
    """What the feature does to the next token."""

    id: str
    """`O1`, `O2`, ..."""
    text: str
    direction: Direction
    kind: Literal["list", "form", "text"]
    """`list`: a closed set of at most 50 tokens; `form`: a rule on the token's text; `text`: needs a judge."""
    tokens: list[str] = Field(default=[], max_length=50)
    rule: Clause | None = None


class OutputHypotheses(Record):
    """Step 6."""

    author: str
    hypotheses: list[OutputHypothesis]
    note: str | None = None


class OutputScore(Record):
    """Step 7, for one hypothesis on one split of the prompts."""

    hypothesis: str
    split: Split
    score: Estimate
    """TPR - FPR over the tokens most moved and distractors; interval by bootstrap over prompts."""
    true_positive_rate: float
    false_positive_rate: float
    targets: list[LensToken]
    """The eligible tokens most moved on this split."""
    distractors: list[LensToken]
    """Tokens moved by controls, matched in log-frequency, leading space, case and script."""
    hits: list[str]
    """Targets that the hypothesis claims."""
    false_alarms: list[str]
    """Distractors that it claims."""
    judgements: int = 0
    """Tokens judged for it."""
    failed_judgements: int = 0
    """Those of them that could not be judged: more than a tenth leave the gate undecided."""


class OutputEval(Record):
    """Step 7."""

    per_hypothesis: list[OutputScore]
    chosen: str | None
    confirm: OutputScore | None = None
    """Filled in by step 9."""


# --- chain ---------------------------------------------------------------------------------------------------------

CheckName = Literal["necessity", "selectivity", "sufficiency", "dose_response", "own_tokens"]
CHECKS: tuple[CheckName, ...] = ("necessity", "selectivity", "sufficiency", "dose_response", "own_tokens")


class Check(Record):
    """One of five pre-registered causal checks."""

    name: CheckName
    verdict: CheckVerdict
    effect: float | None
    """The measured quantity, nats unless the reason says otherwise."""
    interval: tuple[float, float] | None
    n: int
    reason: str
    """One sentence with the comparison made."""
    bars: dict[str, float] = {}
    """What a plot of it shows: the feature beside each control, or a value a dose."""


class Chain(Record):
    """Steps 8 and 9: how the two ends connect."""

    split: Split
    best_pair: tuple[str, str] | None
    """Input and output hypothesis."""
    checks: list[Check]
    functional_score: int | None
    """Number of checks passed; None where the intervention is null."""
    plausibility: float | None = None
    explanation: str
    """One sentence from input to output."""
    judgements: int = 0
    """Tokens judged to find those that the output hypothesis predicts."""
    failed_judgements: int = 0
    """Those of them that could not be judged: more than a tenth leave the gate undecided."""


# --- nulls, gates, trace -------------------------------------------------------------------------------------------


class Explanation(Record):
    """Both ends of an explanation, whoever wrote it; an end that is not explained is None."""

    input: InputHypothesis | None
    output: OutputHypothesis | None

    @property
    def words(self) -> str:
        """Both sentences."""
        return " ".join(end.text for end in (self.input, self.output) if end)


class Null(Record):
    """The gates given an explanation that must not pass, or the reference of a random direction."""

    name: Literal["neighbour", "shuffled", "random_reference"]
    latent: int | None
    """Whose explanation it is."""
    explanation: str
    coverage: Proportion | None
    rejection: Proportion | None
    recall: Proportion | None = None
    output_score: float | None
    functional_score: int | None
    gates: dict[Literal["input", "output", "chain"], GateVerdict]
    note: str | None = None


class Gates(Record):
    """The verdict at each end."""

    input: GateVerdict
    output: GateVerdict
    chain: GateVerdict
    reasons: dict[Literal["input", "output", "chain"], str]
    """One sentence a gate: the numbers, and why it failed if it did."""

    @property
    def all_pass(self) -> bool:
        """Whether every gate passes."""
        return self.input == self.output == self.chain == "pass"


class Interpretations(Record):
    """The three answers, in words."""

    input: str | None
    output: str | None
    chain: str | None


class FinalMetrics(Record):
    """The four gate metrics on `confirm`."""

    activation_coverage: float | None
    boundary_rejection: float | None
    output_score: float | None
    functional_score: int | None


class TokenCost(Record):
    """What LLM calls cost; all zero where none was made."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the server had in a cache of its own."""
    calls: int = 0
    """Questions; one that was asked twice in the same words counts once."""
    failed_calls: int = 0
    """Those without a usable answer."""
    retries: int = 0
    """Requests sent beyond the first of each question."""
    over_budget: int = 0
    """Questions that were not asked, as the budget was spent; they are among the failed."""
    seconds: float = 0.0
    usd: float | None = None
    """None where a price is not known."""

    def __add__(self, other: "TokenCost") -> "TokenCost":
        sums = {name: getattr(self, name) + getattr(other, name) for name in type(self).model_fields if name != "usd"}
        usd = None if self.usd is None or other.usd is None else self.usd + other.usd
        return TokenCost(**sums, usd=usd)


class Meta(Record):
    """The row that a sweep reads."""

    layer_id: int
    feature_id: int
    run: str
    status: Status
    feature_kind: FeatureKind
    started_at: str
    """ISO 8601, UTC."""
    seconds: float
    """Work of all steps."""
    interpretations: Interpretations
    final_metrics: FinalMetrics
    intervals: dict[str, Estimate | Proportion]
    gate_pass: Gates
    confirmed: bool
    recall: float | None
    grey_share: float | None
    scoring_dose: float | None
    confirm_batches: int
    """How often texts were drawn on `confirm`; each further time raises the bar of `confirmed`."""
    nulls: dict[str, Null]
    token_cost: TokenCost
    rounds: int


class InputRound(Record):
    """The input end: evidence, hypotheses, experiments, scores."""

    observation: Observation
    hypotheses: list[InputHypothesis]
    experiments: list[InputExperiment]
    eval: InputEval


class OutputRound(Record):
    """The output end: interventions, hypotheses, scores."""

    interventions: list[Intervention]
    hypotheses: list[OutputHypothesis]
    eval: OutputEval


class Provenance(Record):
    """What a reader needs to make the numbers again. It never holds a secret."""

    model_id: str
    model_hash: str
    sae_id: str
    sae_hash: str
    layer: int
    feature: int
    hook_point: str
    tokenizer_hash: str
    bos_id: int
    dtype: str
    device: str
    corpus: str
    corpus_hash: str
    prompts_hash: str
    versions: dict[str, str]
    params: dict[str, Any]
    seed: int
    explainer: str
    llm: dict[str, str] = {}
    """The model of each role."""
    prompt_hashes: dict[str, str] = {}
    """Of the files that the prompts are made from."""
    ledger: dict[str, dict[str, TokenCost]] = {}
    """What LLM calls cost, by step and purpose."""
    step_seconds: dict[str, float]


class RoundMetrics(Record):
    """What a round reached on `select`."""

    activation_coverage: float | None
    boundary_rejection: float | None
    output_score: float | None
    functional_score: int | None


class Round(Record):
    """One round of refinement: the first failing component was worked on, and what depends on it was done again."""

    number: int
    component: Literal["input", "output", "chain"]
    diagnosis: str
    """What was wrong before it."""
    changes: list[str]
    """The hypotheses that it tried."""
    steps_rerun: list[int]
    metrics: RoundMetrics
    gates: Gates
    better: bool
    """Whether it is better than all before it."""
    started_from: int
    """The round whose state it began with; 0 is the run itself."""


class Trace(Record):
    """`trace.json`: one feature explained from both ends, with its gates."""

    schema_version: Literal[1] = SCHEMA_VERSION
    meta: Meta
    input_round: InputRound | None
    output_round: OutputRound | None
    chain: Chain | None
    rounds: list[Round] = []
    provenance: Provenance


class Scored(Record):
    """An explanation that somebody brought, judged as one that a run wrote: a file in `scores/`."""

    feature: int
    feature_kind: FeatureKind
    explanation: Explanation
    gates: Gates
    confirmed: bool
    input_score: InputScore | None
    output_score: OutputScore | None
    chain: Chain
    nulls: dict[str, Null]
    provenance: Provenance


class StepFile(Record):
    """`stepN.json`: what a step read, with which params, and what it found."""

    step: int
    inputs: dict[str, str]
    """Hash of the `outputs` of each step it read, and of the evidence."""
    params_hash: str
    params: dict[str, Any]
    outputs: dict[str, Any]
    ledger: TokenCost = TokenCost()
    purposes: dict[str, TokenCost] = {}
    """The ledger by purpose."""
    seconds: float
    started_at: str


def without_times(value: Any, others: Collection[str] = ()) -> Any:
    """What is read from a run's JSON, without what tells when it ran, how long, and under which name.

    Args:
        value: of any depth.
        others: more fields to leave out.
    """
    if isinstance(value, dict):
        return {
            key: without_times(inner, others) for key, inner in value.items() if key not in TIMES and key not in others
        }
    return [without_times(inner, others) for inner in value] if isinstance(value, list) else value
