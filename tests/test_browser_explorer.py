"""The notebooks in a real JupyterLab in a real browser."""

import pytest

pytestmark = pytest.mark.browser


def test_the_index_opens_and_runs(lab, page):
    lab.open(page, "index.ipynb")
    page.locator(".jp-NotebookPanel h1", has_text="mikit").wait_for()
    lab.run_all(page)
    assert page.locator(".jp-OutputArea-output", has_text="input").count() == 1
