"""What a worker may use up. The kernel or the server holds it to each of these; none relies on the worker."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Bounds of one worker."""

    wall_s: float = 30.0
    """Seconds for one piece of code. Then it is interrupted, and the worker killed if it goes on."""
    grace_s: float = 1.0
    """Seconds between the interrupt and the end."""
    start_s: float = 30.0
    """Seconds for a worker to be ready."""
    cpu_s: int = 900
    """Processor seconds of a worker in all."""
    memory_bytes: int = 768 * MIB
    """Address space beyond what the worker begins with."""
    output_bytes: int = 64 << 10
    """Output of one piece of code, in UTF-8; the rest is left out, with a note."""
    code_bytes: int = 256 << 10
    """Length of one piece of code, in UTF-8."""
    open_files: int = 64
    """Open files of a worker; it has no right to write any."""
