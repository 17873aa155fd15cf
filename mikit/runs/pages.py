"""The one way in which a report becomes HTML: every text is escaped, and a name that is not there is an error."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from mikit import viz


def page_template(name: str, filters: Mapping[str, Callable[..., Any]]) -> Template:
    """A template of this folder, with `svg` for figures and the filters that it needs besides."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"svg": viz.inline_svg, **filters}
    return environment.get_template(name)


def _shown(value: Any) -> Any:
    """What jinja prints, before it escapes it: no character of a text hides or reorders what stands around it."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return viz.visible(value)
    return "–" if value is None else value
