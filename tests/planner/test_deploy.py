"""An assigned plan as the simulator sees it: what a transfer costs on each of its routes, and windows of the model."""

from __future__ import annotations

import math

import pytest

from splitplan.catalogs.links import find_link
from splitplan.planner.inputs import SolveInputs, load_inputs
from splitplan.planner.judge.deploy import ROUTER_HOP_S, deployment_of, timed_routes
from splitplan.planner.latency.transfer import kv_transfer
from splitplan.planner.plan import GpuSlot, Instance, Pool, Route
from splitplan.planner.question import Question
from splitplan.planner.simulate import Deployment, simulate
from tests.planner.simulate.cases import constant_step, fixed_requests

STEP = constant_step(0.01, max_num_seqs=64, max_tokens=4096)
FIELDS = {
    "weight_dtype": "bf16",
    "kv_dtype": "bf16",
    "block_tokens": 16,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 4096,
    "max_model_len": 8192,
    "memory_fraction": 0.9,
    "kv_capacity_tokens": 100_000,
    "usd_per_gpu_hour": 1.0,
}


def inputs_of(model: str) -> SolveInputs:
    return load_inputs(Question(model, "four-racks", "azure-conv", "ttft=1s@p90", 5.0))


def pool(inputs: SolveInputs, role: str, name: str, tp: int, places: list[tuple[str, int]]) -> Pool:
    """Instances of `tp` GPUs, each on a node from a GPU on."""
    nodes = {node.name: node for node in inputs.fleet.nodes}
    own = tuple(
        Instance(
            name=f"{name}-{k}",
            rack=nodes[node].rack,
            gpus=tuple(GpuSlot(node=node, index=first + g) for g in range(tp)),
            share=1 / len(places),
        )
        for k, (node, first) in enumerate(places)
    )
    gpu = nodes[places[0][0]].gpu
    return Pool(name=name, role=role, gpu=gpu, tensor_parallel=tp, instances=own, **FIELDS)  # type: ignore[arg-type]


def near_and_far(model: str) -> tuple[SolveInputs, list[Pool], list[Route], Deployment]:
    """One prefill instance, a decode instance of TP2 in its node and one of TP4 in another rack."""
    inputs = inputs_of(model)
    here, there = (next(node.name for node in inputs.fleet.nodes if node.gpu == gpu) for gpu in ("h100-sxm", "l40s"))
    pools = [
        pool(inputs, "prefill", "prefill", 1, [(here, 0)]),
        pool(inputs, "decode", "near", 2, [(here, 2)]),
        pool(inputs, "decode", "far", 4, [(there, 0)]),
    ]
    routes = [
        Route(prefill="prefill-0", decode="near-0", share=0.5, path="same-node"),
        Route(prefill="prefill-0", decode="far-0", share=0.5, path="cross-rack"),
    ]
    return inputs, pools, routes, deployment_of(pools, routes, dict.fromkeys(("prefill", "near", "far"), STEP), inputs)


