"""Where the feature fires, and what its direction points to."""

from markupsafe import Markup

from mikit.viz import bands_html, plot_logit_lens
from mikit.widgets.parts import State, column, figure_html, html
from mikit.widgets.session import Look


class FiresPanel:
    """Histogram with tau, windows by quantile, logit lens."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.head, self.histogram, self.windows, self.lens = html(), html(), html(), html()
        self.box = column(self.head, self.histogram, self.windows, self.lens)

    def render(self) -> None:
        """Draw the feature that is looked at."""
        look = self._state.look
        self.head.value = headline(look)
        self.histogram.value = figure_html(look.histogram(), "activations")
        self.windows.value = bands_html(look.observation)
        self.lens.value = figure_html(plot_logit_lens(look.observation), "logit lens")


def headline(look: Look) -> Markup:
    """One line on the feature."""
    seen = look.observation
    return Markup("<b>Feature {}</b> of {}: {}; fires in {:,} of {:,} windows; ref {:.3g}, tau {:.3g}").format(
        look.feature, look.run.target.sae.id, seen.feature_kind, seen.firing_windows, seen.n_windows, seen.ref, seen.tau
    )
