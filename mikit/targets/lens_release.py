"""SAEs by sae-lens release and id: fetched once by sae-lens, kept in the local format, read without it afterwards."""

import tempfile
from pathlib import Path

from mikit import paths
from mikit.errors import BadInput

EXAMPLE = "gemma-scope-2b-pt-res-canonical/layer_12/width_16k/canonical"


def split_name(name: str) -> tuple[str, str]:
    """Release and id of `gemma-scope-2b-pt-res-canonical/layer_12/width_16k/canonical`.

    A release that sae-lens does not list is a hub repository, `owner/name`, and the id is a folder in it.
    """
    release, _, identity = name.partition("/")
    from sae_lens.loading.pretrained_saes_directory import get_pretrained_saes_directory

    if release not in get_pretrained_saes_directory():
        owner, repository, *rest = [*name.split("/"), ""]
        return f"{owner}/{repository}", "/".join(rest).rstrip("/")
    return release, identity


def fetched(name: str) -> Path:
    """The folder of a release's SAE in the cache, made on the first call.

    Raises:
        BadInput: sae-lens is not installed, knows no such SAE, or can't reach it.
    """
    parts = name.split("/")
    if len(parts) < 2 or any(part in ("", ".", "..", "~") for part in parts):
        raise BadInput(f"sae {name!r} is no folder that is there, and no sae-lens RELEASE/ID, such as {EXAMPLE}")
    folder = paths.cache() / "saes" / name
    if not (folder / "sae_weights.safetensors").is_file():
        _fetch(name, folder)
    return folder


def _fetch(name: str, folder: Path) -> None:
    try:
        from sae_lens import SAE
    except ImportError:
        raise BadInput(f"sae {name!r} is no folder; sae-lens fetches releases: pip install 'mikit[train]'") from None
    release, identity = split_name(name)
    try:
        sae = SAE.from_pretrained(release, identity, device="cpu")
    except Exception as error:  # sae-lens and the hub raise errors of many classes
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInput(f"sae {name!r} is no folder, and sae-lens can't give it: {reason}") from None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetching-") as scratch:
        sae.save_model(Path(scratch) / "sae")
        (Path(scratch) / "sae").rename(folder)
