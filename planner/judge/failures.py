"""What is left of a plan when a failure domain is gone, to be simulated like the plan itself.

The program promises that what is left has the capacity. Columns, though, are corrected by what the whole plan sustains,
and a smaller pool queues more than a larger one at the same load, so each failure is put to the simulator too. It is
judged as a state that lasts: requests that were on the lost instances, and the moment itself, are not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from splitplan.planner.inputs import SolveInputs
from splitplan.planner.judge.candidates import Candidate, candidate
from splitplan.planner.program.types import ProgramInput


def left_after_failures(
    problem: ProgramInput, trial: Candidate, inputs: SolveInputs
) -> Iterator[tuple[str, Candidate]]:
    """(name of the domain that is gone, the instances that are left with the rates and flows planned for then)."""
    for state in trial.solution.states:
        if state.gone:
            left = replace(trial.solution, placed=state.placed, flows=state.flows, states=())
            yield state.gone, replace(candidate(problem, left, inputs), around=trial.around)