def test_a_route_costs_what_its_own_links_and_ranks_cost() -> None:
    """In the node over the GPUs' own link to two ranks; between racks by the slower of both NICs to four."""
    inputs, pools, routes, deployment = near_and_far("llama-3.1-8b")
    nodes = {node.name: node for node in inputs.fleet.nodes}
    here, there = (nodes[pools[k].instances[0].gpus[0].node] for k in (0, 2))
    nics = [find_link(node.nic_link) for node in (here, there) if node.nic_link]
    expected = {
        1: (find_link(here.gpu_link).latency_s, find_link(here.gpu_link).per_descriptor_s, 2),
        2: (max(nic.latency_s for nic in nics), max(nic.per_descriptor_s for nic in nics), 4),
    }
    for decode, (latency_s, descriptor_s, tp) in expected.items():
        piece = kv_transfer(inputs.model, "bf16", 16, prefill_tp=1, decode_tp=tp, block_tokens=16)
        cost = deployment.path_cost(0, decode)
        assert cost.latency_s == pytest.approx(ROUTER_HOP_S + latency_s)
        assert cost.descriptor_s == descriptor_s
        assert cost.descriptors_per_block == pytest.approx(piece.num_descriptors / piece.parallel_ranks)
    timed = timed_routes(pools, routes, deployment)
    assert timed[0].transfer_base_s < timed[1].transfer_base_s
    assert timed[0].transfer_s_per_token < timed[1].transfer_s_per_token


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-12b"])
@pytest.mark.parametrize("tokens", [500, 3000])
def test_a_lone_transfer_takes_what_the_transfer_model_says(model: str, tokens: int) -> None:
    """Simulated alone on each route: hop, latency, bytes of what the layers still see, descriptors."""
    inputs, _, _, deployment = near_and_far(model)
    run = simulate(deployment, fixed_requests(2, tokens, 2, [0.0, 50.0]), routing="round_robin").runs[0]
    assert run.decoder.tolist() == [1, 2]
    group_bytes = inputs.model.kv_bytes(tokens, "bf16") - inputs.model.state_bytes
    for number, (decode, tp) in enumerate(((1, 2), (2, 4))):
        cost = deployment.path_cost(0, decode)
        piece = kv_transfer(inputs.model, "bf16", tokens, prefill_tp=1, decode_tp=tp, block_tokens=16)
        prefill, receiver = deployment.instances[0], deployment.instances[decode]
        used = [prefill.local_link] if decode == 1 else [*prefill.egress, *receiver.ingress]
        spine = [deployment.spine] if decode == 2 and deployment.spine is not None else []
        rate = min((deployment.links[k].bytes_per_s for k in [*used, *spine] if k is not None), default=math.inf)
        expected_s = cost.latency_s + group_bytes / rate + cost.descriptor_s * piece.num_descriptors / tp
        assert run.transfer_s[number] == pytest.approx(expected_s, rel=1e-6)


def test_windows_of_the_model_reach_the_simulator() -> None:
    """gemma-3-12b: 40 of 48 layers see 1,024 tokens, and take the room of as many."""
    deployment = near_and_far("gemma-3-12b")[3]
    assert deployment.window_tokens == 1024
    assert deployment.windowed_kv_bytes_per_token == pytest.approx(deployment.kv_bytes_per_token * 40 / 48)
    assert {instance.kv_parts for instance in deployment.instances} == {(1, 5)}


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma-3-12b"])
def test_timed_routes_are_what_the_simulator_takes(model: str) -> None:
    """For a prompt of whole blocks longer than any window: base + tokens times seconds per token."""
    _, pools, routes, deployment = near_and_far(model)
    run = simulate(deployment, fixed_requests(2, 3200, 2, [0.0, 50.0]), routing="round_robin").runs[0]
    for route, taken_s in zip(timed_routes(pools, routes, deployment), run.transfer_s, strict=True):
        assert route.transfer_base_s + 3200 * route.transfer_s_per_token == pytest.approx(taken_s, rel=1e-4)


@pytest.mark.parametrize(("model", "copies"), [("llama-3.1-8b", 1.0), ("deepseek-v2-lite", 4.0), ("qwen2.5-7b", 1.0)])
def test_ranks_that_hold_the_same_fetch_their_own_copies(model: str, copies: float) -> None:
    """MLA's latent goes to each of four decode ranks; four KV heads go to four ranks once."""
    _, pools, routes, deployment = near_and_far(model)
    assert deployment.path_cost(0, 2).copies == copies
    run = simulate(deployment, fixed_requests(2, 3200, 2, [0.0, 50.0]), routing="round_robin").runs[0]
    far = timed_routes(pools, routes, deployment)[1]
    assert far.transfer_base_s + 3200 * far.transfer_s_per_token == pytest.approx(run.transfer_s[1], rel=1e-4)
    used = (*deployment.instances[0].egress, *deployment.instances[2].ingress)
    link = min(deployment.links[k].bytes_per_s for k in used)
    assert run.transfer_s[1] > copies * 3200 * deployment.kv_bytes_per_token / link
