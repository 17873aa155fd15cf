"""Run a command as Docker would, as far as that can be had without Docker: its capabilities, and what its seccomp profile refuses.

    python docker_profile.py COMMAND...

Docker's profile lists what is allowed; here is refused what is not on that list and matters: namespaces, mounts, modules, keys,
BPF, io_uring, userfaultfd, clocks. See docs.docker.com/engine/security/seccomp.
"""

import ctypes
import errno
import os
import struct
import sys

import pyseccomp

REFUSED = [
    "acct",
    "add_key",
    "bpf",
    "clock_adjtime",
    "clock_settime",
    "create_module",
    "delete_module",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "quotactl",
    "reboot",
    "request_key",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "ustat",
    "vhangup",
]
KEPT = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""Docker's capabilities: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind, net_raw, chroot, mknod, audit, setfcap."""
NAMESPACES = 0x7E020000
PR_CAPBSET_DROP = 24


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in set(range(41)) - set(KEPT):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    low = sum(1 << capability for capability in KEPT)
    assert not libc.capset(struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", low, low, 0, 0, 0, 0))
    made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in REFUSED:
        made.add_rule(pyseccomp.ERRNO(errno.EPERM), name)
    made.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    for bit in range(32):
        if NAMESPACES >> bit & 1:
            refused = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 1 << bit, 1 << bit)
            made.add_rule(pyseccomp.ERRNO(errno.EPERM), "clone", refused)
    libc.prctl(38, 1, 0, 0, 0)
    made.load()
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
