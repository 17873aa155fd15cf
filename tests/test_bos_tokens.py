"""The vocabulary read behind BOS: what it finds on the planted model, and what is said where it is undefined."""

import numpy as np
import pytest
from planted_lab import TRUTH, lab

from mikit.errors import BadInput
from mikit.evidence import bos_tokens
from mikit.evidence.bos_tokens import place, read_bos, scan_bos, with_bos_tokens
from mikit.experiments.activation import peak_activations
from mikit.explainers.statistical.search import find_rules
from mikit.settings import Params
from mikit.targets import Options, load_target

FRUITS = TRUTH["fruits"]


def params(tmp_path, **more):
    return Params(**{"feature": FRUITS.index, "bos_token_root": str(tmp_path / "initial_observation")} | more)


def test_the_strongest_tokens_are_those_that_fire_alone(tmp_path, planted):
    folder = scan_bos(planted, params(tmp_path))
    found = read_bos(planted, params(tmp_path))
    ids, values = found.ids[FRUITS.index], found.values[FRUITS.index]
    texts = planted.token_strings(ids[: len(FRUITS.own)].tolist())
    assert set(texts) == FRUITS.own
    assert (np.diff(values) <= 0).all() and values[0] > 0
    peaks, _ = peak_activations(planted, [FRUITS.index], [[int(i)] for i in ids[:5]], 8)
    assert np.allclose(peaks[:, 0], values[:5], atol=1e-4)
    assert folder == place(planted, params(tmp_path))


def test_a_second_scan_of_the_same_does_nothing(tmp_path, planted, monkeypatch):
    before = (scan_bos(planted, params(tmp_path)) / "meta.json").stat().st_mtime_ns
    assert (scan_bos(planted, params(tmp_path)) / "meta.json").stat().st_mtime_ns == before


def test_what_is_undefined_is_said_and_windows_are_single_tokens(tmp_path, planted):
    scan_bos(planted, params(tmp_path))
    local = lab().observation(FRUITS.index)
    told = with_bos_tokens(
        local, read_bos(planted, params(tmp_path)), planted, lab().setting.vocabulary, params(tmp_path)
    )
    firing = [window for window in told.windows if not window.kind.startswith("silent")]
    assert told.source == "bos_token" and all(len(window.ids) == 1 for window in firing)
    assert firing[0].tokens[0] in FRUITS.own
    assert any("tell nothing" in note for note in told.notes) and any("density" in note for note in told.notes)


def test_the_model_is_run_to_its_hook_point_and_no_further(tmp_path, planted):
    layers, ran = planted.model.model.layers, set()
    hooks = [layer.register_forward_hook(lambda *_, i=i: ran.add(i)) for i, layer in enumerate(layers)]
    try:
        scan_bos(planted, params(tmp_path, bos_prompt_id="prompt-0002"))
    finally:
        for hook in hooks:
            hook.remove()
    assert ran == set(range(planted.layer + 1)) and len(layers) > len(ran)


def test_a_rule_of_tokens_is_found_though_each_was_read_once(tmp_path, planted):
    scan_bos(planted, params(tmp_path))
    vocabulary = lab().setting.vocabulary
    told = with_bos_tokens(
        lab().observation(FRUITS.index), read_bos(planted, params(tmp_path)), planted, vocabulary, params(tmp_path)
    )
    [rule, *_] = find_rules(told, vocabulary, 3)
    assert {token for clause in rule.any_of for token in clause.tokens or ()} >= FRUITS.own


def test_evidence_that_is_not_there_is_one_line(tmp_path, planted):
    with pytest.raises(BadInput, match="scan-bos"):
        read_bos(planted, params(tmp_path))
    with pytest.raises(BadInput, match="prompt-0017"):
        read_bos(planted, params(tmp_path, bos_prompt_id="prompt-0999"))


def test_a_feature_that_no_token_alone_fires_is_refused(tmp_path, planted):
    scan_bos(planted, params(tmp_path))
    unused = TRUTH["unused"].index
    with pytest.raises(BadInput, match="--source corpus"):
        with_bos_tokens(
            lab().observation(unused), read_bos(planted, params(tmp_path)), planted, lab().setting.vocabulary,
            Params(feature=unused),
        )  # fmt: skip


def test_damaged_evidence_is_refused_in_one_line_and_made_anew(planted, tmp_path):
    folder = scan_bos(planted, params(tmp_path))
    whole = {name: (folder / name).read_bytes() for name in ("ids.npy", "values.npy")}
    for name, data in whole.items():
        for damage in (b"", b"PK\3\4", data[:-8], data[:-8] + b"\x41" * 8):
            (folder / name).write_bytes(damage)
            with pytest.raises(BadInput, match="is damaged: valid: mikit scan-bos once more"):
                read_bos(planted, params(tmp_path))
        scan_bos(planted, params(tmp_path))
        assert (folder / name).read_bytes() == data


def test_another_network_has_a_folder_of_its_own_and_a_scan_cut_short_says_nothing(planted, tmp_path, monkeypatch):
    other = load_target("planted", 0, Options(planted_seed=5))
    folder = scan_bos(planted, params(tmp_path))
    assert place(other, params(tmp_path)) != folder
    before = read_bos(planted, params(tmp_path)).values
    (folder / "values.npy").unlink()
    monkeypatch.setattr(bos_tokens, "write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scan_bos(planted, params(tmp_path))
    with pytest.raises(BadInput, match="holds no tokens of this model"):
        read_bos(planted, params(tmp_path))
    monkeypatch.undo()
    scan_bos(planted, params(tmp_path))
    np.testing.assert_array_equal(read_bos(planted, params(tmp_path)).values, before)


@pytest.mark.parametrize("root", ["/dev/null/x", "a\0b", "~nobody-of-this-name/x"])
def test_a_root_that_is_no_folder_is_one_line(planted, tmp_path, root):
    with pytest.raises(BadInput, match="bos_token_root = .* valid: a folder"):
        scan_bos(planted, params(tmp_path, bos_token_root=root))
