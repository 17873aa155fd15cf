"""What Neuronpedia knows of a feature: its record, fetched with care or read from a file, as evidence for a writer.

A row of a record can hold several documents with a BOS between them: it is cut there, so that no window crosses a seam
and no special token is evidence. Activations are Neuronpedia's own, of its SAE and its corpus; everything that is scored
is measured here.
"""

import json
import logging
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx
import tenacity
from pydantic import BaseModel, ConfigDict, ValidationError

from mikit import paths
from mikit.errors import BadInput, MikitError
from mikit.evidence.vocabulary import Vocabulary
from mikit.files import file_hash, write_text
from mikit.settings import Params
from mikit.targets.base import Target
from mikit.trace import Observation, Window

log = logging.getLogger(__name__)

SPECIAL = re.compile(r"<(?:bos|eos|pad|unk|s|/s|start_of_turn|end_of_turn)>|<\|[a-z_]+\|>|\[(?:CLS|SEP|PAD|BOS|EOS)\]")
SPACES = ("\N{LOWER ONE EIGHTH BLOCK}", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}")
"""How tokenizers write a leading space."""
UNKNOWN = -1
"""Id of a token that the explained model does not have."""
ATTEMPTS = 5
FIRST_WAIT = 1.0
LONGEST_WAIT = 3700.0
"""Seconds: its limit is counted by the hour."""
TIMEOUT = 30.0
MOST_TOP = 32
TINIEST = 1e-30
"""No activation is smaller, or larger than its inverse: float32 has none in units that anybody uses."""


