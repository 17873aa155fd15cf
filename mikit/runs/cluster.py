"""A sweep on more than one machine: features go to the workers of a Dask scheduler, and a lost worker's to others."""

import contextlib
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from mikit.errors import BadInput

log = logging.getLogger(__name__)
LOCAL = "local"
CONNECT_SECONDS = 30


@contextlib.contextmanager
def connected(scheduler: str, workers: int, features: int = 1) -> Iterator[Executor]:
    """The workers of a scheduler, as an executor.

    Args:
        scheduler: its address, such as `tcp://host:8786`, or `local` for one that is started here and ends with the block.
        workers: processes of a local one; elsewhere the scheduler knows.
        features: that each process of a local one has in flight.

    Raises:
        BadInput: Dask is not installed, or nobody answers there.
    """
    try:
        from distributed import Client
    except ImportError:
        raise BadInput("--scheduler needs Dask, which is not installed: pip install 'mikit[cluster]'") from None
    with contextlib.ExitStack() as stack:
        address: Any = stack.enter_context(local_cluster(workers, features)) if scheduler == LOCAL else scheduler
        try:
            _require_listener(address)
            client = stack.enter_context(Client(address, timeout=CONNECT_SECONDS, set_as_default=False))
        except (OSError, TimeoutError, ValueError) as error:
            raise BadInput(
                f"--scheduler {scheduler}: nobody answers ({error}): valid: the address that `dask scheduler` prints, or {LOCAL}"
            ) from None
        n = len(client.scheduler_info(n_workers=-1)["workers"])
        log.info("scheduler %s: %d workers%s", client.scheduler.address, n, _dashboard(client))
        # a function of the same name and arguments is not pure here: it writes files
        yield client.get_executor(pure=False, retries=0)


def _require_listener(address: Any) -> None:
    """Raise where nobody listens, at once: a client that finds nobody tries for long, and complains again when it goes."""
    if isinstance(address, str):
        from distributed.comm.addressing import get_address_host_port

        with socket.create_connection(get_address_host_port(address), CONNECT_SECONDS):
            pass


def _dashboard(client: Any) -> str:
    link = client.dashboard_link
    return f", dashboard {link}" if link else ""


def local_cluster(workers: int, features: int = 1) -> Any:
    """Worker processes on this machine, named by number, so many features at a time each; they listen here alone."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers,
        threads_per_worker=features,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        silence_logs=logging.ERROR,
    )
