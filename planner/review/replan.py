"""A new plan from what runs now: kept where that pays, and the moves in an order that does not drop the load."""

from __future__ import annotations

from dataclasses import dataclass, replace

from splitplan.catalogs.errors import NoPlanError, Problem, SplitplanError
from splitplan.planner.columns.column import Column
from splitplan.planner.emit import Variant, emit_plan
from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.judge.repair import Outcome, Workshop
from splitplan.planner.judge.verify import Effort, Judge, default_effort
from splitplan.planner.plan import Plan, Pool
from splitplan.planner.program.reduce import REACH_ORDER
from splitplan.planner.program.types import ProgramOptions, Running
from splitplan.planner.question import Question, question_of
from splitplan.planner.review.diff import shape_of, slots_of
from splitplan.planner.review.moves import Move, Unit, order_moves
from splitplan.planner.review.replay import plan_deployment
from splitplan.planner.spec.length_buckets import PromptRange
from splitplan.planner.study import Study, prepare

DEFAULT_MOVE_USD = 1.0
"""What starting or stopping one instance is taken to cost, when nobody says otherwise."""
DEFAULT_HOURS = 24.0
"""How long the new plan is expected to stand: moves are spread over it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What changes against the running plan; None keeps what it was made for."""

    rate_req_per_s: float | None = None
    slo: str | None = None
    fleet: str | None = None
    workload: str | None = None
    move_usd: float = DEFAULT_MOVE_USD
    hours: float = DEFAULT_HOURS


@dataclass(frozen=True, slots=True)
class Replan:
    """The new plan, the ordered moves, and what of the running plan is unknown to it."""

    plan: Plan
    moves: tuple[Move, ...]
    notes: tuple[str, ...]


def replan(running: Plan, wanted: Wanted, *, effort: Effort | None = None) -> Replan:
    """Plan again from what runs. Raises InputError for bad input and NoPlanError when nothing passes."""
    question = new_question(running, wanted)
    study = prepare(load_inputs(question))
    price = wanted.move_usd / wanted.hours
    problem = replace(
        study.problem,
        running=tuple(_running(running, study)),
        options=replace(study.problem.options, move_usd_per_hour=price),
    )
    study = replace(study, problem=problem)
    judge = Judge(study.inputs, effort or default_effort())
    kept = _still_good(running, study, judge)
    try:
        shop, options, outcome = _first_that_passes(running, study, judge)
    except NoPlanError:
        if kept is None:
            raise
        return kept
    plan = emit_plan(study, shop, outcome, [Variant("", options, outcome)])
    assert outcome.found is not None, "an outcome that passed has a plan"
    after = [Unit(seat.column.name, seat.slots) for seat in outcome.found.assignment.seats]
    found = _with_moves(running, plan, after, study, outcome.corrections)
    saved = running.usd_per_hour - plan.usd_per_hour
    if kept is not None and study.inputs.question.program.objective == "cost" and saved <= price * len(found.moves):
        return kept
    return found


def _still_good(running: Plan, study: Study, judge: Judge) -> Replan | None:
    """The running plan as the answer, if all of it still stands and passes what is asked now."""
    if len(study.problem.running) < sum(len(pool.instances) for pool in running.pools):
        return None
    verdict, _ = judge.verify(plan_deployment(running, study.inputs))
    if not verdict.passed:
        return None
    plan = running.model_copy(update={"inputs": study.inputs.recorded(), "verification": verdict})
    return Replan(plan, (), ("what runs now still meets the targets, and no change pays for its moves",))


def _first_that_passes(running: Plan, study: Study, judge: Judge) -> tuple[Workshop, ProgramOptions, Outcome]:
    """What was learned with the running plan first, then afresh; everything together, then one way of serving alone.

    Corrections learned on the way can rule out what a fresh start finds, as in `planner solve`, where variants compete.
    """
    base = study.problem.options
    ways = [base]
    if base.class_groups:
        ways.append(replace(base, whole_groups=True))
    if base.mode == "auto":
        ways += [replace(base, mode="disagg"), replace(base, mode="colocated")]
    reasons: list[Problem] = []
    for learned in (dict(running.corrections), {}):
        for options in ways:
            shop = Workshop(study.inputs, study.problem, judge, start=Corrections(dict(learned)))
            outcome = shop.best(options)
            if outcome.passed:
                return shop, options, outcome
            reasons += [Problem(reason) for reason in outcome.reasons]
    unique = list({str(reason): reason for reason in reasons}.values())
    raise NoPlanError([Problem("no plan from what runs now meets the targets"), *unique])


def new_question(running: Plan, wanted: Wanted) -> Question:
    """The running plan's question with what is wanted instead."""
    old = question_of(running)
    return replace(
        old,
        rate_req_per_s=old.rate_req_per_s if wanted.rate_req_per_s is None else wanted.rate_req_per_s,
        slo=wanted.slo or old.slo,
        fleet=wanted.fleet or old.fleet,
        workload=wanted.workload or old.workload,
    )


