"""What a launch should say and must not stop for.

Made-up node names, a changed workload, weights fetched by every pod, and transfers that nobody here has seen work.
"""

from __future__ import annotations

from pathlib import Path

from splitplan.catalogs.connector_rules import connector_name
from splitplan.catalogs.errors import SplitplanError, shorten
from splitplan.launcher.inputs import resolved
from splitplan.launcher.render import IN_PODS, LaunchOptions
from splitplan.planner.plan import Plan

ANY_NODE = frozenset(("local", "ray", "llm-d"))
"""Targets whose files name no node of the plan, or that run it all here."""


def advice(plan: Plan, plan_path: str | Path, options: LaunchOptions) -> list[str]:
    """Sentences for people, in no case errors; [] when there is nothing to say."""
    found = [_made_up_nodes(plan, plan_path, options), _changed_workload(plan, plan_path)]
    found += [_weights_for_every_pod(plan, options), _pushed_from_stages(plan, options)]
    return [sentence for sentence in found if sentence]


def _made_up_nodes(plan: Plan, plan_path: str | Path, options: LaunchOptions) -> str:
    """The quick form of a fleet and the fleets that ship with the project name nodes that nobody has."""
    if options.target in ANY_NODE or options.engine.partition("@")[0] in ("mock", "dynamo-mocker"):
        return ""
    path = Path(resolved(plan.inputs.fleet, Path(plan_path).parent))
    if not path.is_file():
        return (
            f"fleet {shorten(plan.inputs.fleet)} is an example of ours: its node names are not those of your machines; "
            "solve on a fleet read from your cluster (planner fleet import) before you start this"
        )
    try:
        is_quick = _has_counts(path)
    except SplitplanError:
        return ""  # a fleet that changed is the business of the input check
    if not is_quick:
        return ""
    nodes = sorted({slot.node for pool in plan.pools for instance in pool.instances for slot in instance.gpus})
    return (
        f"node names ({shorten(', '.join(nodes), 60)}) are made up, since {shorten(path.name)} counts GPUs without "
        "naming nodes; name them there and solve again before you start this"
    )


def _has_counts(path: Path) -> bool:
    """Whether a fleet file is in the quick form."""
    from splitplan.catalogs.documents import read_document, validate
    from splitplan.planner.spec.fleet_schema import FleetFile

    return bool(validate(read_document(path), FleetFile).gpus)


def _changed_workload(plan: Plan, plan_path: str | Path) -> str:
    """The workload decides nothing that is launched, but the verification was of another one."""
    from splitplan.planner.spec.workload import load_workload

    name = resolved(plan.inputs.workload, Path(plan_path).parent)
    try:
        current = load_workload(name, rate_req_per_s=plan.inputs.rate_req_per_s).content_hash
    except SplitplanError:
        return f"workload {shorten(plan.inputs.workload)} cannot be read any more: planner bench needs --workload"
    if current == plan.inputs.workload_hash:
        return ""
    name = shorten(plan.inputs.workload)
    return f"workload {name} is not the one the plan was verified for: planner simulate {plan_path}"


def _weights_for_every_pod(plan: Plan, options: LaunchOptions) -> str:
    if options.target not in IN_PODS - {"ray"} or options.kubernetes.model_claim or options.model_path.startswith("/"):
        return ""
    pods = sum(len(pool.instances) for pool in plan.pools)
    return (
        f"each of {pods} pods downloads the weights by itself; "
        "--model-claim CLAIM --model-path /models/… has them read one volume"
    )


def _pushed_from_stages(plan: Plan, options: LaunchOptions) -> str:
    stages = max((pool.pipeline_parallel for pool in plan.pools if pool.role == "prefill"), default=1)
    is_mock = options.engine.partition("@")[0] in ("mock", "dynamo-mocker")
    if is_mock or stages == 1 or connector_name(plan.connector) != "nixl-push":
        return ""
    return (
        f"prefill in {stages} stages pushes its KV (NixlPushConnector): vLLM's pull request 45880 shows it for two "
        "stages, this project has not seen it work; the probe after the start tells"
    )
