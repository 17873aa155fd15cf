"""The report: one page that says what was found, works offline, and shows a stranger's text as nothing but text."""

import itertools
import re
from collections import Counter
from html.parser import HTMLParser
from typing import Any

import builders
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mikit.runs.report import KINDS, report_html, write_report
from mikit.trace import InputEval, InputRound, Round, RoundMetrics, TokenCost, Trace

VOID = {"meta", "link", "br"}
FREE_TEXT = {
    "text",
    "tokens",
    "token",
    "document",
    "prompt",
    "clean",
    "steered",
    "reason",
    "explanation",
    "note",
    "null_reason",
}
FREE_TEXT |= {"input", "output", "chain", "hits", "false_alarms", "model_id", "sae_id", "corpus", "hook_point"}
"""Fields that a corpus, a writer or a stranger fills."""
ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</svg></style></title><iframe srcdoc=x>",
    "\u202eevil\u2066\x00\x1b[31m\ufeff",
    "{{ 7 * 7 }}{% raw %}&lt;b&gt;<!-- ]]>",
]


class Outline(HTMLParser):
    """What a page is made of."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.pieces: list[str] = []
        self.feed(page)
        self.close()
        self.text = "".join(self.pieces).replace("\N{NO-BREAK SPACE}", " ")
        self.faults += [f"<{tag}> is never closed" for tag in self.open]

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.pieces.append(data)

    def names(self) -> set[tuple[str, str]]:
        return {(tag, name) for tag, attributes in self.found for name in (*attributes, "")}

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def filled_with(value: Any, text: str, inside: bool = False) -> Any:
    """A record's values with every free text replaced, except verdicts, which are one of a few words."""
    if isinstance(value, dict):
        return {key: filled_with(inner, text, key in FREE_TEXT) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled_with(inner, text, inside) for inner in value]
    verdict = value in ("pass", "fail", "undecided", "none")
    return text if inside and isinstance(value, str) and not verdict else value


def trace_filled_with(text: str) -> Trace:
    return Trace.model_validate(filled_with(builders.trace().model_dump(mode="json"), text))


@pytest.fixture(scope="module")
def page() -> str:
    return report_html(builders.trace())


@pytest.fixture(scope="module")
def outline(page) -> Outline:
    return Outline(page)


@pytest.fixture(scope="module")
def unfit() -> Outline:
    return Outline(report_html(builders.unfit_trace()))


def test_the_three_interpretations_are_on_the_page(outline):
    said = builders.trace().meta.interpretations
    assert all(text in outline.text for text in (said.input, said.output, said.chain))


def test_each_gate_has_its_verdict_value_interval_n_threshold_and_reason(outline):
    text = " ".join(" ".join(outline.pieces).split())
    for reason in builders.gates().reasons.values():
        assert reason in text
    assert re.search(r"activation coverage 0\.90 \[0\.72, 0\.99\], n 30 texts gate 0\.8", text)
    assert re.search(r"output score 0\.70 \[0\.52, 0\.84\], n 16 prompts gate 0\.5", text)
    assert re.search(r"checks passed 4 of 5 gate 4", text)


def test_a_token_in_quotes_is_never_broken_after_its_opening_mark(page):
    assert "Fires on &#34;\N{NO-BREAK SPACE}pear&#34;, &#34;\N{NO-BREAK SPACE}plum&#34; or 4 more" in page


def test_every_check_case_and_completion_is_on_the_page(outline):
    trace = builders.trace()
    for case in trace.input_round.eval.confirm.cases:
        assert case.text in outline.text
    for check in trace.chain.checks:
        assert check.name.replace("_", " ") in outline.text
    assert "a sweet taste" in outline.text


def test_the_nulls_stand_beside_the_feature(outline):
    for words in (
        "Its own explanation",
        "The nearest feature's explanation",
        "A random live feature's",
        "A random direction",
    ):
        assert words in outline.text


def test_provenance_and_every_parameter_are_on_the_page(outline):
    provenance = builders.provenance()
    assert all(text in outline.text for text in (provenance.model_hash, provenance.sae_hash, "protocol.kl_target"))
    assert all(step in outline.text for step in provenance.step_seconds)


