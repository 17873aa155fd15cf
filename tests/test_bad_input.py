"""Fifty kinds of bad input and broken file, as a stranger meets them: at the command line, beside a finished run.

Each is refused in one line with status 2 (what was given) or 1 (what was found), and costs nothing that was done before.
"""

import hashlib
import json
import logging
from pathlib import Path

import builders
import numpy as np
import pytest
import tiny_gemma
import yaml

from mikit.cli import main
from mikit.targets.smollm2 import DEMO_SAE

SMOL = ("--model", "smollm2-135m", "--layer", "12")
CSV = "feature,explanation\n"


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """A small Gemma 2 with SAEs of random weights in Gemma Scope's folders, and a Gemma of another width."""
    root = tmp_path_factory.mktemp("gemma")
    tiny_gemma.write_model(root / "model")
    width = tiny_gemma.WIDTH
    weights = {
        "W_enc": np.ones((width, 32), np.float32),
        "W_dec": np.ones((32, width), np.float32),
        "b_enc": np.zeros(32, np.float32),
        "b_dec": np.zeros(width, np.float32),
        "threshold": np.ones(32, np.float32),
    }
    tiny_gemma.write_scope(root / "scope", weights)
    return root


@pytest.fixture
def place(tmp_path):
    """A folder of the user's, beside outputs that hold a finished run."""
    run = tmp_path / "outputs" / "layer-0" / "feature-3" / "default"
    run.mkdir(parents=True)
    (run / "trace.json").write_text(builders.trace().model_dump_json())
    (run / "step1_initial_observation.ipynb").write_text("{}")
    folder = tmp_path / "mine"
    folder.mkdir()
    return folder


