"""Figures and highlighted windows: they draw whatever a run finds, say what they show, and leave nothing behind."""

import unicodedata
import warnings
from html.parser import HTMLParser

import builders
import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from mikit import viz
from mikit.settings import Params, Protocol
from mikit.trace import CHECKS
from mikit.viz.style import VERDICTS
from mikit.viz.text import UNSEEN, drawable, token_label

PLOTS = {
    "activations": lambda: viz.plot_activations(builders.observation()),
    "logit lens": lambda: viz.plot_logit_lens(builders.observation()),
    "input scores": lambda: viz.plot_input_scores([builders.input_score("H1"), builders.input_score("H2")], Protocol()),
    "case activations": lambda: viz.plot_case_activations(builders.input_score(), builders.TAU),
    "doses": lambda: viz.plot_doses(builders.intervention()),
    "controls": lambda: viz.plot_controls(builders.intervention()),
    "token effects": lambda: viz.plot_token_effects(builders.intervention()),
    "output score": lambda: viz.plot_output_score(builders.output_score()),
    "checks": lambda: viz.plot_checks(builders.chain()),
    "gates": lambda: viz.plot_gates(builders.trace()),
    "density": lambda: viz.plot_density(np.geomspace(1e-5, 0.4, 256)),
}
NOTHING = builders.share(0, 0)
BARE = {
    "activations of a feature that never fires": lambda: viz.plot_activations(
        builders.observation(ref=0.0, tau=0.0, density=0.0, firing_windows=0, windows=[])
    ),
    "a logit lens without tokens": lambda: viz.plot_logit_lens(builders.observation(promoted=[], suppressed=[])),
    "no input score": lambda: viz.plot_input_scores([]),
    "input scores without cases": lambda: viz.plot_input_scores(
        [builders.input_score(coverage=NOTHING, rejection=NOTHING, strata={}, recall=NOTHING, cases=[])]
    ),
    "no cases": lambda: viz.plot_case_activations(builders.input_score(cases=[]), 0.0),
    "no doses": lambda: viz.plot_doses(builders.intervention(doses=[])),
    "a null intervention": lambda: viz.plot_doses(
        builders.intervention(doses=[{"dose": 1.0, "kl": 0.0}], scoring_dose=1.0, null=True, null_reason="KL 0")
    ),
    "no controls": lambda: viz.plot_controls(builders.intervention(controls=[])),
    "no token effects": lambda: viz.plot_token_effects(builders.intervention(promoted=[], suppressed=[])),
    "no targets": lambda: viz.plot_output_score(
        builders.output_score(targets=[], distractors=[], hits=[], false_alarms=[])
    ),
    "no checks": lambda: viz.plot_checks(builders.chain(checks=[], functional_score=None)),
    "a dead feature's gates": lambda: viz.plot_gates(builders.dead_trace()),
    "an SAE of dead latents": lambda: viz.plot_density(np.zeros(8)),
}
HOSTILE = [
    "$x_",
    "\\frac{",
    "\x00",
    "\n\n",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "中文",
    "🍐",
    "&amp;",
    "' \"><b>",
    " ",
]


def hostile_lens() -> list:
    return builders.lens(HOSTILE, 2.0)


@pytest.fixture(scope="module", params=[*PLOTS, *BARE])
def figure(request) -> Figure:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = (PLOTS | BARE)[request.param]()
        figure.draw_without_rendering()
    return figure


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def test_a_figure_says_what_was_found_in_a_sentence(figure):
    assert len(figure.get_suptitle().split()) >= 2


def test_nothing_of_a_figure_is_cut_off(figure):
    """Every text, mark and line lies in the figure's own box, in inches."""
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert drawn.x0 >= -0.03 and drawn.x1 <= width + 0.03
    assert drawn.y0 >= -0.03 and drawn.y1 <= height + 0.03