def test_a_gate_that_is_not_passed_says_why(unfit):
    assert "13 % of positives fire (gate 80 %)" in unfit.text
    assert "The intervention counts as null: KL 0.0004 nats at the scoring dose." in unfit.text
    assert "not explained" in unfit.text


@pytest.mark.parametrize("kind", ["dead", "special_only"])
def test_a_dead_feature_has_a_page_that_says_so(kind):
    dead = builders.dead_trace()
    trace = dead.model_copy(update={"meta": dead.meta.model_copy(update={"feature_kind": kind})})
    outline = Outline(report_html(trace))
    assert outline.faults == []
    assert KINDS[kind] in outline.text
    assert "nothing to explain" in outline.text
    assert outline.all("svg") == []


def test_a_dead_feature_whose_evidence_is_kept_has_a_page_too():
    silent = [builders.window("silent_random", 0.0, i) for i in range(3)]
    observation = builders.observation(
        feature_kind="dead", ref=0.0, tau=0.0, density=0.0, firing_windows=0, windows=silent
    )
    inputs = InputRound(
        observation=observation, hypotheses=[], experiments=[], eval=InputEval(per_hypothesis=[], chosen=None)
    )
    outputs = builders.unfit_trace().output_round
    trace = builders.dead_trace().model_copy(update={"input_round": inputs, "output_round": outputs})
    outline = Outline(report_html(trace))
    assert outline.faults == []
    assert "No input hypothesis was scored." in outline.text


def test_a_run_stopped_before_confirm_shows_what_was_chosen_on_select():
    inputs = builders.input_round()
    unconfirmed = inputs.model_copy(update={"eval": inputs.eval.model_copy(update={"confirm": None})})
    outline = Outline(report_html(builders.trace(input_round=unconfirmed, chain=None)))
    assert "Hypothesis H1 on select" in outline.text


def test_rounds_of_refinement_are_listed():
    nothing = RoundMetrics(activation_coverage=0.3, boundary_rejection=None, output_score=None, functional_score=None)
    first = Round(
        number=1, component="input", diagnosis="coverage <0.3>", changes=["Fires on pears."], steps_rerun=[2, 3, 4, 8],
        metrics=nothing, gates=builders.gates(chain="fail"), better=True, started_from=0,
    )  # fmt: skip
    second = first.model_copy(
        update={"number": 2, "changes": [], "better": False, "steps_rerun": [], "started_from": 1}
    )
    outline = Outline(report_html(builders.trace(rounds=[first, second])))
    assert "Round 1: input (better)" in outline.text and "Round 2: input (no gain)" in outline.text
    assert "coverage <0.3>" in outline.text and "Fires on pears." in outline.text
    assert "2, 3, 4, 8, from the run itself" in outline.text and "none, from round 1" in outline.text
    assert "nothing new was found" in outline.text and "chain: fail" in outline.text


def test_costs_are_shown_where_an_llm_was_called():
    cost = TokenCost(calls=12, total_tokens=3456, failed_calls=2, usd=0.0123)
    dead = builders.dead_trace()
    trace = dead.model_copy(update={"meta": dead.meta.model_copy(update={"token_cost": cost})})
    assert "12 LLM calls, 3456 tokens, 2 calls failed, 0.0123 USD" in Outline(report_html(trace)).text


def test_a_page_is_written_whole(tmp_path):
    path = tmp_path / "deep" / "report.html"
    write_report(builders.dead_trace(), path)
    assert path.read_text("utf-8").rstrip().endswith("</html>")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_the_same_trace_gives_the_same_page(page):
    assert report_html(builders.trace()) == page


# --- one file, offline ---------------------------------------------------------------------------------------------


def test_the_page_asks_for_nothing_outside_itself(page, outline):
    # a parameter may be an address: as text it asks for nothing
    assert not re.search(r"url\(\s*['\"]?(https?:)?//", page)
    assert outline.all("script") == []
    targets = [
        v for _, attributes in outline.found for k, v in attributes.items() if k in ("src", "href", "xlink:href")
    ]
    assert [target for target in targets if target[0] != "#" and not target.startswith("data:")] == []
    assert "@import" not in page


def test_the_page_is_small_enough_to_send(page):
    assert len(page.encode()) < 1_000_000


# --- strangers' text -----------------------------------------------------------------------------------------------