def file(place: Path, name: str, content: str | bytes) -> str:
    """A file of the user's."""
    path = place / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def digests(folder: Path) -> dict[str, str]:
    """Every file below a folder, with what it holds."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def params(text):
    return lambda place: ("run", "--params", file(place, "p.yaml", text))


def corpus(name, content, *options):
    return lambda place: ("scan", "--corpus", file(place, name, content), *options)


def csv(content):
    return lambda place: ("score", file(place, "mine.csv", content))


def sweep(section):
    return lambda place: ("sweep", file(place, "s.yaml", f"model: planted\nsweep: {section}\n"), "--dry-run")


def spec(change):
    def words(place):
        from mikit.targets.planted.spec import DEFAULT

        data = yaml.safe_load(DEFAULT.read_text())
        change(data)
        return ("run", "--planted-spec", file(place, "mine.yaml", yaml.safe_dump(data)))

    return words


def sae(damage):
    """The SAE that ships, copied and damaged."""

    def words(place):
        folder = place / "sae"
        folder.mkdir()
        for part in ("cfg.json", "sae_weights.safetensors"):
            (folder / part).write_bytes((DEMO_SAE / part).read_bytes())
        damage(folder)
        return ("run", *SMOL, "--sae", str(folder))

    return words


def shortened(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def reconfigured(folder: Path, **changes) -> None:
    config = json.loads((folder / "cfg.json").read_text())
    (folder / "cfg.json").write_text(json.dumps({**config, **changes}))


KINDS = {
    # the command line
    "no such command": (("rum",), 2, "Did you mean 'run'"),
    "no such option": (("run", "--featur", "3"), 2, "--feature"),
    "a value that is no number": (("run", "--feature", "three"), 2, "should be a valid integer"),
    "a number that is too small": (("run", "--feature", "-1"), 2, "greater than or equal to 0"),
    "two spellings of one number": (("run", "--feature", "6_650"), 2, "6_650"),
    "an index beyond the SAE": (("run", "--feature", "99999"), 2, "99999"),
    "a layer beyond the model": (("run", "--layer", "7"), 2, "layer"),
    "a run name that leaves its folder": (("run", "--run", "../x"), 2, "valid: letters"),
    "one parameter twice": (("run", "--set", "seed=3", "--seed", "4"), 2, "also given as --seed"),
    "an option that suits another model": ((*("run", *SMOL), "--planted-seed", "1"), 2, "valid: model planted"),
    "a model that is nowhere": (("run", "--model", "no/such-model"), 2, "no/such-model"),
    # params files
    "a params file that is not there": (("run", "--params", "none.yaml"), 2, "No such file"),
    "a params folder": (lambda place: ("run", "--params", str(place)), 2, "mine"),
    "YAML that does not parse": (params("feature: ["), 2, "p.yaml"),
    "YAML that is a list": (params("- feature"), 2, "holds a list"),
    "YAML that would run code": (params("x: !!python/object/apply:os.system [ls]"), 2, "constructor"),
    "YAML with a key twice": (params("feature: 1\nfeature: 2\n"), 2, "given twice"),
    "YAML that reads a word as a truth value": (params("run: no"), 2, "no"),
    "YAML in another encoding": (params("run: naïve".encode("latin-1")), 2, "p.yaml"),
    "a misspelt parameter": (params("featur: 3"), 2, "did you mean 'feature'"),
    "a parameter below another": (params("n_select: 5"), 2, "did you mean 'protocol.n_select'"),
    # corpora
    "a corpus that is not there": (("scan", "--corpus", "none.txt"), 2, "unknown corpus"),
    "an empty corpus": (corpus("c.txt", " \n\n"), 2, "has no text in it"),
    "a corpus in another encoding": (corpus("c.txt", "naïve".encode("latin-1")), 2, "not readable as UTF-8"),
    "a torn line of a corpus": (corpus("c.jsonl", '{"text": "a"}\n{"text": '), 2, "line 2: not readable"),
    "a document without text": (corpus("c.jsonl", '{"words": "a"}'), 2, "'text' field"),
    "two documents of one id": (corpus("c.jsonl", '{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}'), 2, "share an id"),
    # explanations and other tables that are brought
    "a table that is not there": (("score", "none.csv"), 2, "none.csv"),
    "a table without the column": (csv("latent,explanation\n1,x\n"), 2, "feature"),
    "a table without rows": (csv(CSV), 2, "mine.csv"),
    "a row with no number": (csv(CSV + "x,y\n"), 2, "'x'"),
    "a table that is binary": (csv(b"\x00\xff\xfe"), 2, "mine.csv"),
    "a sentence without tokens": (("score", "--explanation", "it likes fruit"), 2, "in quotes"),
    "a rule that is no JSON": (("score", "--rule", "{bad"), 2, "rule"),
    "a rule of another form": (("score", "--rule", '{"tokens": 3}'), 2, "rule"),
    # planted specs, prompts, sweeps, submissions
    "a spec without features": (spec(lambda data: data.update(features=[])), 2, "mine.yaml"),
    "a spec with an unknown key": (spec(lambda data: data.update(colour="red")), 2, "colour"),
    "a sweep without its section": (lambda p: ("sweep", file(p, "s.yaml", "model: planted\n")), 2, "no section 'sweep'"),
    "a sweep over nothing": (sweep("{features: {range: [5, 5]}}"), 2, "range"),
    "a sweep over two pools": (sweep("{features: {list: [1], range: [0, 2]}}"), 2, "valid: one of"),
    "a sweep of impossible shares": (sweep("{features: {density: [0.5, 0.1]}}"), 2, "density"),
    # SAEs and models
    "an SAE folder that is empty": (lambda p: ("run", *SMOL, "--sae", str(p)), 2, "mine"),
    "SAE weights that are torn": (sae(lambda f: shortened(f / "sae_weights.safetensors")), 2, "sae_weights"),
    "an SAE configuration that is torn": (sae(lambda f: shortened(f / "cfg.json")), 2, "cfg.json"),
    "an SAE of another kind": (sae(lambda f: reconfigured(f, architecture="transcoder")), 2, "transcoder"),
    "an SAE of another hook point": (
        sae(lambda f: reconfigured(f, metadata={"hook_name": "blocks.12.hook_mlp_out"})), 2, "an MLP output",
    ),
    # what was written before
    "a run that is not there": (("report", "nowhere"), 2, "no valid trace.json"),
    "a refinement of nothing": (("refine", "--feature", "8"), 2, "feature-8"),
    "an export of nothing": (lambda p: ("export", str(p), "--out", str(p / "rows.jsonl")), 2, "mine"),
    "a record that is torn": (
        lambda p: ("run", "--source", "neuronpedia", "--neuronpedia-record", file(p, "r.json", '{"index": ')), 2, "r.json",
    ),
    "a key file that is not there": (
        ("run", "--explainer", "llm", "--llm-model", "m", "--llm-base-url", "http://127.0.0.1:9/v1",
         "--llm-api-key-file", "none.key"), 2, "none.key",
    ),
}  # fmt: skip


IN_A_KERNEL = (
    "a layer beyond the model",
    "a model that is nowhere",
    "a spec with an unknown key",
    "an SAE folder that is empty",
    "an SAE configuration that is torn",
    "an SAE of another hook point",
)
"""Told by the check before the first step, as others of the fast tier are: a kernel is started for each."""


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in IN_A_KERNEL)) for k in KINDS])
def test_each_kind_is_one_line_and_costs_nothing(kind, place, capsys):
    words, expected, said = KINDS[kind]
    words = words(place) if callable(words) else words
    before = digests(place.parent / "outputs")
    status = main(words)
    logging.getLogger().handlers.clear()
    captured = capsys.readouterr()
    assert (status, captured.out) == (expected, ""), captured.err
    assert captured.err.startswith("mikit: ") and captured.err.count("\n") == 1
    assert said in captured.err
    assert digests(place.parent / "outputs").items() >= before.items()


def test_there_are_at_least_fifty():
    assert len(KINDS) >= 50


GEMMA_KINDS = {
    "no SAE of that layer": (lambda root, place: ("--layer", "0", "--sae-root", str(root / "scope")), "nearest"),
    "an SAE file that is torn": (
        lambda root, place: ("--sae", copied(root, place, lambda data: data[: len(data) // 2])), "params.npz",
    ),
    "an SAE file of something else": (lambda root, place: ("--sae", copied(root, place, lambda _: b"words")), "params.npz"),
    "float16 on Gemma": (
        lambda root, place: ("--dtype", "float16", "--sae-root", str(root / "scope"), "--layer", str(tiny_gemma.LAYER)),
        "float16",
    ),
}  # fmt: skip


def copied(root: Path, place: Path, damage) -> str:
    folder = place / "layer_1" / "width_16k" / "average_l0_9"
    folder.mkdir(parents=True)
    data = next((root / "scope").rglob("params.npz")).read_bytes()
    (folder / "params.npz").write_bytes(damage(data))
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", GEMMA_KINDS)
def test_what_is_wrong_with_a_target_of_ones_own_is_one_line(kind, gemma, place, capsys):
    options, said = GEMMA_KINDS[kind]
    before = digests(place.parent / "outputs")
    text = tiny_gemma.write_corpus(place / "c.jsonl", 20)
    words = ("run", "--model", str(gemma / "model"), "--corpus", str(text), *options(gemma, place))
    assert main(words) == 2
    logging.getLogger().handlers.clear()
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("mikit: ") and captured.err.count("\n") == 1, captured.err
    assert said in captured.err
    assert digests(place.parent / "outputs").items() >= before.items()
