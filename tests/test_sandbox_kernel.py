"""The second front end of the sandbox: a real Jupyter kernel, confined like any worker."""

from pathlib import Path

import psutil
import pytest
from jupyter_client.blocking import BlockingKernelClient

from mikit.sandbox import Limits, Sandbox
from mikit.tasks import make


@pytest.fixture(scope="module")
def kernel():
    """A function that runs code in a kernel, and gives what it printed, its last value, and its error's name."""
    specimen = make("task1", seed=1).specimen
    with Sandbox(Limits()) as sandbox:
        worker, about = sandbox.start_kernel(specimen.architecture, specimen.config, specimen.weights)
        client = BlockingKernelClient()
        client.load_connection_info(about)
        client.start_channels()
        try:
            client.wait_for_ready(timeout=60)

            def run(code: str) -> tuple[str, str, str | None]:
                texts, values = [], []

                def hook(message):
                    content = message["content"]
                    if message["msg_type"] == "stream":
                        texts.append(content["text"])
                    elif message["msg_type"] == "execute_result":
                        values.append(content["data"]["text/plain"])

                reply = client.execute_interactive(code, output_hook=hook, timeout=60)
                return "".join(texts), "".join(values), reply["content"].get("ename")

            run.pid = worker.pid
            yield run
        finally:
            client.stop_channels()
            worker.close()
        assert not psutil.pid_exists(worker.pid)


@pytest.mark.slow
def test_a_kernel_runs_code_beside_the_model_and_keeps_state(kernel):
    assert kernel("print(model)\nx = 20")[0].startswith("LinearMap")
    assert kernel("x + 1")[1] == "21"
    assert kernel("1 / 0")[2] == "ZeroDivisionError"


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd')",
        "open('/tmp/x', 'w')",
        "__import__('os').listdir('/proc')",
        "__import__('os').fork()",
        "__import__('os').kill(__import__('os').getppid(), 9)",
        "__import__('subprocess').run(['/bin/true'])",
        "__import__('socket').socket()",
        "__import__('socket').socket(1)",
        "import mikit.tasks.catalogue",
        "import threading\nfound = []\ndef look():\n    try: found.append(open('/etc/passwd').read())\n    except OSError: pass\n"
        "t = threading.Thread(target=look); t.start(); t.join(); found[0]",
    ],
)
def test_a_kernel_is_confined_with_all_its_threads(kernel, code):
    assert kernel(code)[2] in {"PermissionError", "OSError", "IndexError"}
    assert kernel("1 + 1")[1] == "2"


@pytest.mark.slow
def test_a_kernels_threads_are_all_under_the_filter(kernel):
    threads = [thread.id for thread in psutil.Process(kernel.pid).threads()]
    assert len(threads) > 3
    for thread in threads:
        lines = Path(f"/proc/{kernel.pid}/task/{thread}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        assert fields["Seccomp"].strip() == "2" and fields["NoNewPrivs"].strip() == "1"
