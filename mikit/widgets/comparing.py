"""Two features of one SAE side by side: where they fire together, and how alike their directions are."""

import numpy as np
from jaxtyping import Int
from markupsafe import Markup
from torch.nn.functional import cosine_similarity

from mikit.errors import BadInput
from mikit.experiments.statistics import clustered
from mikit.trace import Proportion
from mikit.viz.explore import Overlap
from mikit.viz.tokens import bands, key_html, spread, windows_rows
from mikit.viz.windows import Html
from mikit.widgets.session import Look


def overlap(one: Look, other: Look) -> Overlap:
    """Co-activation of two features on `explain`, and the cosine of their decoder directions.

    The intervals take tokens of one document as dependent.

    Raises:
        BadInput: it is one feature twice.
    """
    if one.feature == other.feature:
        raise BadInput(f"feature {one.feature} is compared with itself: valid: another feature")
    store, W_dec = one.run.store, one.run.target.sae.W_dec
    (first, a), (second, b) = (store.actives(look.feature, "explain") for look in (one, other))
    either = np.union1d(first, second)
    values = np.zeros((len(either), 2), np.float32)
    values[np.searchsorted(either, first), 0], values[np.searchsorted(either, second), 1] = a, b
    documents = store.table.document[either // store.table.ids.shape[1]]
    shares = [_share(values[:, 1 - i] > 0, values[:, i] > 0, documents) for i in (0, 1)]
    return Overlap(
        names=(f"{one.feature}", f"{other.feature}"),
        shares=(shares[0], shares[1]),
        base=(len(b) / one.n_tokens, len(a) / one.n_tokens),
        values=values,
        cosine=float(cosine_similarity(W_dec[one.feature], W_dec[other.feature], dim=0)),
    )


def _share(flags: np.ndarray, where: np.ndarray, documents: Int[np.ndarray, " n"]) -> Proportion:
    return clustered(flags[where].tolist(), documents[where].tolist())


def windows_beside(one: Look, other: Look, n: int = 5) -> Html:
    """The strongest windows of two features in two columns."""
    columns = []
    for look in (one, other):
        seen = look.observation
        rows = windows_rows(spread(bands(seen)[0][1][: 2 * n], n), seen.tau, seen.ref or None)
        columns.append(
            Markup('<div style="flex:1 1 24em;min-width:0"><b>Feature {}</b>, strongest windows{}{}</div>').format(
                look.feature, key_html(seen.tau), rows
            )
        )
    return Html(Markup('<div style="display:flex;flex-wrap:wrap;gap:2em">{}</div>').format(Markup("").join(columns)))
