"""Pipelines that mix GPU types: tried where they help, cut so that stages run at one rate, held to their memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splitplan.planner.columns.build import ColumnSet
from splitplan.planner.columns.cache import cached_columns
from splitplan.planner.columns.column import Column
from splitplan.planner.columns.cuts import layer_splits
from splitplan.planner.columns.hosts import host_kinds, rack_mixes
from splitplan.planner.columns.options import ColumnOptions
from splitplan.planner.columns.pipelines import pipeline_memory, pipeline_problem, pipeline_step, pipelines, serves_more
from splitplan.planner.columns.service import decode_step_s, mix_prompts
from splitplan.planner.columns.steps import StepLibrary
from splitplan.planner.inputs import SolveInputs, load_inputs
from splitplan.planner.question import Question
from splitplan.planner.spec.fleet import load_fleet
from splitplan.planner.study import Study, prepare
from tests.planner.program.fleets import a_column, a_mixed_column

LEFTOVERS = """
kind: Fleet
version: 1
name: leftovers
racks:
  - name: r1
    nodes:
      - {name: h100-1, gpu: h100-sxm, gpus: 8, nics: {link: ib-ndr, count: 8}}
      - {name: "a100-[1-2]", gpu: a100-sxm-80, gpus: 8, nics: {link: ib-hdr, count: 8}}
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("fleet") / "leftovers.yaml"
    path.write_text(LEFTOVERS)
    return str(path)


def inputs_for(fleet: str, model: str = "llama-3.1-405b", **columns: object) -> SolveInputs:
    options = ColumnOptions(**columns)  # type: ignore[arg-type]
    return load_inputs(
        Question(model, fleet, "fixed:1024/200", "ttft=5s@p90,tpot=150ms@p90", rate_req_per_s=1.0, columns=options)
    )


@pytest.fixture(scope="module")
def study(fleet: str) -> Study:
    return prepare(inputs_for(fleet))


def mixed(study: Study) -> Column:
    """The pipeline of one A100 and one H100 node."""
    return next(c for c in study.columns.columns if [s.gpu for s in c.stages] == ["a100-sxm-80", "h100-sxm"])


def tried(inputs: SolveInputs) -> list[str]:
    hosts, mixes = host_kinds(inputs.fleet), rack_mixes(inputs.fleet)
    options = inputs.question.columns
    return [
        each.label for each in pipelines(inputs.model, inputs.engine, hosts, mixes, options, "", inputs.max_model_len)
    ]


def test_layers_are_split_so_that_no_other_cut_is_faster_by_a_layer(study: Study) -> None:
    """405B over an A100 and an H100 node: moving the cut by some layers either way makes a decode step no faster."""
    column = mixed(study)
    assert sum(stage.layers for stage in column.stages) == study.inputs.model.num_layers
    few, many = column.stages
    assert few.layers < many.layers  # the slower type holds fewer
    times = [decode_step_s(stage, 32.0, 1100.0) for stage in column.step.stages]
    per_layer = [time / stage.layers for time, stage in zip(times, column.stages, strict=True)]
    work = [max(per_layer[0] * (few.layers + k), per_layer[1] * (many.layers - k)) for k in (-12, 0, 12)]
    assert work[1] <= min(work[0], work[2])


def test_the_fastest_cut_has_stages_that_take_alike(study: Study) -> None:
    """Prompt and answer of a mean request take both stages the same seconds, but for one layer that does not divide."""
    inputs, mix = study.inputs, study.mix
    library = StepLibrary(inputs.model, inputs.engine, inputs.profiles)
    shapes = pipelines(
        inputs.model, inputs.engine, host_kinds(inputs.fleet), rack_mixes(inputs.fleet), ColumnOptions(), "", 4096
    )
    pipeline = next(each for each in shapes if each.label == "a100-sxm-80+h100-sxm tp8 pp2")
    fraction = inputs.engine.memory_fraction
    cuts = layer_splits(pipeline, "colocated", inputs.model, inputs.engine, mix, library, (256, 512), fraction)
    balance = []
    for cut in cuts:
        each = []
        for stage in pipeline_step(cut, library, inputs.model, 512).stages:
            prompt_s = float(mix_prompts(stage, 2048, mix).service().occupancy_s.mean())
            each.append(
                prompt_s + float(mix.output_tokens.mean()) * decode_step_s(stage, 32.0, mix.context_tokens) / 32
            )
        layer_s = max(seconds / layers for seconds, layers in zip(each, cut.layers, strict=True))
        balance.append(abs(each[0] - each[1]) / layer_s)
    assert min(balance) <= 2.0  # the time of each layer, and of the embedding and the LM head beside them
    assert balance.index(min(balance)) == 1  # the second of the three is the fastest