def _running(plan: Plan, study: Study) -> list[Running]:
    """Running instances whose engine command is still among the candidates; the others have to be replaced."""
    nodes = {node.name for node in study.inputs.fleet.nodes}
    found = []
    for pool in plan.pools:
        column = column_of(pool, plan, study.problem.columns)
        for instance in pool.instances:
            slots = slots_of(instance)
            if column is not None and all(node in nodes for node, _ in slots):
                found.append(Running(column.name, slots[0][0], 1, slots))
    return found


def column_of(pool: Pool, plan: Plan, columns: tuple[Column, ...]) -> Column | None:
    """The column that runs the same engine command as a pool, and whose KV may travel as far as the pool's does.

    For the same prompts if there is one; else for some of them: which prompts an instance gets is the router's affair.
    """
    shape, farthest = shape_of(pool), _farthest(pool, plan)
    alike = [column for column in columns if shape_of_column(column) == shape]
    reaching = [column for column in alike if REACH_ORDER[column.transfer_reach] >= farthest]
    return min(
        reaching, key=lambda column: (_estranged(pool, column), REACH_ORDER[column.transfer_reach]), default=None
    )


def _estranged(pool: Pool, column: Column) -> int:
    """0 for a column for the same prompts as the pool, 1 for one that shares some with it, 2 for none of them."""
    mine, other = pool.prompts, PromptRange(column.above_tokens, column.up_to_tokens)
    return 0 if mine == other else 1 if mine.meets(other) else 2


def _farthest(pool: Pool, plan: Plan) -> int:
    """How far the pool's KV travels: 0 in the node, 1 in the rack, 2 beyond."""
    names = {instance.name for instance in pool.instances}
    order = {"same-node": 0, "same-rack": 1, "cross-rack": 2}
    return max((order[r.path] for r in plan.routes if r.prefill in names or r.decode in names), default=0)


def shape_of_column(column: Column) -> tuple[object, ...]:
    """What makes two instances the same engine command."""
    return (
        column.role,
        column.gpu,
        column.tensor_parallel,
        column.pipeline_parallel,
        column.expert_parallel,
        column.weight_dtype,
        column.kv_dtype,
        column.block_tokens,
        column.max_num_seqs,
        column.max_num_batched_tokens,
        tuple((stage.gpu, stage.layers) for stage in column.stages),
    )


def _with_moves(running: Plan, plan: Plan, after: list[Unit], study: Study, corrections: Corrections) -> Replan:
    """Order the moves by the columns of both plans; GPUs of nodes that are gone need no stop."""
    columns, old_columns = corrections.apply(study.problem.columns), _columns_then(running)
    nodes = {node.name for node in study.inputs.fleet.nodes}
    extra: dict[str, Column] = {}
    notes: list[str] = []
    before: list[Unit] = []
    for pool in running.pools:
        column = column_of(pool, running, columns)
        if column is None:
            column = _kept_for_counting(pool, running, old_columns, extra, notes)
        name = column.name if column is not None else pool.name
        slots = [slots_of(instance) for instance in pool.instances]
        before += [Unit(name, held) for held in slots if all(node in nodes for node, _ in held)]
    options = replace(study.problem.options, class_groups=False)  # on the way, pools of both plans stand side by side
    problem = replace(study.problem, columns=(*columns, *extra.values()), running=(), options=options)
    return Replan(plan, order_moves(problem, before, after), tuple(dict.fromkeys(notes)))


def _columns_then(running: Plan) -> tuple[Column, ...]:
    """The candidates of the running plan's own question, as far as it can still be asked."""
    try:
        return prepare(load_inputs(question_of(running))).problem.columns
    except SplitplanError:  # its files are gone: then the old instances are not counted
        return ()


def _kept_for_counting(
    pool: Pool, running: Plan, old_columns: tuple[Column, ...], extra: dict[str, Column], notes: list[str]
) -> Column | None:
    """What a running pool that is no candidate any more serves until it stops."""
    column = column_of(pool, running, old_columns)
    if column is None:
        notes.append(f"{pool.name}: what it serves until it stops is not known and not counted")
        return None
    name = f"{column.name} (as it runs)"
    return extra.setdefault(name, replace(column, name=name))


def move_lines(result: Replan) -> list[str]:
    """The moves as numbered lines; one that drops the load says so."""
    lines = []
    for number, move in enumerate(result.moves, 1):
        nodes = dict.fromkeys(node for node, _ in move.unit.slots)
        indices = {node: [index for name, index in move.unit.slots if name == node] for node in nodes}
        gpus = ", ".join(f"{node} GPU {','.join(map(str, indices[node]))}" for node in nodes)
        warning = "" if move.safe else f"   only {100 * move.served:.0f} % of the load is served"
        lines.append(f"{number:3}. {move.action:5} {move.unit.column} on {gpus}{warning}")
    return lines
