"""The scan and its store: what is found equals what a text shows when it is read alone, in flat memory, in one piece."""

import json
import logging
import shutil
import subprocess
import sys
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mikit import paths
from mikit.errors import BadInput, MikitError
from mikit.evidence import estimate_evidence, open_evidence
from mikit.evidence import scan as scanning
from mikit.evidence.activations import ordinary_positions
from mikit.evidence.corpora import Document, corpus_of, load_corpus
from mikit.evidence.postings import PostingsWriter
from mikit.evidence.scan import read_active, scan
from mikit.evidence.store import DamagedEvidence, open_store, percentile
from mikit.settings import make_params
from mikit.targets.hooks import batch_of, read_residual

SMALL = {"corpus_tokens": 3_000, "document_tokens": 64}


def small(**values):
    return make_params({**SMALL, **values})


@pytest.fixture(scope="module")
def store(planted, tmp_path_factory):
    """Evidence on a few thousand tokens."""
    folder = tmp_path_factory.mktemp("evidence") / "store"
    scan(planted, load_corpus("planted", planted), small(), folder)
    return open_store(folder)


@pytest.fixture(scope="module")
def alone(planted, store):
    """The activations of all latents at the content tokens of each window, read as the only text: [window, pos, latent]."""
    acts = np.zeros((*store.table.ids.shape, planted.sae.d_sae), np.float32)
    for window in range(store.n_windows):
        ids, mask = batch_of(planted, [store.table.text(window)])
        acts[window, : ids.shape[1] - 1] = planted.sae.encode(read_residual(planted, ids, mask))[0, 1:].numpy()
    return acts


WHOLE_RUN = """
import sys
from pathlib import Path
from mikit import explain_feature
explain_feature(model="planted", feature=3, corpus=sys.argv[1], corpus_tokens=None, document_tokens=None, nulls=False)
print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024)
"""
"""Prints the peak memory of a run in MiB."""


def _interrupt(*_):
    raise KeyboardInterrupt


def everything(store, d_sae):
    """All that a store says of the latents."""
    return [
        (store.firings(i).window.tolist(), store.firings(i).peak_index.tolist(), store.tau(i) > 0, store.density(i))
        for i in range(d_sae)
    ]


class TestWhatIsFound:
    def test_an_activation_equals_that_of_the_text_alone(self, planted, store, alone):
        windows = np.arange(store.n_windows)
        for latent in range(planted.sae.d_sae):
            assert np.abs(store.activations(latent, windows) - alone[:, :, latent]).max() < 1e-4

    def test_every_window_with_an_activation_is_listed_with_its_peak(self, planted, store, alone):
        peaks = alone.max(axis=1)
        for latent in range(planted.sae.d_sae):
            firings = store.firings(latent)
            assert firings.window.tolist() == np.flatnonzero(peaks[:, latent] > 0).tolist()
            assert np.allclose(firings.peak, peaks[firings.window, latent], atol=1e-4)
            at_peak = store.activations(latent, firings.window)[np.arange(len(firings.window)), firings.peak_index]
            assert (at_peak == firings.peak).all()
            assert np.array_equal(store.peaks(latent)[firings.window], firings.peak)
            assert np.count_nonzero(store.peaks(latent)) == len(firings.window)

    def test_scales_and_counts_are_those_of_all_activations(self, planted, store, alone):
        explain = store.table.in_split("explain")
        for latent in range(planted.sae.d_sae):
            acts = alone[:, :, latent]
            seen = acts[explain][acts[explain] > 0]
            ref = np.percentile(seen, 99.5) if len(seen) else 0.0
            assert store.ref(latent) == pytest.approx(ref, abs=1e-4)
            assert store.tau(latent) == pytest.approx(0.25 * ref, abs=1e-4)
            assert store.density(latent) == pytest.approx((acts > 0).sum() / store.tokens_read)
            firing = (store.peaks(latent) >= store.tau(latent)).sum() if ref > 0 else 0
            assert store.firing_counts[latent] == firing
        assert store.live(10).tolist() == [i for i in range(planted.sae.d_sae) if store.firing_counts[i] >= 10]

    def test_tokens_are_counted(self, planted, store):
        ids = [i for window in range(store.n_windows) for i in store.table.text(window)]
        assert store.tokens_read == len(ids) == store.token_counts.sum()
        assert store.token_counts[ids[0]] == ids.count(ids[0])
        assert len(store.token_counts) == planted.vocab_size

    @pytest.mark.parametrize("batch", [1, 7, 500])
    def test_the_batch_size_changes_nothing(self, planted, store, tmp_path, batch):
        scan(planted, load_corpus("planted", planted), small(batch=batch), tmp_path / "store")
        other = open_store(tmp_path / "store")
        assert other.hash == store.hash
        assert everything(other, planted.sae.d_sae) == everything(store, planted.sae.d_sae)
        assert np.allclose(other.arrays["ref"], store.arrays["ref"], atol=1e-4)

    @given(st.lists(st.floats(0, 1e4, width=32), min_size=1, max_size=50), st.floats(0, 100))
    def test_the_percentile_is_numpys(self, values, percent):
        assert percentile(np.array(values, np.float32), percent) == pytest.approx(
            np.percentile(np.array(values), percent), rel=1e-6, abs=1e-6
        )


