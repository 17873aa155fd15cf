"""Pictures of what a run found: each function takes records of `mikit.trace` and returns a Figure, or HTML."""

from mikit.viz.compared import plot_compared, plot_costs
from mikit.viz.explore import plot_histogram, plot_next_tokens, plot_overlap
from mikit.viz.inputs import plot_activations, plot_case_activations, plot_input_scores, plot_logit_lens
from mikit.viz.outputs import plot_controls, plot_doses, plot_output_score, plot_token_effects
from mikit.viz.rates import plot_rates
from mikit.viz.saes import plot_density
from mikit.viz.style import set_theme
from mikit.viz.svg import inline_svg
from mikit.viz.sweeps import plot_distributions, plot_step_seconds
from mikit.viz.tables import lines_html, link, paragraph, table, verdict
from mikit.viz.text import visible
from mikit.viz.tokens import bands_html, tokens_html
from mikit.viz.verdicts import plot_checks, plot_gates, plot_scored, protocol_of
from mikit.viz.windows import show_windows, windows_html

__all__ = [
    "bands_html",
    "inline_svg",
    "lines_html",
    "link",
    "paragraph",
    "plot_activations",
    "plot_case_activations",
    "plot_checks",
    "plot_compared",
    "plot_controls",
    "plot_costs",
    "plot_density",
    "plot_distributions",
    "plot_doses",
    "plot_gates",
    "plot_histogram",
    "plot_input_scores",
    "plot_logit_lens",
    "plot_next_tokens",
    "plot_output_score",
    "plot_overlap",
    "plot_rates",
    "plot_scored",
    "plot_step_seconds",
    "plot_token_effects",
    "protocol_of",
    "set_theme",
    "show_windows",
    "table",
    "tokens_html",
    "verdict",
    "visible",
    "windows_html",
]
