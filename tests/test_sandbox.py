"""The sandbox: what a worker can do, what it cannot, and that the server outlives whatever it tries."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from mikit import frames
from mikit.errors import BadInput
from mikit.sandbox import Limits, Sandbox, landlock
from mikit.sandbox.shell import Bounded
from mikit.tasks import make

SECRET = "a-secret-of-the-server"
SHORT = Limits(wall_s=3.0, grace_s=2.0)
REFUSED = ("PermissionError", "Operation not permitted", "Permission denied", "can't start new thread", "OSError")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


@pytest.fixture(scope="module")
def sandbox():
    os.environ["MIKIT_TEST_SECRET"] = SECRET
    with Sandbox(SHORT, os.environ.get("SANDBOX_LEVEL", "full")) as made:
        yield made
    del os.environ["MIKIT_TEST_SECRET"]
    assert not psutil.pid_exists(made.pid)


def start(sandbox, task="task1"):
    specimen = make(task, seed=1).specimen
    return sandbox.start(specimen.architecture, specimen.config, specimen.weights)


@pytest.fixture
def worker(sandbox):
    with start(sandbox) as made:
        yield made
    assert not psutil.pid_exists(made.pid)


@pytest.fixture(scope="module")
def calm(sandbox):
    """A worker for tests that leave it as it was."""
    with start(sandbox) as made:
        yield made


def test_this_machine_confines_fully_where_its_kernel_can(sandbox):
    wanted = os.environ.get("SANDBOX_LEVEL", "full")
    assert sandbox.level == (wanted if landlock.version() else "no-landlock")


def test_names_are_kept_and_the_last_value_is_shown(calm):
    calm.run("x = 20")
    assert calm.run("x + 1").text.strip().endswith("21")
    assert calm.run("_ * 2").text.strip().endswith("42")
    assert calm.run("Out[max(Out)]").good


def test_an_error_is_its_traceback_and_the_session_goes_on(calm):
    output = calm.run("def f():\n    return 1 / 0\nf()")
    assert not output.good and output.alive
    assert "line 2" in output.text or ":2 in f" in output.text
    assert "ZeroDivisionError: division by zero" in output.text
    assert "SyntaxError" in calm.run("x = (").text


def test_the_model_is_there_whole(sandbox):
    for task in ("task1", "task2", "task3", "task4"):
        specimen = make(task, seed=5).specimen
        with sandbox.start(specimen.architecture, specimen.config, specimen.weights) as worker:
            output = worker.run("print(sum(float(p.double().sum()) for p in model.parameters()))")
            expected = sum(float(w.astype(np.float64).sum()) for w in specimen.weights.values())
            assert float(output.text) == pytest.approx(expected, rel=1e-6, abs=1e-4)
            assert worker.run(
                "model.requires_grad_(True); sum((p**2).sum() for p in model.parameters()).backward()"
            ).good


def test_two_sessions_share_nothing(sandbox):
    with start(sandbox) as one, start(sandbox) as other:
        one.run("x = 'mine'; torch.Tensor.sum = None; import builtins; builtins.len = None")
        assert "NameError" in other.run("x").text
        assert other.run("len([1]), torch.ones(2).sum()").good
    with start(sandbox) as later:
        assert later.run("len([1]), torch.ones(2).sum()").good


# What is refused. Each of these is code of an agent; it must fail, and its session go on.

READS = {
    "a file": "open('/etc/passwd').read()",
    "a file through torch.os": "torch.os.open('/etc/passwd', 0)",
    "a file through builtins": "__import__('io').open('/etc/hostname').read()",
    "a file through subclasses": (
        "loader = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'FileLoader'][0]\n"
        "loader('x', '/etc/passwd').get_data('/etc/passwd')"
    ),
    "a file through ctypes": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nfd = libc.open(b'/etc/passwd', 0)\n"
        "if fd < 0: raise OSError(ctypes.get_errno(), 'open')"
    ),
    "a file by its mapping": "np.memmap('/etc/passwd', mode='r')",
    "a file through torch": "torch.from_file('/etc/passwd', size=10)",
    "a file with numpy": "np.fromfile('/etc/passwd', dtype=np.uint8)",
    "a folder": "import os; os.listdir('/')",
    "this package": "import mikit.tasks.catalogue",
    "the generators": "__import__('sys').modules['mikit.tasks'].make('task1', 1)",
    "the server's environment": "import os; open(f'/proc/{os.getppid()}/environ').read()",
    "its own environment": "open('/proc/self/environ').read()",
    "the environment of anybody": "open('/proc/1/environ').read()",
    "the parent's memory": "import os; open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "processes": "import os; os.listdir('/proc')",
}
WRITES = {
    "a file": "open('/tmp/x', 'w')",
    "a file in memory": "import os; os.memfd_create('x')",
    "many small files": "for i in range(1000): open(f'/tmp/many-{i}', 'w').write('x')",
    "a file through torch": "torch.save(torch.ones(1), '/tmp/x.pt')",
    "a shared file through torch": "torch.from_file('/tmp/shared', shared=True, size=10)",
    "shared memory": "from multiprocessing import shared_memory; shared_memory.SharedMemory(create=True, size=10)",
    "a folder": "import os; os.mkdir('/tmp/folder')",
    "a link": "import os; os.symlink('/etc/passwd', '/tmp/link')",
    "a pipe": "import os; os.mkfifo('/tmp/fifo')",
    "away a file": "import os; os.unlink('/tmp/x')",
}
PROCESSES = {
    "a shell": "import os; os.system('true') == 0 or (_ for _ in ()).throw(PermissionError('status'))",
    "a program": "import subprocess; subprocess.run(['/bin/true'])",
    "a program in its place": "import os; os.execv('/bin/true', ['true'])",
    "a fork": "import os; os.fork()",
    "a fork bomb": "import os\nwhile True: os.fork()",
    "a process through multiprocessing": "import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
    "a thread": "import threading; threading.Thread(target=print).start()",
    "a signal to the parent": "import os; os.kill(os.getppid(), 9)",
    "a signal to everybody": "import os; os.kill(-1, 9)",
    "tracing": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.ptrace(16, os.getppid(), 0, 0) < 0: raise OSError(ctypes.get_errno(), 'ptrace')"
    ),
    "another's memory": (
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.syscall(310, os.getppid(), 0, 0, 0, 0, 0) < 0: raise OSError(ctypes.get_errno(), 'process_vm_readv')"
    ),
    "more processors": "import os; os.sched_setaffinity(0, range(os.cpu_count()))",
    "higher limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "another user": "import os; os.setuid(0) if os.getuid() else os.setuid(1)",
    "a namespace": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.unshare(0x10000000) < 0: raise OSError(ctypes.get_errno(), 'unshare')"
    ),
    "io_uring": (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.syscall(425, 8, ctypes.create_string_buffer(200)) < 0: raise OSError(ctypes.get_errno(), 'io_uring')"
    ),
}
NETWORK = {
    "a socket": "import socket; socket.socket()",
    "a local socket": "import socket; socket.socket(socket.AF_UNIX)",
    "a connection": "import socket; socket.create_connection(('127.0.0.1', 8000), 1)",
    "a request to the server": (
        "import urllib.request\nurllib.request.urlopen(urllib.request.Request('http://127.0.0.1:8000/reset', b'{}'), timeout=1)"
    ),
    "a raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "a netlink socket": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "a download": "torch.hub.load_state_dict_from_url('http://127.0.0.1:8000/x')",
}
REFUSALS = {
    f"{kind} {name}": code
    for kind, cases in {"reads": READS, "writes": WRITES, "starts": PROCESSES, "opens": NETWORK}.items()
    for name, code in cases.items()
}


@pytest.mark.parametrize("code", REFUSALS.values(), ids=REFUSALS)
def test_refused(calm, code):
    output = calm.run(code)
    assert output.alive
    assert not output.good, output.text
    assert any(word in output.text for word in (*REFUSED, "Error")), output.text
    assert SECRET not in output.text and "root:" not in output.text
    assert calm.run("1").good


def test_a_worker_holds_neither_the_servers_environment_nor_its_secret(calm):
    output = calm.run("import os; print(dict(os.environ))")
    assert output.good and SECRET not in output.text and "PATH=" not in output.text
    assert SECRET not in calm.run("import sys; print(sys.argv, sys.orig_argv, sys.path)").text


def test_nothing_in_a_worker_says_what_the_answer_is(calm):
    names = calm.run("print([n for n in __import__('sys').modules if n.startswith('mikit')])").text
    assert "mikit.tasks.models" in names
    for module in ("catalogue", "grading", "task1", "arithmetic", "addition", "draws", "solvers"):
        assert f"mikit.tasks.{module}'" not in names
    inside = calm.run("print([type(m).__name__ for m in model.modules()], vars(model).keys())").text
    assert "truth" not in inside and "secret" not in inside


def test_a_worker_has_its_own_socket_open_and_no_other_file(calm):
    code = """