@pytest.mark.parametrize("name", PLOTS)
def test_the_horizontal_axes_of_numbers_are_named(name):
    figure = PLOTS[name]()
    numeric = [axes for axes in figure.axes if axes.axison and not axes.texts and axes.get_xticks().size > 4]
    assert [
        axes.get_title(loc="left") for axes in numeric if not axes.get_xlabel() and name != "case activations"
    ] == []


def test_drawing_leaves_no_figure_open_and_no_setting_changed():
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    for name in ("activations", "output score", "checks"):
        PLOTS[name]()._repr_png_()
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_a_figure_shows_itself_as_png_without_any_backend():
    assert viz.plot_doses(builders.intervention())._repr_png_().startswith(b"\x89PNG")


def test_tau_and_ref_are_drawn_where_they_are():
    tokens, peaks = viz.plot_activations(builders.observation(ref=6.0, tau=1.5)).axes
    assert {1.5, 6.0} <= {line.get_xdata()[0] for line in tokens.lines}
    assert {1.5, 6.0} <= {line.get_ydata()[0] for line in peaks.lines}


def test_the_scoring_dose_is_named_and_marked():
    assert "scoring dose" in texts(viz.plot_doses(builders.intervention(scoring_dose=1.0)))
    assert viz.plot_doses(builders.intervention(scoring_dose=1.0)).get_suptitle().startswith("At 1 x ref")


def test_the_gates_of_a_figure_stand_where_those_of_the_run_stood():
    params = Params(protocol=Protocol(gate_output=0.35)).model_dump(mode="json")
    trace = builders.trace(provenance=builders.provenance(params=params))
    (axes,) = viz.plot_gates(trace).axes
    assert 0.35 in {line.get_xdata()[0] for line in axes.lines}


def test_the_scores_say_when_a_gate_is_missed():
    low = builders.input_score(coverage=builders.share(3, 10))
    assert "misses a gate" in viz.plot_input_scores([low]).get_suptitle()
    assert "reaches both gates" in viz.plot_input_scores([low], Protocol(gate_coverage=0.2)).get_suptitle()


def test_cases_are_open_where_they_went_against_the_prediction():
    score = builders.input_score(n=30)
    (axes,) = viz.plot_case_activations(score, builders.TAU).axes
    drawn = [line for line in axes.lines if line.get_marker() == "o"]
    filled = sum(len(line.get_xdata()) for line in drawn if line.get_markerfacecolor() != "none")
    assert filled == sum(case.fires == (case.role == "positive") for case in score.cases)
    assert sum(len(line.get_xdata()) for line in drawn) == len(score.cases)


@pytest.mark.parametrize("verdict", ["pass", "fail", "undecided"])
def test_a_check_has_its_verdict_in_words_and_in_colour(verdict):
    checks = [builders.check(name, verdict=verdict) for name in CHECKS]
    for axes in viz.plot_checks(builders.chain(checks=checks)).axes:
        title = axes.title if axes.title.get_text() else axes._left_title
        assert verdict in title.get_text()
        assert title.get_color() == VERDICTS[verdict]


def test_hits_and_false_alarms_are_told_apart_from_the_rest():
    score = builders.output_score()
    targets, distractors, _ = viz.plot_output_score(score).axes
    assert len({bar.get_facecolor() for bar in targets.patches}) == 2
    colors = [bar.get_facecolor() for bar in distractors.patches]
    assert sum(color != colors[0] for color in colors) == len(score.false_alarms)


def test_hostile_tokens_are_drawn_as_text():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        effects = builders.intervention(promoted=hostile_lens(), suppressed=hostile_lens())
        figure = viz.plot_token_effects(effects)
        svg = viz.inline_svg(figure, "tokens")
    assert "<script>" not in svg
    assert "<b>" not in svg
    assert "$x_" in texts(figure)


def test_a_character_that_the_font_lacks_is_drawn_as_its_code_point():
    assert drawable("中") == "\\u4e2d"


def test_a_leading_space_is_seen():
    assert token_label(" pear") != token_label("pear")


