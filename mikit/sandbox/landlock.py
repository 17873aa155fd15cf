"""Landlock, the kernel's own confinement of files and TCP, by system call: no library of it is installed with Python.

Numbers and structures are those of linux/landlock.h (see also the manual page landlock(7)).
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System call numbers; the same on all architectures that have them."""
VERSION = 1
PATH_BENEATH = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many rights on files each version of the interface knows, counted from the lowest bit."""
TCP_RIGHTS = 0b11
"""To bind and to connect, from version 4."""
SCOPES = 0b11
"""Abstract sockets, and signals to processes outside, from version 6."""
PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def version() -> int:
    """The version of the interface that this kernel has; 0 if it has none, or forbids it."""
    try:
        return _call(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(VERSION))
    except OSError:
        return 0


def read_only(paths: Iterable[Path], listed: Iterable[Path] = ()) -> int:
    """A ruleset under which only what lies in `paths` can be read, and nothing written, run, bound or connected to.

    Args:
        paths: files and folders; those that are not there are left out.
        listed: folders of which the names can be read besides.

    Returns:
        Its file descriptor, which children inherit.

    Raises:
        OSError: this kernel has no Landlock.
    """
    known = version()
    fields = [(1 << FILE_RIGHTS[min(known, 5)]) - 1 if known else 0]
    fields += [TCP_RIGHTS] * (known >= 4) + [SCOPES] * (known >= 6)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _call(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    for path in paths:
        _allow(ruleset, path, READ_FILE | (READ_DIR if path.is_dir() else 0))
    for path in listed:
        _allow(ruleset, path, READ_DIR)
    return ruleset


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = struct.pack("=Qi", rights, handle)
        _call(ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(handle)


def no_new_privileges() -> None:
    """Give up for good what a set-user-ID program could give; both Landlock and seccomp ask for it."""
    if _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs")


def restrict_self(ruleset: int) -> None:
    """Put this process under a ruleset, for good."""
    _call(RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