class _Loose(BaseModel):
    """Parts that are not named here are left alone: the site adds some now and then."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Activation(_Loose):
    """One row of text."""

    tokens: list[str]
    values: list[float | None]
    dataIndex: str | int | None = None


class Score(_Loose):
    """What some scorer said of an explanation."""

    value: float | None = None
    explanationScoreTypeName: str | None = None


class TheirExplanation(_Loose):
    """An explanation that is listed there."""

    description: str | None = None
    explanationModelName: str | None = None
    typeName: str | None = None
    scores: list[Score] | None = None


class Source(_Loose):
    """What SAE and corpus a record rests on."""

    saelensRelease: str | None = None
    saelensSaeId: str | None = None
    hfRepoId: str | None = None
    hfFolderId: str | None = None
    num_prompts: int | None = None
    num_tokens_in_prompt: int | None = None
    dataset: str | None = None


class FeatureRecord(_Loose):
    """A feature as `GET /api/feature/{model}/{layer}-{source}/{index}` tells it."""

    modelId: str
    layer: str
    index: str | int
    sourceSetName: str | None = None
    maxActApprox: float | None = None
    frac_nonzero: float | None = None
    hookName: str | None = None
    source: Source | None = None
    activations: list[Activation] | None = None
    explanations: list[TheirExplanation] | None = None
    pos_str: list[str] | None = None
    neg_str: list[str] | None = None


# --- getting a record ---


def feature_record(params: Params, sleep: Any = None) -> tuple[FeatureRecord, dict[str, Any]]:
    """The record of the params' feature, from the saved file they name, from the cache, or from the site.

    Args:
        params: `neuronpedia_record`, or `neuronpedia_id` and `neuronpedia_url`.
        sleep: how waiting is done.

    Returns:
        The record, and where it came from.

    Raises:
        BadInput: there is no such feature or file, it is no record, or the key is refused.
        MikitError: the site gives none after several attempts.
    """
    if params.neuronpedia_record:
        path = paths.existing(params.neuronpedia_record)
        if path is None or not path.is_file():
            raise BadInput(f"neuronpedia_record = {params.neuronpedia_record!r}: there is no such file")
        record = read_record(path.read_text("utf-8", errors="replace"), str(path))
        _require_index(record, params.feature, str(path))
        return record, {"record": path.name, "record_hash": file_hash(path)}
    name = site_id(params)
    cached = paths.outputs() / "neuronpedia" / f"{name.replace('/', '_')}-{params.feature}.json"
    address = f"{params.neuronpedia_url.rstrip('/')}/api/feature/{name}/{params.feature}"
    if not cached.exists():
        write_text(cached, fetch(address, sleep))
    record = read_record(cached.read_text("utf-8"), str(cached))
    _require_index(record, params.feature, str(cached))
    return record, {"address": address, "record_hash": file_hash(cached)}


def _require_index(record: FeatureRecord, feature: int, where: str) -> None:
    said = str(record.index)
    if not (said.isascii() and said.isdigit() and int(said) == feature):
        raise BadInput(f"{where} is of feature {record.index}: valid: the record of feature {feature}")


def site_id(params: Params) -> str:
    """MODEL/LAYER-SOURCE, as the site names an SAE.

    Raises:
        BadInput: nobody said, and it does not follow from the target.
    """
    if params.neuronpedia_id:
        return params.neuronpedia_id
    if params.model in ("gemma-2-2b", "google/gemma-2-2b"):
        return f"gemma-2-2b/{params.layer}-gemmascope-res-{params.sae_width}"
    raise BadInput(
        f"--source neuronpedia with --model {params.model}: valid: --neuronpedia-id MODEL/LAYER-SOURCE, such as "
        "gemma-2-2b/6-gemmascope-res-16k, or --neuronpedia-record FILE"
    )


class _Again(Exception):
    def __init__(self, why: str, wait: float | None) -> None:
        super().__init__(why)
        self.wait = wait


def fetch(address: str, sleep: Any = None) -> str:
    """The text of a record; attempts are spaced as the site asks.

    Raises:
        BadInput: there is no such feature, or the key is refused.
        MikitError: no record after several attempts; the message has the last reason.
    """
    key = os.environ.get("NEURONPEDIA_API_KEY", "").strip()
    if re.search(r"[^\x21-\x7e]", key):
        # refused by the library of HTTP, it would be told in the refusal
        raise BadInput(
            "NEURONPEDIA_API_KEY holds a space, a line break or a letter that no key has: valid: the key alone"
        )
    headers = {"x-api-key": key} if key else {}

    def wait(state: tenacity.RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome else None
        asked = failure.wait if isinstance(failure, _Again) else None
        backoff = FIRST_WAIT * 2 ** (state.attempt_number - 1) * random.uniform(0.5, 1.5)
        return min(LONGEST_WAIT, backoff if asked is None else asked + random.uniform(0, FIRST_WAIT))

    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=wait,
        retry=tenacity.retry_if_exception_type(_Again),
        reraise=True,
        **({"sleep": sleep} if sleep else {}),
    )
    try:
        return retrying(_get, address, headers)
    except _Again as failure:
        said = str(failure).replace(key, "********") if key else str(failure)
        raise MikitError(
            f"{address} gave no record in {ATTEMPTS} attempts ({said}): try later, or name a saved one with "
            "--neuronpedia-record, or take --source corpus"
        ) from None


def _get(address: str, headers: Mapping[str, str]) -> str:
    try:
        response = httpx.get(address, headers=dict(headers), timeout=TIMEOUT, follow_redirects=True)
    except httpx.TimeoutException:
        raise _Again(f"nothing for {TIMEOUT:g} s", None) from None
    except httpx.HTTPError as error:
        raise _Again(f"{type(error).__name__}: {error}", None) from None
    status, body = response.status_code, response.text
    if status in (401, 403):
        raise BadInput(f"{address} refuses the key ({status}): valid: one of the site's in NEURONPEDIA_API_KEY")
    if status == 404:
        raise BadInput(f"{address}: there is no such feature at the site")
    if status != 200:
        given = response.headers.get("retry-after", "")
        raise _Again(f"status {status}", float(given) if given.strip().isdigit() else None)
    if body.lstrip()[:1] != "{":
        raise _Again("a page instead of a record", None)
    read_record(body, address)
    return body


def read_record(text: str, where: str) -> FeatureRecord:
    """A record out of its JSON.

    Raises:
        BadInput: it is none; the message says where it differs.
    """
    try:
        record = FeatureRecord.model_validate(json.loads(text.removeprefix("\ufeff"), parse_constant=_no_number))
    except (ValueError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else "not JSON"
        raise BadInput(f"{where} is no record of a feature: {fault}") from None
    for i, row in enumerate(record.activations or []):
        if len(row.tokens) != len(row.values):
            raise BadInput(
                f"{where} is no record of a feature: activations.{i}: {len(row.tokens)} tokens, {len(row.values)} values"
            )
        if any(value is not None and not (value == 0 or TINIEST < abs(value) < 1 / TINIEST) for value in row.values):
            raise BadInput(f"{where} is no record of a feature: activations.{i}: a value that no activation has")
        if _is_torn("".join(row.tokens)):
            raise BadInput(f"{where} is no record of a feature: activations.{i}: a token with half a character")
    return record


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _is_torn(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


# --- a record as evidence ---


def pieces(row: Activation) -> Iterator[tuple[int, list[str], list[float]]]:
    """The documents in a row: start, tokens and values of each run without a special token."""
    start, tokens, values = 0, [], []  # type: tuple[int, list[str], list[float]]
    for i, (token, value) in enumerate(zip(row.tokens, row.values, strict=True)):
        if SPECIAL.fullmatch(token.strip()):
            if tokens:
                yield start, tokens, values
            start, tokens, values = i + 1, [], []
            continue
        tokens.append(plain(token))
        values.append(max(float(value or 0.0), 0.0))
    if tokens:
        yield start, tokens, values


def plain(token: str) -> str:
    """A token's text, however its tokenizer writes spaces and line breaks."""
    for space in SPACES:
        token = token.replace(space, " ")
    return token.replace("\N{LATIN CAPITAL LETTER C WITH DOT ABOVE}", "\n")


