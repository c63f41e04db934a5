"""What `planner solve` can be asked for, how it ends early, and that a plan remembers its wishes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splitplan.catalogs.errors import OutOfTimeError, UsageError
from splitplan.planner.cli.progress import SolveProgress, progress_line
from splitplan.planner.cli.solve import _class_weights, _kinds_of_price
from splitplan.planner.inputs import load_inputs
from splitplan.planner.judge.verify import Effort, thinned
from splitplan.planner.patience import Progress, patience, seconds_left
from splitplan.planner.plan import Plan
from splitplan.planner.program.solve import solve_program
from splitplan.planner.program.types import ProgramOptions
from splitplan.planner.question import Question, question_of
from splitplan.planner.solve import answer, solve
from splitplan.planner.spec.workload import Requests
from splitplan.planner.study import prepare, rebuild
from tests.planner.program.fleets import four_racks, many_columns, same_kv
from tests.planner.program.test_solve import a_problem

QUICK = Effort(screen_requests=300, verify_requests=600, num_seeds=1, max_attempts=6, max_probes=1, form="python")
QUESTION = Question("llama-3.1-8b", "a100-l40s", "fixed:1024/128", "ttft=1s@p90,tpot=60ms@p90", 10.0)
TWO_CLASSES = """
kind: Workload
version: 1
name: two
rate_req_per_s: 2
classes:
  - name: chat
    share: 0.5
    lengths: {fixed: {input: 1024, output: 128}}
  - name: docs
    share: 0.5
    lengths: {fixed: {input: 4096, output: 128}}
"""


def test_several_kinds_of_price_are_read_in_order() -> None:
    """Each once, as they are written; another word is a usage error with the nearest one."""
    assert _kinds_of_price("spot, on_demand,spot") == ("spot", "on_demand")
    with pytest.raises(UsageError, match="did you mean on_demand"):
        _kinds_of_price("on-demand")


def test_class_weights_are_read() -> None:
    """CLASS=NUMBER, each class once."""
    assert _class_weights(["chat=3", "a=b=0.5"]) == (("chat", 3.0), ("a=b", 0.5))
    for text in ("chat", "chat=", "chat=-1", "=2", "chat=inf"):
        with pytest.raises(UsageError, match="cannot read the class weight"):
            _class_weights([text])
    with pytest.raises(UsageError, match="each class once"):
        _class_weights(["chat=1", "chat=2"])


def test_a_plan_remembers_its_wishes() -> None:
    """Required kinds, share per rack, whole classes and kinds of price come back out of the plan as they went in."""
    options = ProgramOptions(
        max_kinds=1,
        require=("colocated=l40s",),
        max_share_per_rack=1.0,
        whole_classes=True,
        price_kinds=("on_demand", "spot"),
    )
    plan = solve(replace(QUESTION, program=options), effort=QUICK)
    assert question_of(plan).program == options
    assert "l40s" in {pool.gpu for pool in plan.pools}
    assert rebuild(plan)[1].options == options


def test_class_weights_go_with_the_plan(tmp_path: Path) -> None:
    """Weighted goodput is solved, judged at the rates it serves, and rebuilt from the plan by the names of classes."""
    path = tmp_path / "two.yaml"
    path.write_text(TWO_CLASSES)
    goodput = ProgramOptions(max_kinds=1, objective="goodput", max_rate_scale=1.0)
    asked = replace(QUESTION, workload=str(path), rate_req_per_s=2.0, program=goodput, class_weights=(("chat", 3.0),))
    plan: Plan = solve(asked, effort=QUICK)
    kept = question_of(plan)
    assert (kept.class_weights, kept.program) == (asked.class_weights, goodput)
    assert rebuild(plan)[1].options.class_weights == (3.0, 1.0)
    with pytest.raises(UsageError, match="no class 'chatt'"):
        prepare(load_inputs(replace(asked, class_weights=(("chatt", 3.0),))))
    with pytest.raises(UsageError, match="add --objective goodput"):
        prepare(load_inputs(replace(asked, program=ProgramOptions())))


def test_thinning_keeps_the_rate_and_the_wanted_shares() -> None:
    """With 0.2 of one class and all of the other, one in six requests is of the first; the rate is what it was."""
    num, rng = 20_000, np.random.default_rng(0)
    ones = np.ones(num, dtype=np.int64)
    classes = rng.integers(0, 2, num)
    requests = Requests(np.arange(num) / 10.0, ones, ones, classes, ones * 0)
    fewer = thinned(requests, (0.2, 1.0), seed=1)
    assert np.mean(fewer.class_index == 0) == pytest.approx(1 / 6, abs=0.01)
    assert fewer.rate_req_per_s == pytest.approx(requests.rate_req_per_s, rel=1e-2)


def test_the_time_is_over_everywhere() -> None:
    """Inside another limit the shorter one counts; afterwards there is none; an answer that comes too late says so."""
    with patience(1000.0), patience(1.0), patience(500.0):
        assert seconds_left() <= 1.0
    assert seconds_left() == float("inf")
    with pytest.raises(OutOfTimeError, match="no plan was found and verified"):
        answer(QUESTION, effort=QUICK, time_limit_s=1e-6)


def test_a_cut_search_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time ends after the first plan passed, that plan is the answer, and it says that it was cut short."""
    from splitplan.planner.judge import repair

    relaxed = repair.Workshop._relaxed

    def slow(*args: object) -> repair.Outcome:
        raise OutOfTimeError("the time limit is over")

    monkeypatch.setattr(repair.Workshop, "_relaxed", slow)
    cut = solve(QUESTION, effort=QUICK)
    monkeypatch.setattr(repair.Workshop, "_relaxed", relaxed)
    assert cut.verification is not None
    assert cut.verification.passed
    assert any("the time limit cut the search short" in note for note in cut.notes)


