"""A JupyterLab and a Chromium for the tests of a session: one of each, shared, on copies of the notebooks.

`lab` is the server: `lab.url("index.ipynb")` is where a notebook opens, `lab.open(page, "index.ipynb")` opens it and waits
for its kernel, `lab.run_all(page)` runs it to its end. `page` is a fresh page of the browser, and `dialogs` what popped
up on it. The server listens on 127.0.0.1 behind a token, and the browser can reach nothing else.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from mikit import paths

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path(os.environ.get("CHROMIUM") or "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
SETTINGS = {
    # cells out of sight are in the page too
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}
"""JupyterLab's own, without what asks the network or saves on its own."""
START_SECONDS = 120
CELL_SECONDS = 240
READY = """async (milliseconds) => {
    const panel = window.jupyterapp.shell.currentWidget;
    const started = async () => {
        await panel.context.ready;
        await panel.sessionContext.ready;
        await panel.sessionContext.session.kernel.info;
    };
    const late = new Promise((_, no) => setTimeout(() => no(new Error("no kernel")), milliseconds));
    await Promise.race([started(), late]);
}"""
ALL_RAN = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.widgets.filter((cell) => cell.model.type === "code");
    const failed = cells.some((cell) => cell.model.outputs.toJSON().some((output) => output.output_type === "error"));
    return failed || cells.every((cell) => cell.model.executionCount !== null || !cell.model.sharedModel.source.trim());
}"""
"""Kernels count a cell when they answer it; a failed one ends the wait."""
SHARED = ("notebooks", "docs", "params", "README.md")
"""What of the checkout the server shows."""


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab."""

    address: str
    """With a slash at its end."""
    token: str
    root: Path
    """The folder that it shows: copies, so that nothing that a test does changes the checkout."""

    def url(self, notebook: str) -> str:
        """Where a notebook opens; its path is the one below `notebooks/`."""
        return f"{self.address}lab/tree/notebooks/{quote(notebook)}?reset&token={self.token}"

    def open(self, page: "Page", notebook: str, theme: str = "JupyterLab Light") -> None:
        """Open a notebook, and wait until its kernel is idle."""
        self.set("apputils-extension/themes", {"theme": theme})
        page.goto(self.url(notebook))
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=START_SECONDS * 1000)
        page.evaluate(READY, START_SECONDS * 1000)

    def run_all(self, page: "Page", seconds: float = CELL_SECONDS) -> None:
        """Run all cells, and wait for the last; a cell that fails fails the test with what it said."""
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_function(ALL_RAN, timeout=seconds * 1000)
        errors = page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"]')
        assert errors.count() == 0, errors.first.inner_text()

    def write(self, notebook: str, cells: list[str]) -> None:
        """Put a notebook with these cells beside the others."""
        import nbformat

        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        # without a name of a kernel JupyterLab would ask for one
        made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(made, self.root / "notebooks" / notebook)

    def set(self, plugin: str, values: dict) -> None:
        """Change JupyterLab's settings, for pages opened from now on."""
        _write_settings(self.root.parent, plugin, values)


def _write_settings(home: Path, plugin: str, values: dict) -> None:
    file = home / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values), encoding="utf-8")


@pytest.fixture(scope="session")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """A JupyterLab on a free port, with settings, kernels' outputs and notebooks of its own."""
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}: name one in CHROMIUM")
    home = tmp_path_factory.mktemp("lab")
    root, token = home / "root", secrets.token_hex(16)
    root.mkdir()
    for name in SHARED:
        source = paths.PROJECT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, root / name)
    for plugin, values in SETTINGS.items():
        _write_settings(home, plugin, values)
    log = (home / "server.log").open("wb")
    server = subprocess.Popen(_command(root), env=_environment(home, token), stdout=log, stderr=log)
    try:
        yield Lab(_address(server, home), token, root)
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def _command(root: Path) -> list[str]:
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": "0",
        "ServerApp.root_dir": str(root),
        "ServerApp.open_browser": "False",
        "ServerApp.allow_root": "True",
        "LabApp.expose_app_in_browser": "True",
    }
    return [sys.executable, "-m", "jupyterlab", *(f"--{name}={value}" for name, value in options.items())]


def _environment(home: Path, token: str) -> dict[str, str]:
    """The tests' own environment, with nothing of the user's JupyterLab, and the token where no list of processes shows it."""
    folders = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTER_DATA_DIR": "data",
               "JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython",
               "MIKIT_OUTPUTS": "outputs"}  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "MIKIT_", "LLM_"))}
    cache = {"MIKIT_CACHE": os.environ["MIKIT_CACHE"]} if "MIKIT_CACHE" in os.environ else {}
    project = os.pathsep.join(filter(None, [str(paths.PROJECT), os.environ.get("PYTHONPATH")]))
    own = {name: str(home / folder) for name, folder in folders.items()}
    return kept | cache | own | {"JUPYTER_TOKEN": token, "PYTHONPATH": project}


def _address(server: subprocess.Popen, home: Path) -> str:
    """Where the server listens, as it says itself."""
    from urllib.error import URLError
    from urllib.request import urlopen

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        for file in (home / "runtime").glob("jpserver-*.json"):
            try:
                address = json.loads(file.read_text("utf-8"))["url"]
                with urlopen(f"{address}api"):
                    return address
            except (ValueError, KeyError, URLError):
                pass
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start:\n{(home / 'server.log').read_text('utf-8')[-3000:]}")


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """Debian's Chromium, headless."""
    from playwright.sync_api import sync_playwright

    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}: name one in CHROMIUM")
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield found
        found.close()


@contextlib.contextmanager
def new_page(browser: "Browser", dialogs: list[str]) -> Iterator["Page"]:
    """A page without cookies or history; a dialog is dismissed, and what it said is written to `dialogs`."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    opened = context.new_page()

    def answer(dialog):
        # of unsaved changes JupyterLab itself asks when a page is left
        if dialog.type == "beforeunload":
            return dialog.accept()
        dialogs.append(dialog.message)
        return dialog.dismiss()

    opened.on("dialog", answer)
    yield opened
    context.close()


@pytest.fixture
def dialogs() -> list[str]:
    """What alerts, prompts and confirmations said on `page`."""
    return []


@pytest.fixture
def page(browser, dialogs) -> Iterator["Page"]:
    """A new page of the browser."""
    with new_page(browser, dialogs) as opened:
        yield opened
