"""What `planner fleet check` finds in a fleet beside mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from splitplan.planner.cli.main import app
from splitplan.planner.show.fleet_findings import fleet_findings
from splitplan.planner.spec.fleet import Fleet, load_fleet

HEAD = "kind: Fleet\nversion: 1\nname: lab\nracks:\n"
TWO_RACKS = """\
  - name: a
    uplink_gbit_per_s: 100
    power_limit_kw: 9
    nodes:
      - {name: n1, gpu: h100, gpus: 8, nics: {link: ib-ndr, count: 8}, host_watts: 4000}
  - name: b
    nodes:
      - {name: n2, gpu: a10, gpus: 4, gpus_in_use: [0, 1, 2, 3]}
"""


def fleet(tmp_path: Path, text: str = TWO_RACKS) -> Fleet:
    (tmp_path / "fleet.yaml").write_text(HEAD + text)
    return load_fleet(tmp_path / "fleet.yaml")


@pytest.mark.parametrize(
    "finding",
    [
        "rack a: NICs over uplink are 32:1",
        "no uplink limit on racks b",
        "rack a: all GPUs at once would draw 9.6 kW of 9 kW",
        "no free GPU on n2",
        "the price of a10 is assumed",
        "no measurements of a10 ship",
    ],
)
def test_what_holds_plans_back_is_found(tmp_path: Path, finding: str) -> None:
    assert any(text.startswith(finding) for text in fleet_findings(fleet(tmp_path)))


def test_check_prints_findings_and_counts(tmp_path: Path) -> None:
    fleet(tmp_path)
    path = str(tmp_path / "fleet.yaml")
    shown = CliRunner().invoke(app, ["fleet", "check", path], catch_exceptions=False)
    assert shown.exit_code == 0
    assert [line[2:] for line in shown.stdout.splitlines()[1:]] == fleet_findings(load_fleet(path))
    data = json.loads(CliRunner().invoke(app, ["fleet", "check", path, "--json"], catch_exceptions=False).stdout)
    assert data["findings"] == fleet_findings(load_fleet(path))
