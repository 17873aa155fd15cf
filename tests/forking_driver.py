"""A process with all that a run needs in memory: each line that it reads is a run, done in a child that may be killed.

A child starts in milliseconds, where a process of its own spends most of its time on imports. The children are the real
library on the real disk; only what is imported and loaded is shared.
"""

import importlib
import json
import os
import subprocess
import sys
import threading
import traceback

WARM = ("mikit.runs.refinement", "mikit.runs.nulls", "mikit.runs.verdict", "mikit.llm.client", "openai", "tenacity",
        "scipy.stats", "scipy.special")  # fmt: skip


class Driver:
    """Starts runs one after another, and knows the process of the one that runs."""

    def __init__(self, **first):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, json.dumps(first)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.child = None
        self.lock = threading.Lock()
        assert self.process.stdout.readline() == "ready\n"

    def run(self, **params):
        """Run to the end or to its kill; the exit status, negative for a signal."""
        self.process.stdin.write(json.dumps(params) + "\n")
        self.process.stdin.flush()
        self.child = int(self.process.stdout.readline())
        status = int(self.process.stdout.readline())
        self.child = None
        return status

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def _say(word):
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main():
    import mikit
    from mikit.runs import open_run

    for name in WARM:
        importlib.import_module(name)
    open_run(**json.loads(sys.argv[1])).store  # noqa: B018  loads the target and makes the evidence
    _say("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                mikit.explain_feature(**json.loads(line))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _say(pid)
        _say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