@given(st.text())
def test_visible_text_has_no_character_that_hides_or_reorders(text):
    seen = viz.visible(text)
    assert [c for c in seen if unicodedata.category(c) in UNSEEN and c not in "\u200c\u200d"] == []
    assert viz.visible(seen) == seen


def test_visible_text_keeps_what_can_be_seen():
    assert viz.visible("a pear,\n中 שלום") == "a pear,↵中 שלום"


# --- windows -------------------------------------------------------------------------------------------------------


class Structure(HTMLParser):
    """Tags with the names of their attributes, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[tuple[str, ...]] = set()
        self.bdi: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(str(page))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add((tag, *(name for name, _ in attrs)))
        if tag == "bdi":
            self.bdi.append(dict(attrs))

    def handle_data(self, data):
        self.text += data


@given(st.lists(st.text(min_size=1), min_size=1, max_size=6), st.integers(0, 5), st.text())
def test_whatever_the_tokens_hold_they_are_shown_as_text(tokens, peak, document):
    peak %= len(tokens)
    activations = [float(i == peak) for i in range(len(tokens))]
    window = builders.window(
        tokens=tokens,
        activations=activations,
        ids=list(range(len(tokens))),
        peak=1.0,
        peak_index=peak,
        document=document,
    )
    page = Structure(viz.windows_html([window], tau=0.5))
    assert page.tags <= {("div",), ("div", "style", "title"), ("span", "style"), ("bdi",), ("bdi", "style", "title")}
    assert page.text == "fires 1" + "".join(map(viz.visible, tokens))


@given(st.lists(st.floats(0, 100), min_size=2, max_size=8))
def test_the_stronger_the_activation_the_deeper_the_colour(activations):
    window = builders.window(
        tokens=["x"] * len(activations),
        ids=[0] * len(activations),
        activations=activations,
        peak=max(activations),
        peak_index=int(np.argmax(activations)),
    )
    tokens = Structure(viz.windows_html([window], tau=1.0)).bdi
    depths = [float(token["style"].split(",")[3].split(")")[0]) if "style" in token else 0.0 for token in tokens]
    order = np.argsort(activations, kind="stable")
    assert np.all(np.diff(np.array(depths)[order]) >= 0)


def test_the_peak_alone_is_underlined_and_its_value_shown_on_hover():
    window = builders.window(peak=7.5)
    tokens = Structure(viz.windows_html([window], tau=2.0)).bdi
    underlined = [i for i, token in enumerate(tokens) if "underline" in token.get("style", "")]
    assert underlined == [window.peak_index]
    assert tokens[window.peak_index]["title"] == "7.5"


def test_a_silent_window_says_so_and_underlines_nothing():
    page = viz.windows_html([builders.window("silent_random", 0.0)], tau=2.0)
    assert "silent 0" in page
    assert "underline" not in page


def test_no_more_windows_are_shown_than_asked_for():
    assert viz.windows_html(builders.windows(), tau=2.0, n=3).count("fires") == 3


def test_windows_show_themselves_in_a_notebook():
    html = viz.windows_html(builders.windows(), tau=2.0)
    assert html._repr_html_() == str(html)
    assert all(
        name in viz.show_windows(builders.observation())._repr_html_() for name in ("Strongest", "Silent, at random")
    )


# --- figures inside a page -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLOTS)
def test_a_figure_in_a_page_needs_nothing_outside_and_follows_its_theme(name):
    svg = viz.inline_svg(PLOTS[name](), name)
    assert "http" not in svg
    assert 'role="img"' in svg
    assert "var(--ink, " in svg
    assert "mathdefault" not in svg


def test_the_label_of_a_figure_in_a_page_holds_the_finding_and_is_escaped():
    svg = viz.inline_svg(PLOTS["doses"](), 'KL "by" <dose>')
    assert 'aria-label="KL &#34;by&#34; &lt;dose&gt;: At 2 x ref' in svg