def test_every_stage_holds_its_layers_and_the_smallest_room_sets_the_kv_capacity(study: Study) -> None:
    """Layers, embedding and LM head by stage add up to the model, and KV tokens are those of the tightest stage."""
    column, inputs = mixed(study), study.inputs
    shapes = pipelines(
        inputs.model, inputs.engine, host_kinds(inputs.fleet), rack_mixes(inputs.fleet), ColumnOptions(), "", 4096
    )
    pipeline = next(each for each in shapes if each.label.startswith("a100-sxm-80+h100-sxm tp8"))
    stages = pipeline_memory(
        pipeline.with_layers(tuple(stage.layers for stage in column.stages)),
        inputs.model,
        inputs.engine,
        max_num_seqs=column.max_num_seqs,
        chunk=column.max_num_batched_tokens,
        fraction=column.memory_fraction,
        max_len=column.max_model_len,
    )
    assert 8 * sum(stage.weights_bytes for stage in stages) == pytest.approx(
        2.0 * inputs.model.total_parameters, rel=0.01
    )
    assert column.kv_capacity_tokens == min(stage.kv_capacity_tokens for stage in stages)
    assert all(stage.fits for stage in stages)


def test_pipelines_are_tried_only_where_one_type_cannot_hold_the_model(fleet: str) -> None:
    """405B needs two nodes; 8B fits on a GPU of each type, so that there is nothing to try; nor if told so."""
    assert tried(inputs_for(fleet)) == ["a100-sxm-80+h100-sxm tp8 pp2", "2xa100-sxm-80+h100-sxm tp8 pp3"]
    assert tried(inputs_for(fleet, "llama-3.1-8b")) == []
    assert tried(inputs_for(fleet, mix_pipelines=False)) == []


@pytest.mark.parametrize("name", ["four-racks", "h100-a100", "a100-l40s"])
def test_fleets_with_one_type_in_every_rack_have_none(name: str) -> None:
    """Stages stay inside a rack."""
    assert rack_mixes(load_fleet(name)).racks == ()


def test_leftovers_count_by_what_is_free(tmp_path: Path) -> None:
    """A 70B model fits on any of these nodes, unless seven of eight GPUs are taken: then one of each type may."""
    fleet = tmp_path / "busy.yaml"
    fleet.write_text(LEFTOVERS)
    assert tried(inputs_for(str(fleet), "llama-3.1-70b")) == []
    taken = "gpus_in_use: [0, 1, 2, 3, 4, 5, 6], nics"
    fleet.write_text(LEFTOVERS.replace("nics", taken))
    assert tried(inputs_for(str(fleet), "llama-3.1-70b")) == ["a100-sxm-80+h100-sxm tp1 pp2"]


def test_vllm_takes_them_colocated_only_and_an_engine_that_cuts_alike_not_at_all(study: Study, fleet: str) -> None:
    """vLLM's connectors know no unequal stages; TensorRT-LLM has no option for them: counted among engine rules."""
    assert {column.role for column in study.columns.columns if column.stages} == {"colocated"}
    inputs = inputs_for(fleet, engine="dynamo-trtllm")
    hosts, mixes = host_kinds(inputs.fleet), rack_mixes(inputs.fleet)
    for pipeline in pipelines(inputs.model, inputs.engine, hosts, mixes, ColumnOptions(), "", 4096):
        problem = pipeline_problem(pipeline, "colocated", inputs.model, inputs.engine, "nixl")
        assert "cuts layers alike" in problem


def test_a_pipeline_that_serves_no_more_than_its_types_apart_is_dropped() -> None:
    """One H100 and one A100 instance apart serve 10 + 5 req/s: a pipeline of the two has to beat that by 3 %."""
    apart = [a_column("colocated", "h100-sxm", 4, [0.1]), a_column("colocated", "a100-sxm-80", 4, [0.2])]
    pipeline = a_mixed_column("colocated", ("h100-sxm", "a100-sxm-80"), 4, [1 / 15.2])
    assert not serves_more(pipeline, apart)
    assert serves_more(replace(pipeline, work_s_per_request=np.array([1 / 15.6])), apart)
    assert serves_more(pipeline, apart[:1])


def test_columns_of_mixed_pipelines_come_back_from_disk(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stages of the column and of its step model, tables included."""
    monkeypatch.setenv("SPLITPLAN_CACHE", str(tmp_path))
    stored = ColumnSet([mixed(study)])
    cached_columns("key", lambda: stored)
    again = cached_columns("key", lambda: pytest.fail("computed again")).columns[0]
    assert again.stages == mixed(study).stages
    for one, other in zip(again.step.stages, mixed(study).step.stages, strict=True):
        np.testing.assert_array_equal(one.token_s, other.token_s)
    assert decode_step_s(again.step, 16.0, 900.0) == decode_step_s(mixed(study).step, 16.0, 900.0)


def test_sglang_may_prefill_on_a_mixed_pipeline_where_decode_is_one_stage(tmp_path: Path) -> None:
    """405B in fp8 fits on an H100 node, not on an L40S node: pipelines over both prefill for decode on H100 alone."""
    path = tmp_path / "fleet.yaml"
    path.write_text(LEFTOVERS.replace("a100-sxm-80", "l40s").replace("a100-", "l40s-"))
    columns = prepare(inputs_for(str(path), engine="sglang", weight_dtype="fp8")).columns.columns
    kinds = {(column.role, column.gpu) for column in columns if column.stages}
    assert ("prefill", "l40s+h100-sxm") in kinds
    assert not [column for column in columns if column.stages and column.role == "decode"]
