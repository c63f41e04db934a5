"""The judge: each class by its own targets, in the joint share and apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from splitplan.planner.inputs import SolveInputs, load_inputs
from splitplan.planner.judge.verify import PLAIN, Judge
from splitplan.planner.plan import Verification
from splitplan.planner.question import Question
from splitplan.planner.simulate import Deployment
from tests.planner.simulate.cases import constant_step, instance

WORKLOAD = """
kind: Workload
version: 1
name: two
rate_req_per_s: 5
classes:
  - {{name: chat, share: 0.75, slo: "{chat}", lengths: {{fixed: {{input: 100, output: 20}}}}}}
  - {{name: batch, share: 0.25, slo: "{batch}", lengths: {{fixed: {{input: 100, output: 20}}}}}}
"""


def inputs_of(folder: Path, chat: str, batch: str) -> SolveInputs:
    path = folder / "two.yaml"
    path.write_text(WORKLOAD.format(chat=chat, batch=batch))
    return load_inputs(Question("llama-3.1-8b", "all-h100", str(path), "ttft=60s@p90,attain=90%"))


def judged(inputs: SolveInputs) -> Verification:
    """Every step takes 30 ms, in one instance with room for all."""
    deployment = Deployment((instance(constant_step(0.03, max_num_seqs=256, max_tokens=8192)),))
    return Judge(inputs, dataclasses.replace(PLAIN, screen_requests=800)).screen(deployment)[0]


@pytest.mark.parametrize("target", ["itl=20ms@p99", "tpot=20ms@p99", "e2e=400ms@p99", "ttft=25ms@p99"])
def test_a_class_that_misses_is_told_from_one_that_does_not(tmp_path: Path, target: str) -> None:
    """Chat asks for what steps of 30 ms cannot give, batch does not: 0 %, 100 %, and batch's share of all together."""
    found = judged(inputs_of(tmp_path, target, "ttft=60s@p90"))
    chat, batch = found.classes["chat"].attainment.value, found.classes["batch"].attainment.value
    assert (chat, batch) == (0.0, 1.0)
    assert found.attainment.value == pytest.approx(0.25, abs=0.06)
    assert not found.passed
    assert any(miss.startswith("chat: ") for miss in found.misses)
    assert not any(miss.startswith("batch: ") for miss in found.misses)


def test_classes_that_meet_their_targets_pass(tmp_path: Path) -> None:
    """Loose for both: passed, and ITL is told because one of them asks for it."""
    found = judged(inputs_of(tmp_path, "itl=40ms@p99,ttft=1s@p99", "tpot=50ms@p90"))
    assert found.passed, found.misses
    assert found.itl_ms["p99"].value == pytest.approx(30, rel=0.02)


def test_itl_is_not_told_where_nobody_asks(tmp_path: Path) -> None:
    """Plans of questions without it are as they were."""
    assert judged(inputs_of(tmp_path, "ttft=1s@p99", "tpot=50ms@p90")).itl_ms == {}