import os, stat
kinds = {}
for fd in range(256):
    try: kinds[fd] = stat.S_IFMT(os.fstat(fd).st_mode)
    except OSError: pass
print(sorted(kinds), [k for k in kinds if stat.S_ISSOCK(kinds[k])])
"""
    descriptors = calm.run(code).text
    assert descriptors.count("[0, 1, 2, ") == 1
    sockets = eval(descriptors.partition("]")[2].strip())
    assert len(sockets) == 1


# What is bounded.


def test_output_is_kept_to_its_limit(calm):
    output = calm.run("print('x' * 60_000_000)")
    assert output.alive and len(output.text) < SHORT.output_bytes + 200
    assert "output left out" in output.text
    assert calm.run("for i in range(300_000): print(i)").alive


def test_output_in_many_bytes_a_character_is_kept_to_its_limit_too(calm):
    assert len(calm.run("print('€' * 1_000_000)").text.encode()) < SHORT.output_bytes + 200
    assert calm.run(r"print('\ud800')").alive


def test_an_endless_loop_is_interrupted_and_the_session_goes_on(worker):
    output = worker.run("x = 3\nwhile True: pass")
    assert output.alive and "interrupted" in output.text
    assert worker.run("x").text.strip().endswith("3")


def test_a_loop_that_will_not_be_interrupted_ends_the_session(sandbox):
    with start(sandbox) as worker:
        output = worker.run("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass")
        assert not output.alive and "ended" in output.text
        assert not worker.run("1").alive
        assert not psutil.pid_exists(worker.pid)


ENDS = {
    "a crash": "import ctypes; ctypes.string_at(0)",
    "an exit": "import os; os._exit(0)",
    "an abort": "import os; os.abort()",
    "frames of garbage": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\xff' * 1000)\n    except OSError: pass",
    "an endless frame": (
        "import os, struct\nfor fd in range(3, 64):\n    try:\n        os.write(fd, struct.pack('>I', 1 << 19))\n"
        "        while True: os.write(fd, b'x')\n    except OSError: pass"
    ),
    "a frame that trickles": (
        "import os, struct, time\nfor fd in range(3, 64):\n    try:\n        os.write(fd, struct.pack('>I', 1 << 19))\n"
        "        while True: os.write(fd, b'x'); time.sleep(0.1)\n    except OSError: pass"
    ),
    "nesting": "import os, struct\nblob = b'[' * 500_000\nos.write(FD, struct.pack('>I', len(blob)) + blob)",
    "no object": "import os, struct\nos.write(FD, struct.pack('>I', 2) + b'[]')",
    "no text": "import os, struct\nblob = b'{\"text\": 3, \"good\": true}'\nos.write(FD, struct.pack('>I', len(blob)) + blob)",
    "recursion in C": "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
}
FIND = """
import os, stat
for FD in range(3, 256):
    try:
        if stat.S_ISSOCK(os.fstat(FD).st_mode): break
    except OSError: pass