def test_a_long_solve_tells_incumbent_and_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """In dollars, with the incumbent no better than the bound; nobody is told of short ones."""
    from splitplan.planner.program import solver

    problem = replace(
        a_problem(four_racks(), many_columns(2), [3.0] * 2, max_share_per_rack=0.6), pairs_allowed=same_kv
    )
    told: list[Progress] = []
    with patience(report=told.append):
        solve_program(problem)
    monkeypatch.setattr(solver, "LONG_SOLVE_S", 0.0)
    monkeypatch.setattr(solver, "TELL_EVERY_S", 0.0)
    with patience(report=told.append):
        solution = solve_program(problem)
    both = [item for item in told if item.incumbent is not None and item.bound is not None]
    assert both
    assert all(item.bound <= item.incumbent + 0.1 for item in both if item.incumbent and item.bound)
    best = min(item.incumbent for item in both if item.incumbent)
    assert best == pytest.approx(solution.usd_per_hour, abs=0.5)  # type: ignore[union-attr]


def test_progress_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Best, bound and gap with their unit; off a terminal one line in five seconds, and notes in between."""
    line = progress_line(Progress("", 47.88, 45.2, 12.3), "$/h")
    assert line == "solving for 12 s: best 47.88 $/h, bound 45.2 $/h, gap 5.6 %"
    assert progress_line(Progress("round 3", None, None, 2.0), "W") == "solving for 2 s (round 3): no plan yet"
    shown = SolveProgress("$/h")
    for elapsed_s in (2.0, 6.0, 7.0, 12.0, 2.0):
        shown.report(Progress("", 1.0, 1.0, elapsed_s))
    shown.note("done")
    lines = capsys.readouterr().err.splitlines()
    assert [text[:16] for text in lines] == ["solving for 6 s:", "solving for 12 s", "solving for 2 s:", "done"]


def _interrupted(after: Callable[[str], bool], arguments: list[str]) -> tuple[int, str]:
    """Start the command, send SIGINT once stderr has a line that `after` accepts; exit code and stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "splitplan.planner.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if after(line):
            process.send_signal(signal.SIGINT)
            break
    rest = process.communicate(timeout=60)[1]
    return process.returncode, "".join(lines) + rest


def test_an_interrupt_ends_a_solve_with_one_line() -> None:
    """Ctrl-C after the first note: no traceback, exit code 130."""
    wishes = ["--kinds", "3", "--survive", "node", "--rate", "24", "--slo", "ttft=1s@p99,tpot=60ms@p99"]
    question = ["solve", "--model", "llama-3.1-70b", "--fleet", "four-racks", "--workload", "azure-conv", *wishes]
    code, text = _interrupted(lambda line: "columns stand" in line, question)
    assert (code, text.splitlines()[-1]) == (130, "stopped: nothing was written")
    assert "Traceback" not in text


def test_an_interrupt_while_modules_load_has_no_traceback() -> None:
    """From the first module of the command line on, until it runs, a SIGINT just ends the process."""
    program = (
        "import sys; sys.argv = ['planner']; import splitplan.planner.cli; import os, signal; "
        "os.kill(os.getpid(), signal.SIGINT); print('still here')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_an_error_is_machine_readable_too() -> None:
    """With --json stdout has one object of kind Error with every problem; stderr stays for people."""
    command = [sys.executable, "-m", "splitplan.planner.cli", "explain", "no-such-plan.yaml", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    document = json.loads(done.stdout)
    assert (document["kind"], document["exit_code"], done.returncode) == ("Error", 1, 1)
    assert document["problems"][0]["message"] in done.stderr
    assert {"message", "where", "key", "expected", "next_step"} == set(document["problems"][0])


def test_a_price_of_a_move_is_a_number() -> None:
    """`--move-cost inf` is wrong usage, not an overflow."""
    command = [sys.executable, "-m", "splitplan.planner.cli", "replan", "p.yaml", "--move-cost", "inf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: --move-cost is inf; expected a finite number")
