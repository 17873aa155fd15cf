"""Which system calls a worker may make: a list of what is allowed, everything else is refused."""

import errno
import fcntl
import os
from contextlib import suppress
from typing import Any

ANYWHERE = [
    "read",
    "readv",
    "write",
    "writev",
    "pread64",
    "preadv",
    "lseek",
    "close",
    "close_range",
    "dup",
    "fstat",
    "fstatfs",
    "newfstatat",
    "stat",
    "lstat",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getcwd",
    "getdents64",
    "fadvise64",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "recvfrom",
    "sendto",
    "mmap",
    "munmap",
    "mprotect",
    "mremap",
    "madvise",
    "brk",
    "mincore",
    "membarrier",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sigaltstack",
    "rt_sigpending",
    "pause",
    "clock_gettime",
    "clock_getres",
    "clock_nanosleep",
    "nanosleep",
    "gettimeofday",
    "time",
    "times",
    "getrusage",
    "sysinfo",
    "uname",
    "getitimer",
    "setitimer",
    "alarm",
    "getpid",
    "getppid",
    "gettid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getgroups",
    "getresuid",
    "getresgid",
    "getpgrp",
    "getpgid",
    "getsid",
    "getpriority",
    "getrlimit",
    "sched_yield",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "getcpu",
    "futex",
    "set_robust_list",
    "get_robust_list",
    "rseq",
    "set_tid_address",
    "arch_prctl",
    "getrandom",
    "restart_syscall",
    "exit",
    "exit_group",
]
"""Reading what is open, talking over the one socket that it has, memory, time, and questions about oneself. `mmap` may make code executable: that is no way around a filter."""
FILES = ["open", "openat"]
"""To open files; Landlock says which. Where there is no Landlock, none."""
KERNEL = [
    "accept4",
    "accept",
    "shutdown",
    "getsockopt",
    "setsockopt",
    "getsockname",
    "getpeername",
    "sendmsg",
    "recvmsg",
    "socketpair",
    "eventfd2",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "pipe2",
    "pipe",
    "ioctl",
]
"""What a Jupyter kernel needs besides: sockets that it is handed, not such as it opens."""
CLONE_THREAD = 0x00010000
CLONE_VM = 0x00000100
GETTING = (fcntl.F_GETFD, fcntl.F_GETFL, fcntl.F_SETFD, fcntl.F_DUPFD, fcntl.F_DUPFD_CLOEXEC, fcntl.F_SETFL)


def make_filter(open_files: bool, kernel: bool = False) -> Any:
    """The filter of a worker, to be loaded in that worker: it names the process.

    Args:
        open_files: whether files may be opened.
        kernel: whether threads, and sockets that are handed over, may be used.

    Raises:
        OSError: libseccomp is missing or refuses.
        ImportError: pyseccomp is missing.
    """
    import pyseccomp as seccomp

    made = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in [*ANYWHERE, *(FILES if open_files else []), *(KERNEL if kernel else [])]:
        # a call that this architecture does not have needs no permission
        with suppress(OSError, RuntimeError):
            made.add_rule(seccomp.ALLOW, name)
    for command in GETTING:
        made.add_rule(seccomp.ALLOW, "fcntl", seccomp.Arg(1, seccomp.EQ, command))
    # whether a file is a terminal: not
    if not kernel:
        made.add_rule(seccomp.ERRNO(errno.ENOTTY), "ioctl")
    # to die of its own abort(), with its own signal
    made.add_rule(seccomp.ALLOW, "tgkill", seccomp.Arg(0, seccomp.EQ, os.getpid()))
    # to ask for a limit, not to set one
    made.add_rule(seccomp.ALLOW, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0), seccomp.Arg(2, seccomp.EQ, 0))
    # its flags lie in memory, where no filter sees them: the C library then falls back to clone
    made.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    if kernel:
        # ZeroMQ gives each thread the scheduling that it has: told that this worked, and not done
        made.add_rule(seccomp.ERRNO(0), "sched_setscheduler")
        flags = CLONE_THREAD | CLONE_VM
        made.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flags, flags))
    return made