"""


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_what_breaks_a_worker_ends_it_and_no_other(sandbox, calm, code):
    with start(sandbox) as worker:
        worker.run(FIND)
        first = worker.run(code)
        second = worker.run("1")
        # a forged answer is the worker's own output: what counts is that the true one then has no place
        assert not (first.alive and second.alive and worker.run("1").alive)
        assert not psutil.pid_exists(worker.pid) or worker.alive
    assert calm.run("1 + 1").text.strip().endswith("2")


def test_exit_does_not_end_a_session_and_neither_does_a_changed_print(worker):
    assert worker.run("exit()").alive
    assert worker.run("raise SystemExit(3)").alive
    assert worker.run("import builtins\nbuiltins.print = lambda *a: None\nprint('x')").alive
    assert worker.run("import sys\nsys.stdout = sys.stderr = None\n1").alive
    assert worker.run("1 + 1").alive


def test_memory_is_bounded(worker):
    output = worker.run("x = bytearray(3 << 30)")
    assert output.alive and "MemoryError" in output.text
    assert "Error" in worker.run("torch.ones(3 << 28)").text
    assert worker.run("1").good


def test_code_is_bounded(worker):
    output = worker.run("#" + "x" * (1 << 20))
    assert output.alive and not output.good and "valid: at most" in output.text
    assert worker.run("x = 1\n" * 2_000 + "x").good


def test_threads_of_torch_are_one_and_asking_for_more_is_harmless(worker):
    assert worker.run("torch.set_num_threads(8); (torch.ones(500, 500) @ torch.ones(500, 500)).sum()").good
    assert psutil.Process(worker.pid).num_threads() == 1
    assert len(psutil.Process(worker.pid).cpu_affinity()) == 1


def test_a_model_changed_in_place_is_changed_in_its_session_alone(sandbox):
    with start(sandbox) as one, start(sandbox) as other:
        one.run(
            "model.load_state_dict({k: v * 0 for k, v in model.state_dict().items()}); model.__class__.forward = None"
        )
        assert "tensor(0.)" not in other.run("model.layer.weight.abs().sum()").text
        assert other.run("model(torch.ones(1, 10))").good


PICKLED = """
import io, pickle
class Trick:
    def __reduce__(self): return (__import__('os').system, ('touch /tmp/mikit-pickled',))
