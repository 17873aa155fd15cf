"""An explanation typed by somebody, put through the gates: the machinery of `mikit score`."""

from typing import Literal

from markupsafe import Markup

from mikit.errors import BadInput
from mikit.runs.report import null_lines
from mikit.runs.run import Run
from mikit.runs.score import Row, explanation_of_row, score
from mikit.trace import Scored
from mikit.viz import style, visible
from mikit.viz.tokens import KEY
from mikit.viz.windows import Html

End = Literal["input", "output", "chain"]
FONT = "13px/1.6 system-ui,sans-serif"
ENDS: tuple[End, ...] = ("input", "output", "chain")


def score_typed(run: Run, explanation: str, output: str) -> Scored:
    """One explanation of the run's feature, scored on unseen texts and prompts; one that was scored before is read.

    Args:
        run: of the feature.
        explanation: what makes it fire, tokens in quotes; empty for none.
        output: what it does, tokens in quotes; empty for none.

    Raises:
        BadInput: neither is given, or one says nothing that can be checked.
    """
    if not explanation.strip() and not output.strip():
        raise BadInput('nothing to score: valid: a sentence such as fires on "apple", or promotes "pear"')
    row = Row(run.feature, explanation.strip() or None, output.strip() or None, None, "given")
    return score(run, explanation_of_row(row, run.vocabulary, run.params.explainer == "llm"))


def scored_html(scored: Scored) -> Html:
    """The verdict of each gate with its reason, and what explanations that must not pass got."""
    rows = [
        Markup('<tr><td style="padding-right:1em;white-space:nowrap"><b>{} {}</b> {}</td><td>{}</td></tr>').format(
            style.MARKS[getattr(scored.gates, end)], getattr(scored.gates, end), end, visible(scored.gates.reasons[end])
        )
        for end in ENDS
    ]
    verdicts = Markup("<table style='text-align:left;border-collapse:collapse;font:{}'>{}</table>").format(
        FONT, Markup("").join(rows)
    )
    nulls = Markup("").join(
        Markup("<div style='{}'>{}</div>").format(KEY, visible(line)) for line in null_lines(scored.nulls)
    )
    return Html(verdicts + nulls)