def windows_of(record: FeatureRecord, vocabulary: Vocabulary, tau: float, window_tokens: int) -> list[Window]:
    """The rows as windows of at most `window_tokens` tokens around each peak, the strongest first, none twice."""
    found: dict[tuple[str, ...], Window] = {}
    for number, row in enumerate(record.activations or []):
        for start, tokens, values in pieces(row):
            peak_at = max(range(len(values)), key=values.__getitem__)
            if values[peak_at] <= 0:
                continue
            first = max(0, min(peak_at - window_tokens // 2, len(tokens) - window_tokens))
            part, acts = tokens[first : first + window_tokens], values[first : first + window_tokens]
            found.setdefault(
                tuple(part),
                Window(
                    kind="top",
                    document=f"neuronpedia:{row.dataIndex if row.dataIndex is not None else number}:{start}",
                    split="explain",
                    start=start + first,
                    ids=[vocabulary.id_of.get(token, UNKNOWN) for token in part],
                    tokens=part,
                    activations=acts,
                    peak=values[peak_at],
                    peak_index=peak_at - first,
                ),
            )
    ordered = sorted(found.values(), key=lambda window: -window.peak)
    kinds = ["top" if i < MOST_TOP else "quantile" for i in range(len(ordered))]
    return [w.model_copy(update={"kind": k}) for w, k in zip(ordered, kinds, strict=True) if w.peak >= tau]


def with_record(
    local: Observation,
    record: FeatureRecord,
    origin: dict[str, Any],
    target: Target,
    vocabulary: Vocabulary,
    params: Params,
) -> Observation:
    """What a writer is shown, with the site's firing windows in the place of the corpus's own.

    Density, neighbours, silent windows and the scale are those of the pass over the corpus here. The site's activations
    are brought to that scale by the two maxima, so that one threshold serves both.

    Raises:
        BadInput: the record has no window that fires.
    """
    # at special tokens alone a feature is often at its strongest, which is no evidence
    values = [value for row in record.activations or [] for _, _, part in pieces(row) for value in part]
    theirs = max(values, default=0.0)
    if theirs <= 0:
        raise BadInput(f"the record of feature {record.index} holds no text in which it fires: valid: --source corpus")
    scale = local.ref / theirs if local.ref > 0 else 1.0
    ref = local.ref if local.ref > 0 else theirs
    tau = local.tau if local.tau > 0 else params.protocol.tau_fraction * theirs
    scaled = record.model_copy(
        update={
            "activations": [
                row.model_copy(update={"values": [(value or 0.0) * scale for value in row.values]})
                for row in record.activations or []
            ]
        }
    )
    windows = windows_of(scaled, vocabulary, tau, params.protocol.window_tokens)
    if not windows:
        raise BadInput(
            f"the record of feature {record.index} holds no window that reaches the threshold: valid: --source corpus"
        )
    silent = [window for window in local.windows if window.kind.startswith("silent")]
    notes = [
        f"firing windows are Neuronpedia's; density, kind, neighbours and silent windows are of {local.corpus!r}, read here",
        f"its activations are scaled by {scale:.3g}, from its largest to ref here",
        *_differences(record, target),
    ]
    if unknown := sum(i == UNKNOWN for window in windows for i in window.ids):
        notes.append(f"{unknown} tokens of its rows are none of the explained model's")
    if local.ref <= 0:
        notes.append("the feature is silent in the corpus here: ref is the largest value in the record")
    return local.model_copy(
        update={
            "source": "neuronpedia",
            "windows": [*windows, *silent],
            "ref": ref,
            "tau": tau,
            "notes": notes,
            "outside": origin | provenance_of(record),
        }
    )


def _differences(record: FeatureRecord, target: Target) -> list[str]:
    """A note where the site's SAE is, or may be, another one than is loaded here."""
    source = record.source or Source()
    names = [source.saelensRelease, source.saelensSaeId, source.hfRepoId, source.hfFolderId]
    known = [name for name in names if name]
    ours = target.sae.id.lower()
    if not known:
        return [f"the record does not say which SAE it is of; {target.sae.id} is loaded here"]
    if not any(name.lower() in ours or ours in name.lower() for name in known):
        return [
            f"the record is of SAE {' '.join(known)}; {target.sae.id} is loaded here: the index may mean another feature"
        ]
    return []


def provenance_of(record: FeatureRecord) -> dict[str, Any]:
    """Where the record comes from, and what it says that is not measured here."""
    return {
        "model": record.modelId,
        "layer": record.layer,
        "index": str(record.index),
        "hook": record.hookName,
        "max_activation": record.maxActApprox,
        "density": record.frac_nonzero,
        "source": record.source.model_dump(exclude_none=True) if record.source else {},
        "explanations": [
            {"text": each.description, "by": each.explanationModelName, "type": each.typeName,
             "scores": [score.model_dump(exclude_none=True) for score in each.scores or []]}
            for each in record.explanations or []
        ],
    }  # fmt: skip


def their_explanations(record: FeatureRecord) -> Sequence[str]:
    """The sentences that the site lists, the first first, none twice or empty."""
    texts = (" ".join((each.description or "").split()) for each in record.explanations or [])
    return list(dict.fromkeys(text for text in texts if text))