blob = pickle.dumps(Trick())
pickle.loads(blob)
"""


def test_a_pickle_runs_its_code_where_it_can_do_nothing(worker):
    worker.run(PICKLED)
    worker.run(
        "buffer = io.BytesIO(); torch.save(Trick(), buffer); buffer.seek(0); torch.load(buffer, weights_only=False)"
    )
    worker.run(
        "np.save(b := io.BytesIO(), np.array([Trick()], dtype=object)); b.seek(0); np.load(b, allow_pickle=True)"
    )
    assert not Path("/tmp/mikit-pickled").exists()


def test_many_sessions_run_at_once_and_each_sees_its_own(sandbox):
    found = {}

    def play(number):
        with start(sandbox, "task2") as worker:
            worker.run(f"x = {number}")
            found[number] = [worker.run("x").text.split()[-1] for _ in range(3)]

    threads = [threading.Thread(target=play, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [str(number)] * 3 for number in range(8)}


def test_a_worker_that_is_closed_is_gone_and_closing_again_is_no_fault(sandbox):
    worker = start(sandbox)
    worker.close()
    worker.close()
    assert not psutil.pid_exists(worker.pid)
    assert not worker.run("1").alive


def test_a_model_that_does_not_fit_is_an_error_and_leaves_no_worker(sandbox):
    from mikit.sandbox.server import SandboxFailed

    before = {child.pid for child in psutil.Process(sandbox.pid).children()}
    with pytest.raises(SandboxFailed, match="did not get ready"):
        sandbox.start("linear", {"inputs": 3, "outputs": 1}, {"layer.weight": np.zeros((5, 5), np.float32)})
    assert {child.pid for child in psutil.Process(sandbox.pid).children()} == before


def test_an_unknown_level_is_refused():
    with pytest.raises(BadInput, match="valid: full, no-landlock, none"):
        Sandbox(level="loose")


# The frames themselves.


def test_a_frame_arrives_as_it_was_sent():
    import socket

    one, other = socket.socketpair()
    with one, other:
        frames.send(one, {"code": "print('é')"})
        assert frames.receive(other, 1) == {"code": "print('é')"}
        with pytest.raises(frames.Late):
            frames.receive(other, 0.01)
        one.sendall(frames.HEADER.pack(frames.JSON_BYTES + 1))
        with pytest.raises(frames.Broken, match="longer than"):
            frames.receive(other, 1)
        one.close()
        with pytest.raises(frames.Broken, match="closed"):
            frames.receive(other, 1)


def test_a_bounded_stream_keeps_the_first_bytes():
    stream = Bounded(10)
    stream.write("é" * 4)
    stream.write("abcdef")
    assert stream.take() == "éééé" + "ab" + "\n... output left out: more than 10 bytes"
    stream.write("again")
    assert stream.take() == "again"


# What ends with the server.

HOLDER = """
import sys, time
from mikit.sandbox import Sandbox
from mikit.tasks import make
specimen = make("task1", seed=1).specimen
sandbox = Sandbox()
worker = sandbox.start(specimen.architecture, specimen.config, specimen.weights)
print(sandbox.pid, worker.pid, flush=True)
worker.run("while True: pass")
"""


@pytest.mark.slow
def test_a_server_that_is_killed_leaves_neither_zygote_nor_worker():
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        pids = [int(word) for word in holder.stdout.readline().split()]
        children = [psutil.Process(pid) for pid in pids]
        holder.kill()
    with suppress(psutil.NoSuchProcess):
        psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
