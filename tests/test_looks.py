"""How figures look: to the colour-blind, in print, on a dark page; and that any text can be drawn in any of them."""

import itertools
import warnings

import builders
import figures
import matplotlib.text
import numpy as np
import pytest
from colors import CONES, contrast, distance, lab, linear
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from test_notebooks import figures_of
from test_report import themes

from mikit import viz
from mikit.errors import BadInput
from mikit.runs.report import report_html
from mikit.tasks import plots
from mikit.viz import style
from mikit.viz.inputs import WINDOW_KINDS
from mikit.viz.labels import unlabelled

ALL = figures.FIGURES | figures.LESSONS
TOGETHER = {
    "series": [style.FEATURE, style.SECOND, style.THIRD],
    "kinds of window": [color for _, color, _ in WINDOW_KINDS.values()],
    "controls": [style.FEATURE, *style.CONTROLS.values()],
    "verdicts": list(style.VERDICTS.values()),
}
"""Colours that mean different things in one figure."""
APART = 18
"""CIELAB distance that colours of one figure keep; about nine times what can just be told apart."""


@pytest.fixture(params=["light", "dark"])
def theme(request):
    viz.set_theme(request.param)
    yield request.param
    viz.set_theme("light")


def shades(colors: list[str], theme: str) -> list[str]:
    return [style.DARK[color] for color in colors] if theme == "dark" else colors


@pytest.mark.parametrize("cones", CONES)
@pytest.mark.parametrize("group", TOGETHER)
def test_colours_of_one_figure_are_told_apart_whoever_looks(group, cones, theme):
    pairs = itertools.combinations(shades(TOGETHER[group], theme), 2)
    assert {pair: round(d) for pair in pairs if (d := distance(*pair, cones)) < APART} == {}


def test_the_simulation_shows_what_red_and_green_are_without_their_cones():
    red, green = "#d7301f", "#4f8f00"
    assert distance(red, green) > 80 > 30 > distance(red, green, "deuteranopia")
    assert lab(linear("#ffffff")) == pytest.approx([100, 0, 0], abs=0.01)


@pytest.mark.parametrize("cones", CONES)
@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_verdicts_of_a_page_are_told_apart_whoever_looks(cones, place):
    colors = [
        themes(report_html(builders.dead_trace()))[place][f"--{name}"] for name in ("pass", "fail", "undecided", "none")
    ]
    pairs = itertools.combinations(colors, 2)
    assert {pair: round(d) for pair in pairs if (d := distance(*pair, cones)) < 15} == {}


def test_in_print_series_differ_by_their_markers():
    drawn = [style.series(i) for i in range(10)]
    assert len(set(drawn)) == 10
    assert len({marker for _, marker in drawn[:5]}) == 5
    assert len({marker for *_, marker in WINDOW_KINDS.values()}) == len(WINDOW_KINDS)
    assert len(set(style.HATCHES.values())) == len(style.HATCHES)
    assert len(set(style.MARKS.values())) == len(style.MARKS)


def test_what_a_hypothesis_claims_is_hatched_and_what_it_does_not_is_plain():
    score = builders.output_score()
    targets, *_ = viz.plot_output_score(score).axes
    assert sum(bool(bar.get_hatch()) for bar in targets.patches) == len(score.hits)


@pytest.mark.parametrize("name", ALL)
def test_every_text_of_a_figure_stands_out_from_its_ground(name, theme):
    figure = ALL[name]("some text")
    ground = to_hex(figure.get_facecolor())
    assert (ground == style.PAPER) == (theme == "light")
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text().strip() and text.get_visible()]
    assert texts
    low = {
        text.get_text(): to_hex(text.get_color()) for text in texts if contrast(to_hex(text.get_color()), ground) < 4.5
    }
    assert low == {}


def test_the_dark_ground_is_that_of_jupyterlabs_dark_theme():
    assert style.DARK[style.PAPER] == "#111111"


@pytest.mark.parametrize("edge", viz.tables.EDGES.values())
@pytest.mark.parametrize("ground", [style.PAPER, "#111111"])
def test_the_edge_of_a_verdict_is_seen_on_a_light_and_a_dark_page(edge, ground):
    assert contrast(edge, ground) >= 3


def test_the_two_themes_draw_the_same(theme):
    drawn = viz.plot_doses(builders.intervention())
    figure_colors = {to_hex(line.get_color()) for axes in drawn.axes for line in axes.lines}
    assert (style.DARK[style.FEATURE] in figure_colors) == (theme == "dark")
    svg = viz.inline_svg(drawn, "doses")
    assert "var(--feature, " in svg and "var(--ink, " in svg


def test_a_theme_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match="valid: light, dark"):
        viz.set_theme("sepia")


# --- units ---


@pytest.mark.parametrize("module, drawn", [(viz, figures.FIGURES), (plots, figures.LESSONS)])
def test_every_public_figure_is_looked_at_here(module, drawn):
    assert set(drawn) == figures_of(module)


@pytest.mark.parametrize("name", ALL)
def test_every_axis_of_numbers_says_what_it_shows_and_in_which_unit(name):
    assert unlabelled(ALL[name]("some text")) == []


def test_an_axis_without_a_label_or_without_a_unit_is_noticed():
    assert len(unlabelled(plots.scatter(figures.X, figures.X, "a title", "size", ""))) == 2


# --- any text ---


@given(name=st.sampled_from(sorted(ALL)), text=st.text(max_size=60))
@settings(max_examples=25)
def test_any_text_can_be_drawn(name, text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ALL[name](text).draw_without_rendering()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "text", ["$x_{\\frac\\$$", "_\x00\x1b[31m\r\n\u202egnp中🍐\ud800%s {} {0}", "x" * 3000], ids=["math", "odd", "long"]
)
def test_hostile_text_is_drawn_as_text(name, text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = ALL[name](text)
        figure.draw_without_rendering()
    for each in figure.findobj(matplotlib.text.Text):
        assert not each.get_parse_math() or each.get_text().replace(".", "").replace(",", "").isdigit()
        assert "\x00" not in each.get_text() and "\u202e" not in each.get_text()


def test_a_figure_of_many_series_reuses_no_pair_of_colour_and_marker_before_it_must():
    pairs = [style.series(i) for i in range(25)]
    assert len(set(pairs)) == 25
    assert np.unique([marker for _, marker in pairs]).size == 5