def test_whatever_its_texts_hold_the_page_is_made_of_the_same_elements(outline):
    hostile = Outline(report_html(trace_filled_with("".join(ATTACKS))))
    # a long title takes more lines
    assert hostile.names() - outline.names() <= {("tspan", name) for name in ("", "x", "y", "style")}
    assert hostile.faults == []


def without_figures(text: str) -> Trace:
    """A trace of which every text is shown that stands outside a figure or a table of cases."""
    full = builders.trace()
    row = full.meta.model_copy(update={"status": "dead"})
    bare = full.model_copy(update={"meta": row, "input_round": None, "output_round": None, "chain": None})
    return Trace.model_validate(filled_with(bare.model_dump(mode="json"), text))


def elements(outline: Outline) -> list[tuple[str, list[str]]]:
    return [(tag, list(attributes)) for tag, attributes in outline.found]


@given(st.text())
def test_no_text_at_all_becomes_an_element_or_an_attribute(text):
    found = Outline(report_html(without_figures(text)))
    assert elements(found) == elements(Outline(report_html(without_figures("plain"))))
    assert found.faults == []


@pytest.mark.parametrize("text", ATTACKS)
def test_an_attack_is_shown_and_not_run(text):
    dead = builders.dead_trace()
    said = dead.meta.interpretations.model_copy(update={"input": text, "chain": text})
    trace = dead.model_copy(update={"meta": dead.meta.model_copy(update={"interpretations": said})})
    page = report_html(trace)
    outline = Outline(page)
    assert outline.all("script") + outline.all("img") + outline.all("iframe") == []
    assert [name for _, name in outline.names() if name.startswith("on")] == []
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", page)
    shown = re.sub("[\u202a-\u202e\u2066-\u2069\ufeff\x00\x1b]", "", text)
    assert all(part in outline.text for part in re.split(r"[^\w ]+", shown))


# --- for everybody -------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_and_names_its_language(outline):
    assert outline.faults == []
    assert outline.all("html") == [{"lang": "en"}]


def test_no_two_elements_share_an_id(outline):
    ids = Counter(attributes["id"] for _, attributes in outline.found if "id" in attributes)
    assert [name for name, n in ids.items() if n > 1] == []


def test_every_figure_is_described_in_words(outline):
    figures = outline.all("svg")
    assert len(figures) >= 9
    assert all(figure["role"] == "img" and len(figure["aria-label"]) > 20 for figure in figures)


def test_every_part_that_folds_can_be_opened_from_the_keyboard(outline):
    assert len(outline.all("details")) == len(outline.all("summary")) > 5


def test_every_head_of_a_table_says_what_it_heads(outline):
    assert all(head.get("scope") in ("col", "row") for head in outline.all("th"))


def test_headings_skip_no_level(outline):
    levels = [int(tag[1]) for tag, _ in outline.found if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def themes(page: str) -> list[dict[str, str]]:
    """The colours of the light theme and of the dark one."""
    blocks = re.findall(r":root \{(.*?)\}", page, re.S)[:2]
    return [dict(re.findall(r"(--[a-z]+): (#[0-9a-f]{6})", block)) for block in blocks]


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("ground", ["--paper", "--page"])
@pytest.mark.parametrize("color", ["--ink", "--muted", "--pass", "--fail", "--undecided", "--none"])
def test_text_stands_out_from_its_ground_in_both_themes(page, color, ground):
    light, dark = themes(page)
    assert contrast(light[color], light[ground]) >= 4.5
    assert contrast(dark[color], dark[ground]) >= 4.5


@pytest.mark.parametrize("color", ["--feature", "--second", "--third", "--pass", "--fail"])
def test_what_is_drawn_stands_out_from_its_ground_in_both_themes(page, color):
    light, dark = themes(page)
    assert contrast(light[color], light["--paper"]) >= 3
    assert contrast(dark[color], dark["--paper"]) >= 3


def test_a_verdict_is_said_in_words_and_never_by_colour_alone(outline):
    chips = re.findall(r"(✓|✗|\?|–) (pass|fail|undecided|none)", outline.text)
    assert {verdict for _, verdict in chips} >= {"pass", "fail", "undecided"}


def test_a_page_without_checks_has_no_empty_section(unfit):
    assert "Five causal checks" not in unfit.text
