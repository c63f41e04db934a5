"""Several models in one fleet, from the file to plans that stand on their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from splitplan.catalogs.errors import DocumentError, InputError, NoPlanError
from splitplan.planner.judge.verify import Effort
from splitplan.planner.plan import Plan, load_plan, save_plan
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import ProgramOptions, ProgramSolution
from splitplan.planner.question import question_of
from splitplan.planner.review.replay import replay
from splitplan.planner.services.problem import member_of
from splitplan.planner.services.read import Shared, read_services
from splitplan.planner.services.repair import JointWorkshop
from splitplan.planner.services.report import as_json, savings_text
from splitplan.planner.services.solve import Services, solve_services
from splitplan.planner.spec.fleet import load_fleet
from splitplan.planner.study import prepare, rebuild

EFFORT = Effort(screen_requests=300, verify_requests=500, num_seeds=1, max_attempts=6, max_probes=1, form="python")
FILE = """\
kind: Services
version: 1
services:
  - {name: chat, model: llama-3.1-8b, workload: "fixed:1024/128", rate_req_per_s: 20, slo: "ttft=1s@p90,tpot=60ms@p90"}
  - {name: code, model: qwen3-14b, workload: "fixed:2048/64", rate_req_per_s: 8, slo: "ttft=2s@p90,tpot=80ms@p90"}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("services")


def written(folder: Path, text: str, name: str = "services.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def answer(folder: Path) -> Services:
    return solve_services(written(folder, FILE), Shared("a100-l40s"), effort=EFFORT)


def slots(plan: Plan) -> list[tuple[str, int]]:
    return [(slot.node, slot.index) for pool in plan.pools for item in pool.instances for slot in item.gpus]


def test_every_service_passed_and_no_gpu_is_given_twice(answer: Services) -> None:
    """Each plan has passed its own simulation; the GPUs of all plans are different GPUs of the fleet."""
    assert list(answer.plans) == ["chat", "code"]
    assert all(plan.verification is not None and plan.verification.passed for plan in answer.plans.values())
    used = Counter(slot for plan in answer.plans.values() for slot in slots(plan))
    assert max(used.values()) == 1
    nodes = {node.name: node for node in load_fleet("a100-l40s").nodes}
    assert all(index < nodes[name].num_gpus for name, index in used)
    assert answer.num_gpus == sum(used.values()) == answer.chosen.num_gpus
    assert answer.usd_per_hour == pytest.approx(sum(plan.usd_per_hour for plan in answer.plans.values()))


def test_no_other_split_that_passed_is_cheaper(answer: Services) -> None:
    """One after the other and by whole racks were carried out, verified, and are no cheaper than 1 % below."""
    labels = " ".join(split.label for split in answer.others)
    assert "one after the other" in labels
    assert "by whole racks" in labels
    for split in answer.others:
        if split.passed:
            assert split.usd_per_hour >= 0.99 * answer.usd_per_hour
    assert "against one after the other" in savings_text(answer)
    assert answer.proof.bound <= answer.proof.value + 1e-9


def test_a_plan_holds_what_the_others_have_as_not_to_be_had(answer: Services) -> None:
    """A service's own question, asked again, knows the others' GPUs, and its best answer is its part of the whole."""
    for name, plan in answer.plans.items():
        others = {slot for other, its in answer.plans.items() if other != name for slot in slots(its)}
        assert set(question_of(plan).held.gpus) == others
        study, problem = rebuild(plan)
        free = {(node.name, index) for node in study.inputs.fleet.nodes for index in node.free_gpus}
        assert free.isdisjoint(others)
        assert set(slots(plan)) <= free
        again = solve_program(problem)
        assert isinstance(again, ProgramSolution)
        assert again.usd_per_hour == pytest.approx(plan.usd_per_hour, rel=0.01)


def test_a_saved_plan_is_replayed_beside_the_others(answer: Services, tmp_path: Path) -> None:
    """Saved and read back, the plan simulates on links and GPUs that the others leave, and passes."""
    save_plan(answer.plans["code"], tmp_path / "code.yaml")
    plan = load_plan(tmp_path / "code.yaml")
    assert plan == answer.plans["code"]
    assert replay(plan, num_requests=500, num_seeds=1).passed


def test_the_same_file_gives_the_same_bytes(answer: Services, folder: Path, tmp_path: Path) -> None:
    again = solve_services(folder / "services.yaml", Shared("a100-l40s"), effort=EFFORT)
    for name in answer.plans:
        save_plan(answer.plans[name], tmp_path / "one.yaml")
        save_plan(again.plans[name], tmp_path / "two.yaml")
        assert (tmp_path / "one.yaml").read_bytes() == (tmp_path / "two.yaml").read_bytes()
    assert as_json(answer) == as_json(again)


def test_services_that_survive_are_judged_in_each_failure(folder: Path) -> None:
    """With any node gone, what is left of each service was put to its judge: every remainder is among the verdicts."""
    shared = Shared("a100-l40s", ProgramOptions(max_kinds=1, mode="colocated", survive="node"))
    members = [member_of(item.name, prepare(item.inputs)) for item in read_services(written(folder, FILE), shared)]
    shop = JointWorkshop(tuple(members), shared.program, EFFORT)
    outcome = shop.search("colocated only", solve_program)
    assert outcome.passed
    assert outcome.trial is not None
    for name, found in outcome.trial.candidates.items():
        lost = [state for state in found.solution.states if state.gone]
        assert lost
        counts = {sum(item.instances for item in state.placed) for state in lost}
        full = sum(item.instances for item in found.solution.placed)
        assert min(counts) < full
        judged = {key for key, (verdict, _) in shop.shops[name].verified.items() if verdict.passed}
        assert len(judged) > 1


def test_one_service_too_many_is_no_plan_with_a_reason(folder: Path) -> None:
    """A load that the fleet cannot take together is refused, with the share that fits."""
    path = written(folder, FILE.replace("rate_req_per_s: 20", "rate_req_per_s: 4000"), "much.yaml")
    with pytest.raises(NoPlanError, match=r"no split of fleet a100-l40s serves chat, code.*\n(.*\n)*.*% of the load"):
        solve_services(path, Shared("a100-l40s"), effort=replace(EFFORT, max_attempts=1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("llama-3.1-8b", "llama-3.1-9b"), r"bad.yaml:4 `services\[0\].model`: unknown model.*\n.*llama-3.1-8b"),
        (("ttft=1s", "ttft=1parsec"), r"bad.yaml:4 `services\[0\].slo`"),
        (("fixed:2048/64", "azure-chat"), r"bad.yaml:5 `services\[1\].workload`: unknown workload.*\n.*azure-"),
        (("rate_req_per_s: 8, ", ""), r"bad.yaml:5 `services\[1\].workload`: .*says how long requests are"),
        (
            ("rate_req_per_s: 8", "rate_req_per_sec: 8"),
            r"bad.yaml:5 `services\[1\].rate_req_per_sec`: unknown key\n.*rate_req_per_s",
        ),
        (("name: code", "name: Chat"), r"bad.yaml:5 `services\[1\].name`: service 'Chat' given twice"),
        (("name: code", "name: a/b"), r"bad.yaml:5 `services\[1\].name`"),
        (("kind: Services", "kind: Workload"), r"bad.yaml:1 `kind`"),
        (("qwen3-14b,", "qwen3-14b, engine: vlm,"), r"bad.yaml:5 `services\[1\].engine`: unknown engine"),
        (("qwen3-14b,", "qwen3-14b, connector: Pigeon,"), r"bad.yaml:5 `services\[1\]`: .*no KV connector"),
    ],
)
def test_a_bad_file_says_where_and_what(folder: Path, change: tuple[str, str], said: str) -> None:
    assert change[0] in FILE
    path = written(folder, FILE.replace(*change), "bad.yaml")
    with pytest.raises(DocumentError, match=said):
        read_services(path, Shared("a100-l40s"))


