"""Every target's files for one small plan, as they were last looked at; and which target can express which engine.

python -m tests.launcher.test_golden     writes the files anew, for `git diff` to show what changed
"""

from __future__ import annotations

from pathlib import Path

import pytest

from splitplan.catalogs.errors import LaunchError
from splitplan.catalogs.gpus import find_gpu
from splitplan.launcher.files import as_stream
from splitplan.launcher.render import ENGINES, TARGETS, LaunchOptions, make_cluster, make_engine, render
from splitplan.launcher.targets.ray import accelerator
from tests.launcher.plans import mixed_plan, small_plan

FOLDER = Path(__file__).with_name("golden")
PARTS = {
    "shell": ("hosts/a100-sxm-80-0.sh",),
    "kubernetes": ("decode.yaml",),
    "lws": ("golden-decode-a100-sxm-80-bcb1e1.yaml",),
    "disaggregatedset": ("disaggregatedset.yaml",),
}
"""Of targets with many files, those to look at."""

EXPRESSED = {
    **dict.fromkeys(("shell", "ssh", "slurm", "ray-groups"), tuple(ENGINES)),
    **dict.fromkeys(("kubernetes", "lws", "grove"), ("vllm", "sglang")),
    **dict.fromkeys(("disaggregatedset", "kserve", "llm-d", "ray"), ("vllm",)),
    "dynamo": ("dynamo-vllm", "dynamo-sglang", "dynamo-trtllm"),
}
"""By target: the engines whose mixed plans it can express."""


def options(target: str, engine: str = "") -> LaunchOptions:
    name = "dynamo-vllm" if target == "dynamo" and not engine else engine
    return LaunchOptions(target=target, engine=name, name="golden", model_path="example/model", checkpoint_dtype="bf16")


def golden(target: str) -> str:
    """The target's files as one text. Only the plan's hash is left out, which any new field of a plan changes."""
    chosen = options(target)
    plan = small_plan()
    files = render(plan, chosen)
    kept = {name: files[name] for name in PARTS.get(target, tuple(files))}
    digest = make_cluster(plan, chosen, make_engine(plan, chosen)).plan_hash
    text = as_stream(kept).replace(digest, "PLAN-HASH").replace(digest[:12], "PLAN-HASH")
    return text.partition("# Below: the same for every host.")[0] if target == "shell" else text


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"ssh"}))
def test_the_files_are_those_last_looked_at(target: str) -> None:
    """A change here is to be looked at; `python -m tests.launcher.test_golden` takes it over."""
    assert golden(target) == (FOLDER / f"{target}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("target", TARGETS)
def test_a_mixed_plan_renders_where_it_can_be_expressed_and_says_why_elsewhere(target: str, engine: str) -> None:
    """H100 prefill and A100 decode on every pair of target and engine: both GPU types in the files, or one reason."""
    chosen = options(target, engine)
    if engine in EXPRESSED[target]:
        text = as_stream(render(mixed_plan(), chosen))
        for gpu in ("h100-sxm", "a100-sxm-80"):
            names = (gpu, accelerator(gpu), f"gpu:{gpu.partition('-')[0]}", *find_gpu(gpu).product_labels)
            assert any(name in text for name in names)
        return
    with pytest.raises(LaunchError) as caught:
        render(mixed_plan(), chosen)
    (problem,) = caught.value.problems
    assert engine in str(problem.message) or "Dynamo" in str(problem.message)
    assert problem.next_step


def test_every_target_has_its_row() -> None:
    assert set(EXPRESSED) == set(TARGETS)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in sorted(set(TARGETS) - {"ssh"}):
        (FOLDER / f"{each}.txt").write_text(golden(each), encoding="utf-8")
