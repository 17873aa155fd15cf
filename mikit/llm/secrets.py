"""Keys: where they come from, and that none of them is ever written."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mikit.errors import BadInput

MASK = "********"
NO_KEY = "none"
"""What a server that wants no key is sent."""
SHORTEST_SECRET = 8
"""Characters. A shorter key stands for none, such as `x` or `EMPTY`: masked wherever it occurs it would spoil every reply."""


def llm_key(environment: Mapping[str, str]) -> str | None:
    """The key of the language model's server: of `LLM_API_KEY`, the file `LLM_API_KEY_FILE` names, or `OPENAI_API_KEY`.

    Raises:
        BadInput: the file can't be read or is empty, or a key holds what none can.
    """
    if key := environment.get("LLM_API_KEY"):
        return _checked(key, "LLM_API_KEY")
    if name := environment.get("LLM_API_KEY_FILE"):
        try:
            key = Path(name).expanduser().read_text("utf-8").strip()
        except (OSError, RuntimeError, UnicodeDecodeError) as error:
            raise BadInput(f"LLM_API_KEY_FILE: {name} can't be read ({type(error).__name__})") from None
        if not key:
            raise BadInput(f"LLM_API_KEY_FILE: {name} is empty: valid: a file that holds the key alone")
        return _checked(key, f"LLM_API_KEY_FILE: {name}")
    return _checked(environment.get("OPENAI_API_KEY", ""), "OPENAI_API_KEY") or None


def _checked(key: str, where: str) -> str:
    """The key without what stands around it. Refused by a library of HTTP, it would be told in the refusal."""
    key = key.strip()
    if re.search(r"[^\x21-\x7e]", key):
        raise BadInput(f"{where} holds a space, a line break or a letter that no key has: valid: the key alone")
    return key


def hide(text: str, secrets: Iterable[str | None]) -> str:
    """The text with every secret masked, also where a server sent it back, and every key-like part of a URL."""
    for secret in secrets:
        if secret and len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    return re.sub(r"(?<=://)[^/@\s]*@", f"{MASK}@", text)


def check_url(url: str, where: str) -> str:
    """The address of a server, without a slash at its end.

    Raises:
        BadInput: it is none, or holds a secret that would be written down with it.
    """
    if not re.fullmatch(r"https?://[^\s]+", url):
        raise BadInput(f"{where} = {hide(url, ())!r}: valid: an address such as http://127.0.0.1:8000/v1")
    if "@" in url.split("://", 1)[1].split("/", 1)[0] or re.search(r"[?&][^=]*(?:key|token|secret)[^=]*=", url, re.I):
        raise BadInput(f"{where} holds a secret: valid: the address alone, and the key in LLM_API_KEY")
    return url.rstrip("/")
