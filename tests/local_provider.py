"""A provider for OpenEnv's validation that has a server already: nothing is built, no container started."""

import hashlib
from dataclasses import dataclass

from openenv.validation.types import ProviderCapability


@dataclass
class Running:
    base_url: str

    def inspect(self) -> dict:
        return {"provider": "local"}

    def logs(self, max_bytes: int = 65536) -> str:
        return ""

    def exec(self, argv, timeout_s):
        raise NotImplementedError("no check that is run here asks for it")

    def stop(self) -> None:
        """The server belongs to the test."""


class LocalProvider:
    """It says that it can build an image, and names the checkout's manifest for one."""

    name = "local"
    capabilities = frozenset({ProviderCapability.IMAGE_BUILD})
    supported_network_modes = frozenset({"public"})

    def __init__(self, url: str) -> None:
        self._url = url

    def build(self, root, execution) -> str:
        return "sha256:" + hashlib.sha256((root / "openenv.yaml").read_bytes()).hexdigest()

    def start(self, spec) -> Running:
        return Running(self._url)
