"""The report of a sweep: rates beside those of explanations that must not pass, files, and one page that is safe."""

import csv
import re
import time

import pyarrow.parquet as pq
import pytest
import synthetic_sweep
from test_report import Outline

from mikit.errors import BadInput
from mikit.experiments.statistics import wilson
from mikit.runs import sweep_table as tables
from mikit.runs.manifest import read_manifest
from mikit.runs.sweep_report import COLUMNS, write_sweep_report

N, FAILED = 24, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIKIT_OUTPUTS", str(tmp_path_factory.mktemp("outputs")))
        folder = synthetic_sweep.make(N, failed=FAILED)
        lines = write_sweep_report(folder)
        (folder / "lines").write_text("\n".join(lines))
        yield folder


@pytest.fixture
def table(folder, monkeypatch):
    monkeypatch.setenv("MIKIT_OUTPUTS", str(folder.parent.parent))
    return tables.read_table(read_manifest(folder))


def test_rates_are_counted_over_tested_features_with_intervals_and_nulls_beside(folder, table):
    kept = tables.tested(table.rows)
    assert len(kept) == N - FAILED
    own = tables.rates(kept)["own"]
    assert own == wilson(sum(row.all_gates for row in kept), len(kept))
    assert set(tables.grouped(table.rows)) >= {"all", "layer 0", "layer 1"}
    assert sum(len(rows) for name, rows in tables.grouped(table.rows).items() if name.startswith("layer")) == len(kept)
    assert sum(len(rows) for name, rows in tables.grouped(table.rows).items() if name.startswith("density")) == len(
        kept
    )
    assert "false passes are expected" in (folder / "lines").read_text()
    assert tables.failures(table.rows) == [("step 4", f"ValueError: {synthetic_sweep.HOSTILE}", FAILED)]


def test_features_with_nothing_to_explain_are_in_no_rate(table):
    dead = table.rows[0].model_copy(update={"kind": "dead"})
    assert len(tables.tested([dead, *table.rows[1:]])) == N - FAILED - 1


def test_csv_and_parquet_hold_every_feature_and_what_is_not_known_is_empty(folder):
    with (folder / "features.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = pq.read_table(folder / "features.parquet").to_pylist()
    assert len(rows) == len(found) == N
    assert list(rows[0]) == list(found[0]) == list(tables.Row.model_fields)
    assert rows[0]["usd"] == "" and found[0]["usd"] is None
    assert [row["state"] for row in found].count("failed") == FAILED


def test_the_page_is_well_formed_links_to_each_report_and_runs_one_script_of_its_own(folder):
    page = (folder / "report.html").read_text("utf-8")
    outline = Outline(re.sub(r"<script>.*?</script>|<input[^>]*>", "", page, flags=re.S))
    assert outline.faults == []
    links = [attributes["href"] for attributes in outline.all("a")]
    assert len(links) == N - FAILED
    assert all(re.fullmatch(r"\.\./\.\./layer-\d/feature-\d+/synthetic/report\.html", link) for link in links)
    assert page.count("<script") == 1 and "script-src 'sha256-" in page
    assert not re.search("<img|http:|https:|@import|[\u202a-\u202e]", page)
    assert "alert(1)" in outline.text
    assert len([head for head in outline.all("th") if head.get("scope") == "col"]) >= len(COLUMNS)


def test_a_torn_trace_counts_as_absent(folder, table, caplog):
    row = table.rows[0]
    path = folder.parent.parent / row.folder / "trace.json"
    whole = path.read_text()
    path.write_text(whole[:100])
    try:
        found = tables.read_table(read_manifest(folder)).rows[0]
    finally:
        path.write_text(whole)
    assert found.state == "pending" and "counts as absent" in caplog.text


def test_a_folder_without_a_manifest_is_one_line(tmp_path):
    with pytest.raises(BadInput, match="holds no manifest.json: valid: the folder of a sweep"):
        write_sweep_report(tmp_path)


@pytest.mark.slow
def test_a_thousand_features_are_reported_in_half_a_minute(tmp_path):
    folder = synthetic_sweep.make(1000)
    started = time.process_time()
    write_sweep_report(folder)
    # processor time: what else the machine does does not count
    assert time.process_time() - started < 30
    assert (folder / "report.html").stat().st_size < 5_000_000
