"""`planner catalog`: every catalog lists, every figure shows confidence and source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from splitplan.catalogs.errors import UnknownNameError, UsageError
from splitplan.catalogs.gpus import load_gpus
from splitplan.planner.cli.catalog import header
from splitplan.planner.cli.main import app
from splitplan.planner.show.listing import KINDS, describe_entry, least_confidence, list_entries

RUNNER = CliRunner()


def run(*arguments: str) -> str:
    result = RUNNER.invoke(app, ["catalog", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_every_catalog_lists_and_every_entry_shows(kind: str) -> None:
    rows = list_entries(kind)
    assert rows
    assert len({row["name"] for row in rows}) == len(rows)
    facts = describe_entry(kind, rows[0]["name"])
    assert len(facts) >= 4
    assert rows[0]["name"] in run("list", kind)


def test_without_a_kind_the_catalogs_are_counted() -> None:
    data = json.loads(run("list", "--json"))
    assert data["kind"] == "catalog"
    assert {row["catalog"]: row["entries"] for row in data["entries"]}["gpus"] == len(load_gpus())


def test_json_has_a_schema_version_and_units_in_its_keys() -> None:
    data = json.loads(run("list", "gpus", "--json"))
    assert data["schema_version"] == 1
    h100 = next(row for row in data["entries"] if row["name"] == "h100-sxm")
    assert h100["memory_gib"] == pytest.approx(79.6)
    assert h100["usd_per_gpu_hour"] > 0


def test_show_names_confidence_and_source_of_a_doubtful_figure() -> None:
    """A10G: sources disagree about its tensor rate, and the page says so."""
    data = json.loads(run("show", "gpu", "A10G", "--json"))
    fact = next(fact for fact in data["facts"] if fact["key"] == "bf16_dense_tflops")
    assert fact["confidence"] == "doubtful"
    assert fact["source"]
    shown = run("show", "gpu", "A10G")
    assert "doubtful" in shown
    assert "[1]" in shown


def test_a_config_json_is_shown_like_a_catalog_model(tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128}
    config |= {"vocab_size": 100, "num_attention_heads": 4, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "4/4 heads x 16" in run("show", "model", str(tmp_path))


def test_wrong_names_are_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no catalog 'gpvs': did you mean gpus"):
        list_entries("gpvs")
    with pytest.raises(UnknownNameError, match="did you mean"):
        describe_entry("models", "llama-3.1-71b")


def test_headers_are_in_the_units_people_write() -> None:
    assert header("memory_bandwidth_gb_per_s") == "memory bandwidth GB/s"
    assert header("usd_per_gpu_hour") == "$/GPU/h"


def test_the_worst_figure_speaks_for_the_entry() -> None:
    assert least_confidence([]) == "solid"
    assert least_confidence(["likely", "doubtful", "likely"]) == "doubtful"
