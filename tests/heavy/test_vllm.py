"""Real vLLM on CPUs: prefill and decode over NIXL behind vllm-router, started, proven, loaded and stopped by us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.launcher import lifecycle, probe
from splitplan.launcher.bench import bench
from splitplan.launcher.render import LaunchOptions
from splitplan.launcher.state import load_state, require_state, state_path
from tests.conftest import Ran
from tests.heavy.conftest import START_TIMEOUT_S
from tests.heavy.plans import tiny_plan

OPTIONS = LaunchOptions(target="local", engine="vllm", device="cpu", served_name="tiny", ucx_net_devices="lo")
pytestmark = pytest.mark.usefixtures("vllm_on_cpu")


def test_prefill_and_decode_serve_what_one_instance_answers(
    tiny_model: Path, plan_file: Path, planner: Callable[..., Ran]
) -> None:
    """Every answer across equals the lone instance's; the engine counted the KV that moved; the load test is served."""
    plan_file.write_text(tiny_plan(tiny_model).model_dump_json())
    ran = planner(
        *("launch", str(plan_file), "--target", "local", "--engine", "vllm", "--device", "cpu"),
        *("--served-name", "tiny", "--ucx-net-devices", "lo", "--accept-changed", "all"),
        *("--timeout", str(START_TIMEOUT_S)),
    )
    print(ran.out, ran.err)
    assert ran.code == 0, ran.err
    assert "8 of 8 answers across prefill and decode agree; 8 KV transfers" in ran.out
    state = require_state(plan_file)
    (prefill,), (decode,) = state.of_role("prefill"), state.of_role("decode")
    (prompt,) = probe.make_prompts(1, seed=1)
    assert probe._across(prefill, decode, "tiny", prompt) == probe._ask(decode.url, "tiny", prompt).text
    status = planner("status", str(plan_file))
    print(status.out)
    assert status.code == 0
    report = bench(str(plan_file), workload="fixed:64/16", rate_req_per_s=1.0, duration_s=15.0)
    assert report.num_failed == 0
    assert report.mean_output_tokens == 16
    print(planner("bench", str(plan_file), "--workload", "fixed:64/16", "--rate", "1", "--duration", "15").out)
    print(planner("destroy", str(plan_file)).out)
    assert load_state(state_path(plan_file)) is None


def test_unequal_block_sizes_serve_wrong_tokens_and_the_probe_says_so(tiny_model: Path, plan_file: Path) -> None:
    """Both sides are healthy and answer 200: only the comparison tells. Preflight refuses it; here it is passed by."""
    plan = tiny_plan(tiny_model, decode_block_tokens=128)
    plan_file.write_text(plan.model_dump_json())
    with pytest.raises(LaunchError, match="block"):
        lifecycle.launch(plan, plan_file, OPTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle.preflight, "check", lambda *_: None)
        with pytest.raises(LaunchError) as caught:
            lifecycle.launch(plan, plan_file, OPTIONS, keep=True, timeout_s=START_TIMEOUT_S)
    messages = [str(problem.message) for problem in caught.value.problems]
    print(*messages, sep="\n")
    assert any("answers differ from what prefill-0 alone answers: KV arrives wrong" in text for text in messages)
    state = require_state(plan_file)
    (prefill,), (decode,) = state.of_role("prefill"), state.of_role("decode")
    prompts = probe.make_prompts(8, seed=1)
    across = [probe._across(prefill, decode, "tiny", prompt) for prompt in prompts]
    alone = [probe._ask(decode.url, "tiny", prompt).text for prompt in prompts]
    wrong = sum(first != second for first, second in zip(across, alone, strict=True))
    print(f"{wrong} of 8 answers of decode-0 with KV from prefill-0 differ from its own, all with HTTP 200")
    assert wrong  # with equal blocks none differs: see above
    lifecycle.destroy(plan_file)
