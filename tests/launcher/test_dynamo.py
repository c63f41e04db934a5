"""Dynamo: commands of its workers, and its real mocker with its real frontend on this machine."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher.bench import bench
from splitplan.launcher.engines.dynamo import model_files, timing_table
from splitplan.launcher.lifecycle import destroy, status
from splitplan.launcher.probe import probe
from splitplan.launcher.render import LaunchOptions, render
from tests.launcher.conftest import EXTRAS, Start, lacking
from tests.launcher.plans import mixed_plan, small_plan, timing
from tests.launcher.test_shell import command_of, option


@pytest.fixture
def mocker() -> LaunchOptions:
    """Options that start Dynamo's mocker here."""
    python = EXTRAS / "bin" / "python"
    if not os.access(python, os.X_OK):
        lacking("no Dynamo mocker on this machine")
    return LaunchOptions(target="local", engine="dynamo-mocker", python=str(python))


def test_workers_get_the_plan_s_numbers_and_find_each_other() -> None:
    files = render(mixed_plan(), LaunchOptions(engine="dynamo-vllm"))
    words = command_of(files["hosts/a100-0.sh"].replace("\n  mkdir", "\n# mkdir"), "decode-1")
    words = words[words.index("exec") :]
    assert option(words, "--disaggregation-mode") == "decode"
    assert option(words, "--max-num-seqs") == "96"
    assert "DYN_DISCOVERY_BACKEND=file" in words
    assert "DYN_TCP_RPC_HOST=10.0.1.2" in words
    assert "DYN_KV_TRANSFER_ENFORCEMENT=required" in words
    frontend = command_of(files["hosts/a100-0.sh"], "router")
    assert option(frontend, "--router-mode") == "kv"  # the only mode in which the topology rule bites


@pytest.mark.parametrize("engine", ["dynamo-sglang", "dynamo-trtllm"])
def test_other_workers_render_too(engine: str) -> None:
    files = render(mixed_plan(), LaunchOptions(engine=engine))
    assert f"-m dynamo.{engine.removeprefix('dynamo-')}" in files["hosts/h100-0.sh"]


def test_without_a_timing_table_the_mocker_is_refused() -> None:
    plan = mixed_plan()
    pools = tuple(pool.model_copy(update={"timing": None}) for pool in plan.pools)
    with pytest.raises(LaunchError, match="has no timing tables"):
        render(plan.model_copy(update={"pools": pools}), LaunchOptions(engine="dynamo-mocker"))


def test_the_mocker_s_table_says_what_the_plan_predicts() -> None:
    """At each planned batch and context, the table's entry for that many active tokens is the planned step."""
    pool = mixed_plan().pools[1]
    table = np.load(io.BytesIO(timing_table(pool)))
    planned = timing()
    assert table["prefill_ttft_ms"] == pytest.approx([1e3 * s for s in planned.prefill_s])
    for row, batch in enumerate(planned.decode_batch):
        for column, context in enumerate(planned.decode_context_tokens):
            active = batch * max(context, 1)
            found = np.interp(active, table["decode_active_kv_tokens"], table["decode_itl"][:, column])
            assert found == pytest.approx(1e3 * planned.decode_step_s[row][column])


def test_the_made_up_vocabulary_is_large_enough_and_fixed() -> None:
    assert model_files() == model_files()
    assert set(model_files()) >= {"model/config.json", "model/tokenizer.json"}


def test_one_pair_of_mockers_serves(mocker: LaunchOptions, start: Start, plan_file: Path) -> None:
    launched = start(small_plan(), options=mocker, timeout_s=60.0)
    assert launched.report
    assert launched.report.passed
    assert launched.report.pairs == {("prefill-0", "decode-0"): launched.report.num_requests}
    _, found = status(plan_file)
    assert all(each.is_ready for each in found)
    report = bench(str(plan_file), workload="fixed:256/16", rate_req_per_s=4, duration_s=2)
    assert report.num_failed == 0
    assert report.mean_output_tokens == 16
    destroy(plan_file)


def test_two_pairs_in_two_racks_stay_in_their_racks(mocker: LaunchOptions, start: Start) -> None:
    """40 of 40 requests: the planned routes do not cross, so pairing inside the rack is required of the frontend."""
    launched = start(small_plan(num_pairs=2), options=mocker, timeout_s=60.0)
    report = probe(launched.state, num_requests=40)
    assert report.same_rack == 40
    assert len(report.pairs) == 2
