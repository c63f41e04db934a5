"""The pages that describe file formats."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from splitplan.catalogs.documents import parse_document, validate
from splitplan.planner.spec.fields import field_rows, with_tables
from splitplan.planner.spec.fleet_build import build_fleet
from splitplan.planner.spec.fleet_schema import FileModel, FleetFile, NodeFile
from splitplan.planner.spec.services_schema import ServicesFile
from splitplan.planner.spec.workload_build import build_workload

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")


def test_the_page_has_the_tables_of_the_schemas_that_check() -> None:
    """If this fails: python -m splitplan.planner.spec.fields docs/formats.md"""
    assert with_tables(PAGE) == PAGE


def test_every_schema_has_its_table() -> None:
    described = set(re.findall(r"<!-- fields: (\w+) -->", PAGE))
    assert described == {schema.__name__ for schema in FileModel.__subclasses__()}


def test_every_field_says_what_it_means() -> None:
    schemas = FileModel.__subclasses__()
    assert all(row.meaning for schema in schemas for row in field_rows(schema))


def test_a_row_tells_type_unit_bounds_and_default() -> None:
    rows = {row.name: row for row in field_rows(NodeFile)}
    assert (rows["host_memory_gib"].unit, rows["host_memory_gib"].bounds) == ("GiB", "> 0, <= 1,000,000")
    assert (rows["gpu"].type, rows["gpu"].default) == ("text", "required")
    assert (rows["count"].bounds, rows["count"].default) == (">= 1, <= 100,000", "1")
    racks = next(row for row in field_rows(FleetFile) if row.name == "racks")
    assert racks.type == "list of [RackFile](#rackfile)"


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_examples_on_the_page_load(example: str) -> None:
    """All but the one whose trace is not there, which fails for that alone."""
    document = parse_document(example, "example.yaml")
    if document.data["kind"] == "Fleet":
        assert build_fleet(document).num_gpus == {"h100-sxm": 16, "l40s": 12}
    elif document.data["kind"] == "Services":
        assert [item.name for item in validate(document, ServicesFile).services] == ["chat", "code"]
    elif "trace" in document.data:
        with pytest.raises(Exception, match=r"requests\.csv: no such trace"):
            build_workload(document)
    else:
        assert build_workload(document).rate_req_per_s == 12