class TestWhatIsNeverEvidence:
    def test_a_direction_that_loves_bos_has_no_evidence(self, planted, store):
        sae = planted.sae
        at_bos = read_residual(planted, *batch_of(planted, [[]]))[0, 0] - sae.apply_b_dec_to_input * sae.b_dec
        W_enc, b_enc = sae.W_enc.clone(), sae.b_enc.clone()
        W_enc[:, 0], b_enc[0] = at_bos / at_bos.norm(), -0.9 * at_bos.norm()
        lover = replace(planted, sae=replace(sae, W_enc=W_enc, b_enc=b_enc))
        texts = [store.table.text(window) for window in range(40)]
        residual = read_residual(lover, *batch_of(lover, texts))
        assert (lover.sae.encode(residual[:, 0], slice(0, 1)) > 0).all()
        assert 0 not in read_active(lover, texts).latent
        assert scanning.bos_activations(lover)[0] > 0

    def test_padding_has_no_activation(self, planted, store):
        texts = [store.table.text(0)[:4], store.table.text(1)]
        active = read_active(planted, texts)
        assert active.position[active.text == 0].max() < 4
        short = read_active(planted, texts[:1])
        assert (active.latent[active.text == 0] == short.latent).all()

    def test_massive_positions_are_left_out_and_counted(self):
        residual = torch.ones(2, 6, 4)
        residual[0, 3] *= 50
        residual[:, 0] *= 1000
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[1, 4:] = False
        expected = [[False, True, True, False, True, True], [False, True, True, True, False, False]]
        assert ordinary_positions(residual, mask).tolist() == expected

    def test_a_position_is_judged_by_its_own_text_alone(self):
        quiet, loud = torch.ones(1, 5, 4), 100 * torch.ones(1, 5, 4)
        mask = torch.ones(2, 5, dtype=torch.bool)
        assert ordinary_positions(torch.cat([quiet, loud]), mask)[:, 1:].all()

    @pytest.mark.smollm2
    def test_the_activation_sink_of_a_real_model_is_left_out(self, smollm2):
        texts = [
            smollm2.ids_of(", the river rose and the bridge was closed"),
            smollm2.ids_of("The river rose again that day"),
        ]
        active = read_active(smollm2, texts)
        assert active.massive == 1
        assert 0 not in active.position[active.text == 0]


