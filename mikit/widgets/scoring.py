"""An explanation typed by somebody, put through the gates: the machinery of `mikit score`."""

from typing import Literal

from markupsafe import Markup

from mikit.errors import BadInput
from mikit.runs.run import Run
from mikit.runs.score import Row, explanation_of_row, score
from mikit.trace import Scored
from mikit.viz import style, visible
from mikit.viz.tokens import KEY
from mikit.viz.windows import Html

End = Literal["input", "output", "chain"]
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
    """The verdict of each gate with its reason, and whether explanations that must not pass did."""
    rows = [
        Markup('<tr><td style="padding-right:1em;white-space:nowrap"><b>{} {}</b> {}</td><td>{}</td></tr>').format(
            style.MARKS[getattr(scored.gates, end)], getattr(scored.gates, end), end, visible(scored.gates.reasons[end])
        )
        for end in ENDS
    ]
    nulls = [
        Markup(
            "<tr><td style='padding-right:1em;white-space:nowrap;vertical-align:top'>{}</td><td>{}: input {}, output {}, chain {}</td></tr>"
        ).format(name.replace("_", " "), visible(null.explanation), *(null.gates.get(end, "none") for end in ENDS))
        for name, null in scored.nulls.items()
    ]
    body = Markup(
        "<table style='text-align:left;border-collapse:collapse;font:13px/1.6 system-ui,sans-serif'>{}</table>"
    )
    shown = body.format(Markup("").join(rows))
    if nulls:
        why = Markup('<div style="{}">Explanations that must not pass, judged the same way:</div>').format(KEY)
        shown += why + body.format(Markup("").join(nulls))
    return Html(shown)
