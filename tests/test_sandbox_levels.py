"""The attacks of test_sandbox.py once more: without Landlock, as an unprivileged user, and as Docker would run the server."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mikit.errors import BadInput
from mikit.sandbox import LEVELS, Sandbox
from mikit.tasks import make

HERE = Path(__file__).parent
WAYS = {
    "without Landlock": ([], "no-landlock"),
    # a user of a namespace that maps nobody: not root, and after exec without any capability
    "unprivileged": (["unshare", "--user"], "full"),
    "unprivileged, without Landlock": (["unshare", "--user"], "no-landlock"),
    "as in Docker": ([sys.executable, str(HERE / "docker_profile.py")], "full"),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_is_refused_is_refused_there_too(way, tmp_path):
    wrapper, level = WAYS[way]
    if wrapper and not shutil.which(wrapper[0]):
        pytest.skip(f"{wrapper[0]} is not here")
    if wrapper[:1] == ["unshare"] and subprocess.run([*wrapper, "true"], capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    environment = os.environ | {"SANDBOX_LEVEL": level, "PYTHONPATH": str(HERE.parent)}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}", "--noconftest",
             "-m", "not slow", str(HERE / "test_sandbox.py")]  # fmt: skip
    done = subprocess.run([*wrapper, *tests], capture_output=True, text=True, env=environment, cwd=HERE.parent)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.slow
def test_no_isolation_is_refused_unless_it_is_asked_for():
    with pytest.raises(BadInput, match="--allow-unsafe"):
        Sandbox(level="none")
    specimen = make("task1", seed=1).specimen
    with Sandbox(level="none", allow_unsafe=True) as sandbox:
        assert sandbox.level == LEVELS[-1]
        with sandbox.start(specimen.architecture, specimen.config, specimen.weights) as worker:
            assert worker.run("import os; len(os.listdir('/')) > 0").text.strip().endswith("True")