class TestMemory:
    @given(
        st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 31)), max_size=30, unique=True), max_size=8),
        st.integers(1, 40),
    )
    def test_merged_shards_hold_what_was_collected(self, tmp_path_factory, windows, shard):
        writer = PostingsWriter(tmp_path_factory.mktemp("shards") / "s", 5, shard)
        expected = []
        for window, entries in enumerate(windows):
            ordered = sorted(entries, key=lambda e: e[1])
            latent, position = np.array([e[0] for e in ordered], int), np.array([e[1] for e in ordered], int)
            writer.add(latent, np.full(len(ordered), window), position, position + 0.5)
            expected += [(la, window, po, po + 0.5) for la, po in ordered]
        pointers, blocks = writer.merge()
        merged = [row for start, stop, part in blocks for row in part.tolist()]
        latents = np.repeat(np.arange(5), np.diff(pointers))
        assert [(int(la), *row) for la, row in zip(latents, merged, strict=True)] == sorted(expected)

    def test_ten_times_the_postings_need_no_more_memory(self, tmp_path):
        def peak(batches):
            rng = np.random.default_rng(0)
            tracemalloc.start()
            writer = PostingsWriter(tmp_path / str(batches), 300, shard=20_000)
            for window in range(batches):
                latent = rng.integers(0, 300, 5_000)
                writer.add(latent, np.full(5_000, window), latent % 32, latent + 1.0)
            total = sum(len(part) for _, _, part in writer.merge()[1])
            size = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert total == 5_000 * batches
            return size

        assert peak(400) < 1.3 * peak(40)

    @pytest.mark.slow
    def test_ten_times_the_tokens_need_hardly_more_memory(self):
        benchmark = Path(__file__).parents[1] / "benchmarks" / "evidence_scan.py"
        small, large = (
            float(subprocess.check_output([sys.executable, benchmark, "--peak-of", str(tokens)], text=True))
            for tokens in (100_000, 1_000_000)
        )
        assert large - small < 64

    @pytest.mark.slow
    def test_ten_times_the_tokens_need_hardly_more_memory_for_a_whole_run(self, planted, tmp_path):
        """All nine steps in a process of their own, on made-up text in the planted model's words."""
        rng = np.random.default_rng(0)
        words = np.array(" ".join(text for _, text in planted.own_documents).split())
        peaks = []
        for tokens in (50_000, 500_000):
            corpus = tmp_path / f"{tokens}.jsonl"
            texts = (" ".join(rng.choice(words, 250)) for _ in range(tokens // 250))
            corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            peaks.append(float(subprocess.check_output([sys.executable, "-c", WHOLE_RUN, corpus], text=True)))
        assert peaks[1] - peaks[0] < 96


class TestTheStoreOnDisk:
    def test_it_is_made_once_and_then_read(self, planted, monkeypatch):
        first = open_evidence(planted, small())
        monkeypatch.setattr(scanning, "scan", None)
        again = open_evidence(planted, small(batch=3, feature=5, seed=9))
        assert again.hash == first.hash
        assert everything(again, planted.sae.d_sae) == everything(first, planted.sae.d_sae)

    @pytest.mark.parametrize(
        "other",
        [
            {"corpus_tokens": 2_000},
            {"document_tokens": 40},
            {"protocol": {"window_tokens": 16}},
            {"protocol": {"tau_fraction": 0.5}},
        ],
    )
    def test_params_that_matter_make_another_store(self, planted, other):
        hashes = {open_evidence(planted, small()).hash, open_evidence(planted, small(**other)).hash}
        assert len(hashes) == 2
        assert len([path for path in (paths.outputs() / "evidence").iterdir() if path.is_dir()]) == 2

    def test_another_sae_makes_another_store(self, planted):
        changed = replace(planted, sae=replace(planted.sae, hash="0" * 16))
        assert open_evidence(planted, small()).hash != open_evidence(changed, small()).hash

    def test_full_reads_the_corpus_without_limits(self, planted):
        limited, full = open_evidence(planted, small()), open_evidence(planted, small(corpus="full"))
        tokens = sum(len(planted.ids_of(text)) for _, text in planted.own_documents)
        assert limited.tokens_read < 0.9 * tokens < full.tokens_read <= tokens
        assert full.corpus_name == "full"

    @pytest.mark.parametrize(
        "damage",
        [
            lambda folder: (folder / "value.npy").unlink(),
            lambda folder: (folder / "value.npy").write_bytes((folder / "value.npy").read_bytes()[:-100]),
            lambda folder: _flip(folder / "ids.npy"),
            lambda folder: _flip(folder / "documents.json"),
            lambda folder: (folder / "meta.json").unlink(),
            lambda folder: (folder / "meta.json").write_text((folder / "meta.json").read_text()[:200]),
            lambda folder: (folder / "meta.json").write_text(json.dumps([1])),
        ],
        ids=["missing", "short", "changed", "documents", "no meta", "torn meta", "other meta"],
    )
    def test_a_damaged_store_is_named_and_made_again(self, planted, damage, caplog):
        first = open_evidence(planted, small())
        found = everything(first, planted.sae.d_sae)
        (folder,) = (path for path in (paths.outputs() / "evidence").iterdir() if path.is_dir())
        damage(folder)
        with pytest.raises(DamagedEvidence, match=r"evidence in .*(npy|json) (has|is) .*") as raised:
            open_store(folder)
        assert "\n" not in str(raised.value)
        with caplog.at_level(logging.WARNING):
            again = open_evidence(planted, small())
        assert str(raised.value) in caplog.text
        assert everything(again, planted.sae.d_sae) == found

    @pytest.mark.parametrize("batches", [0, 1, 5, 17, 93])
    def test_a_scan_stopped_anywhere_goes_on_and_ends_in_the_same_evidence(
        self, planted, monkeypatch, tmp_path, batches
    ):
        monkeypatch.setattr(PostingsWriter.__init__, "__defaults__", (300,))
        corpus, read, whole = load_corpus("planted", planted), [], scanning.read_active
        scan(planted, corpus, small(batch=1), tmp_path / "whole")

        def stopped(target, texts):
            if len(read) == batches:
                raise KeyboardInterrupt
            read.append(texts)
            return whole(target, texts)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(scanning, "read_active", stopped)
            scan(planted, corpus, small(batch=1), tmp_path / "part")
        again = []
        monkeypatch.setattr(scanning, "read_active", lambda target, texts: again.append(1) or whole(target, texts))
        scan(planted, corpus, small(batch=1), tmp_path / "part")
        n = len(open_store(tmp_path / "whole").table)
        assert len(again) >= n - batches
        if batches > 17:
            assert len(again) < n - batches / 2
        assert {f.name: f.read_bytes() for f in (tmp_path / "part").iterdir()} == {
            f.name: f.read_bytes() for f in (tmp_path / "whole").iterdir()
        }

    @pytest.mark.parametrize("hurt", ["reached.json", "shards/0.bin", "shards/0.npy"])
    @pytest.mark.parametrize("how", ["missing", "short"])
    def test_what_a_stopped_scan_left_is_used_only_if_it_is_whole(self, planted, monkeypatch, hurt, how):
        monkeypatch.setattr(PostingsWriter.__init__, "__defaults__", (300,))
        expected = everything(open_evidence(planted, small()), planted.sae.d_sae)
        (folder,) = (path for path in (paths.outputs() / "evidence").iterdir() if path.is_dir())
        shutil.rmtree(folder)
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(scanning, "bos_activations", _interrupt)
            open_evidence(planted, small())
        assert not folder.exists()
        victim = folder.parent / f".{folder.name}.unfinished" / hurt
        victim.unlink() if how == "missing" else victim.write_bytes(victim.read_bytes()[:-3])
        assert everything(open_evidence(planted, small()), planted.sae.d_sae) == expected

    def test_what_other_params_left_behind_is_not_taken_up(self, planted, monkeypatch, tmp_path):
        monkeypatch.setattr(PostingsWriter.__init__, "__defaults__", (300,))
        corpus = load_corpus("planted", planted)
        scan(planted, corpus, small(), tmp_path / "whole")
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(scanning, "bos_activations", _interrupt)
            scan(planted, corpus, small(corpus_tokens=2_000), tmp_path / "part")
        scan(planted, corpus, small(), tmp_path / "part")
        assert (tmp_path / "part" / "value.npy").read_bytes() == (tmp_path / "whole" / "value.npy").read_bytes()

    def test_a_scan_that_would_fill_the_disk_stops_while_there_is_room_and_keeps_what_it_read(
        self, planted, monkeypatch
    ):
        monkeypatch.setattr(PostingsWriter.__init__, "__defaults__", (300,))
        full = shutil.disk_usage(paths.PROJECT)._replace(free=1_000)
        with monkeypatch.context() as patched:
            patched.setattr(scanning.shutil, "disk_usage", lambda _: full)
            with pytest.raises(MikitError, match="will need .* GiB more .* name another folder in MIKIT_OUTPUTS"):
                open_evidence(planted, small())
        read = []
        whole = scanning.read_active
        monkeypatch.setattr(scanning, "read_active", lambda target, texts: read.append(1) or whole(target, texts))
        assert open_evidence(planted, small()).n_windows > 0

    def test_an_estimate_counts_what_the_scan_then_finds(self, planted):
        guess, folder, is_there = estimate_evidence(planted, small())
        assert not is_there
        store = open_evidence(planted, small())
        assert folder.exists()
        assert (guess.tokens, guess.windows) == (store.tokens_read, store.n_windows)
        found = sum(file.stat().st_size for file in folder.iterdir())
        assert 0.2 < guess.disk / found < 5
        assert guess.seconds > 0
        assert 1 < guess.l0 < 5

    @pytest.mark.parametrize("blocker", ["outputs", "outputs/evidence"])
    def test_a_file_in_the_place_of_a_folder_is_bad_input(self, planted, monkeypatch, tmp_path, blocker):
        monkeypatch.setenv("MIKIT_OUTPUTS", str(tmp_path / "outputs"))
        (tmp_path / blocker).parent.mkdir(exist_ok=True)
        (tmp_path / blocker).write_text("in the way")
        with pytest.raises(BadInput, match="remove what is in its way"):
            open_evidence(planted, small())

    def test_two_at_once_make_it_once(self, planted, monkeypatch):
        made, stores = [], []

        def counted(*given):
            made.append(given)
            scan(*given)

        monkeypatch.setattr(scanning, "scan", counted)
        threads = [threading.Thread(target=lambda: stores.append(open_evidence(planted, small()))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1
        assert len({store.hash for store in stores}) == 1 and len(stores) == 3

    def test_an_sae_that_never_fires_has_an_empty_store(self, planted, tmp_path):
        silent = replace(planted, sae=replace(planted.sae, threshold=torch.full_like(planted.sae.threshold, 1e9)))
        scan(silent, load_corpus("planted", planted), small(), tmp_path / "store")
        store = open_store(tmp_path / "store")
        assert len(store.firings(3).window) == 0
        assert store.ref(3) == store.tau(3) == store.density(3) == 0
        assert not store.peaks(3).any()
        assert not store.activations(3, [0, 1]).any()
        assert len(store.live(1)) == 0

    def test_a_token_that_is_not_in_the_text_is_never_counted(self, planted, tmp_path):
        special = planted.tokenizer.decode([planted.bos_id])
        text = planted.own_documents[0][1]
        corpus = corpus_of("seams", [Document("d0", f"{special} {text} {special}")])
        scan(planted, corpus, small(), tmp_path / "store")
        store = open_store(tmp_path / "store")
        assert store.token_counts[list(planted.special_ids)].sum() == 0


def _flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
