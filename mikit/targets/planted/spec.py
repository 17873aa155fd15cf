"""What a planted model is made from: a language, and the features planted in a model of it.

Kinds of feature, by what fires it:
`token` one word; `class` words of one sort; `union` two or more unrelated sorts; `cued` words, but only when one of
other words (`after`) stands among the `within` tokens before; `sense` the same with one word; `form` every word of a
form (`digits`, `capitalized`) or with a `suffix`; `dense` words so frequent that most texts hold one; `rare` words that
hardly ever occur; `bos` the BOS token alone; `dead` nothing.
A feature may promote words, suppress words, both, or neither: then it has no output effect.
"""

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mikit import strict_yaml
from mikit.errors import BadInput, one_of

Kind = Literal["token", "class", "union", "cued", "sense", "form", "dense", "rare", "bos", "dead"]
CUED_KINDS = ("cued", "sense")
WORD_KINDS = ("token", "class", "union", "cued", "sense", "dense", "rare")
ONE_WORD_KINDS = ("token", "sense")
MAX_WITHIN = 8
"""The farthest back that an attention head is made to look for a cue, in tokens."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _names(value: Any) -> Any:
    """One name, or a list of them, as a list of texts: a word such as `12` may be written without quotes."""
    items = value if isinstance(value, list) else [value]
    return tuple(str(item) if isinstance(item, int) and not isinstance(item, bool) else item for item in items)


class WordClass(_Part):
    """Words that stand at the same places in a sentence."""

    words: tuple[str, ...] = Field(min_length=1)
    weight: float = Field(default=1.0, gt=0)
    """How often each of them occurs, relative to the other words of the role."""
    neutral: bool = False
    """They get no companion, and prompts are made of them."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """A class may be just its words in one text."""
        parts = dict(value) if isinstance(value, dict) else {"words": value}
        if isinstance(words := parts.get("words"), str | int) and not isinstance(words, bool):
            parts["words"] = tuple(str(words).split())
        return parts


class Role(_Part):
    """A part of speech."""

    classes: dict[str, WordClass] = Field(min_length=1)
    next: dict[str, float] = Field(min_length=1)
    """Relative chance of each role to follow."""
    attached: bool = False
    """Its words have no space before them."""
    neutral: bool = False
    """All of its classes are neutral."""


class Feature(_Part):
    """One planted feature. Names are of classes or of single words."""

    name: str = Field(min_length=1)
    kind: Kind
    fires_on: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    within: int = Field(default=1, ge=1, le=MAX_WITHIN)
    form: Literal["digits", "capitalized"] | None = None
    suffix: str | None = Field(default=None, min_length=1)
    faint: tuple[str, ...] = ()
    """Words on which it is active below the firing threshold."""
    promotes: tuple[str, ...] = ()
    suppresses: tuple[str, ...] = ()
    strength: float | None = Field(default=None, gt=0)
    """Change of logit, nats, of the words it moves most when it is about as active as it gets; the spec's if None."""
    near: str | None = None
    """A feature that comes earlier and whose decoder direction is close to this one's."""
    cosine: float = Field(default=0.6, gt=0, lt=0.95)
    """With the direction of `near`."""

    _lists = field_validator("fires_on", "after", "faint", "promotes", "suppresses", mode="before")(_names)

    @model_validator(mode="after")
    def _fits_its_kind(self) -> "Feature":
        wrong = {
            "fires_on": bool(self.fires_on) != (self.kind in WORD_KINDS),
            "after": bool(self.after) != (self.kind in CUED_KINDS),
            "form or suffix": ((self.form is None) == (self.suffix is None)) == (self.kind == "form"),
            "faint": bool(self.faint) and self.kind in ("dead", "bos"),
            "promotes or suppresses": bool(self.promotes or self.suppresses) and self.kind == "dead",
        }
        for field, is_wrong in wrong.items():
            if is_wrong:
                allowed = self.kind in {"fires_on": WORD_KINDS, "after": CUED_KINDS, "form or suffix": ("form",)}.get(
                    field, ()
                )
                raise ValueError(f"a feature of kind {self.kind!r} {'needs' if allowed else 'has no'} {field}")
        return self


class Documents(_Part):
    """How the texts of the language are generated."""

    count: int = Field(default=1500, ge=1)
    shortest: int = Field(default=24, ge=8)
    """Tokens."""
    longest: int = Field(default=160, le=160)
    follow: float = Field(default=0.12, ge=0, le=1)
    """Chance that a word promoted by a feature stands behind a place where it fires."""
    cued: float = Field(default=0.55, ge=0, le=1)
    """Chance that a word that needs a cue is put behind one."""

    @model_validator(mode="after")
    def _in_order(self) -> "Documents":
        if self.longest < self.shortest:
            raise ValueError("longest is less than shortest")
        return self


class Companions(_Part):
    """Latents beside the declared features, one for each class that fires nothing yet."""

    classes: int = Field(default=2, ge=0)
    """How many classes each of them promotes."""


class Spec(_Part):
    """The whole of it. Cross references are checked when the words are known: see `words` and `features`."""

    roles: dict[str, Role] = Field(min_length=1)
    features: tuple[Feature, ...] = Field(min_length=1)
    seed: int = Field(default=0, ge=0)
    """Of everything that the spec leaves to chance."""
    strength: float = Field(default=1.5, gt=0)
    documents: Documents = Documents()
    companions: Companions | None = None
    dead: int = Field(default=0, ge=0)
    """Further dead latents."""

    @field_validator("features", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


DEFAULT = Path(__file__).with_name("planted.yaml")


def read_spec(path: Path | None = None) -> Spec:
    """The spec in a YAML file; the one that ships here if there is no path.

    Raises:
        BadInput: one line that names the file and its first fault.
    """
    path = path or DEFAULT
    values = strict_yaml.read_mapping(path)
    _check_kinds(values.get("features"), path)
    try:
        return Spec(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}") from None


def _check_kinds(features: Any, path: Path) -> None:
    """Before anything else, and with the nearest kind: what is wrong with the rest follows from the kind."""
    kinds = list(get_args(Kind))
    for feature in features if isinstance(features, list) else []:
        if isinstance(feature, dict) and feature.get("kind") not in kinds:
            what = f"kind of feature {feature.get('name')!r}"
            raise BadInput(f"{path}: {one_of(what, feature.get('kind'), kinds)}")