def test_problems_of_all_services_are_told_at_once(folder: Path) -> None:
    path = written(folder, FILE.replace("llama-3.1-8b", "lama").replace("qwen3-14b", "quen"), "both.yaml")
    with pytest.raises(DocumentError) as caught:
        read_services(path, Shared("a100-l40s"))
    assert len(caught.value.problems) == 2


def test_a_tampered_note_of_what_others_hold_is_refused(answer: Services) -> None:
    plan = answer.plans["chat"]
    options = {**plan.inputs.options, "held": '{"gpus": {"n": [-1]}}'}
    broken = plan.model_copy(update={"inputs": plan.inputs.model_copy(update={"options": options})})
    with pytest.raises(InputError, match="what other services hold cannot be read"):
        question_of(broken)


def test_options_that_are_each_service_s_own_are_refused(folder: Path, planner: Callable[..., object]) -> None:
    """The command names them; and without a services file it asks for the model."""
    ran = planner("solve", "--services", str(folder / "services.yaml"), "--fleet", "a100-l40s", "--rate", "3")
    assert (ran.code, "--rate with --services" in ran.err) == (2, True)  # type: ignore[attr-defined]
    ran = planner("solve", "--fleet", "a100-l40s", "--model", "llama-3.1-8b")
    assert (ran.code, "missing --workload, --slo" in ran.err) == (2, True)  # type: ignore[attr-defined]
