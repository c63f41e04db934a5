"""Solve together, simulate each service beside the others, tighten what missed, solve together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from splitplan.planner.judge.candidates import Candidate
from splitplan.planner.judge.corrections import Corrections
from splitplan.planner.judge.repair import Workshop, relaxations, score
from splitplan.planner.judge.verify import Blame, Effort, Judge
from splitplan.planner.plan import Verification
from splitplan.planner.program.types import Infeasible, ProgramOptions, ProgramSolution
from splitplan.planner.services.problem import Member, joint_problem
from splitplan.planner.services.trial import JointTrial, assemble, own_problem
from splitplan.planner.services.ways import Way


@dataclass(frozen=True, slots=True)
class JointOutcome:
    """The best that one way of splitting the fleet led to, or why there is none."""

    label: str
    trial: JointTrial | None
    verdicts: Mapping[str, Verification]  # by service
    learned: Mapping[str, Corrections]  # by service: under which the program answers so
    reasons: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Every service passed its verification."""
        return self.trial is not None and all(verdict.passed for verdict in self.verdicts.values())

    @property
    def score(self) -> float:
        """What the objective makes of it, less is better; infinite when nothing passed."""
        return score(self.trial.solution) if self.trial is not None and self.passed else float("inf")


@dataclass(slots=True)
class JointWorkshop:
    """What all ways of splitting the fleet share: services, their judges and verdicts, and what passed so far."""

    members: tuple[Member, ...]
    options: ProgramOptions
    effort: Effort
    shops: dict[str, Workshop] = field(default_factory=dict)
    passed: list[JointOutcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        """One judge per service."""
        for member in self.members:
            inputs = member.study.inputs
            self.shops[member.name] = Workshop(inputs, member.study.problem, Judge(inputs, self.effort))

    def search(self, label: str, way: Way, start: Mapping[str, Corrections] | None = None) -> JointOutcome:
        """Solve, judge and correct until every service passes; then try to do with less."""
        known = start or {}
        learned = {m.name: Corrections(dict(known.get(m.name, Corrections()).factor)) for m in self.members}
        last = JointOutcome(label, None, {}, learned)
        for _ in range(self.effort.max_attempts):
            outcome = self._tried(label, way, learned)
            if outcome.trial is None:
                return replace(last, reasons=outcome.reasons)
            last = outcome
            if outcome.passed:
                self.passed.append(outcome)
                return self._relaxed(outcome, way)
            self._tighten(outcome.trial, learned)
        return replace(last, reasons=("no plan passed within the attempts allowed",))

    def _tried(self, label: str, way: Way, learned: Mapping[str, Corrections]) -> JointOutcome:
        """One solve under these corrections, every service judged."""
        kept = {name: Corrections(dict(corrections.factor)) for name, corrections in learned.items()}
        problem = joint_problem(self.members, self.options, kept)
        answer = way(problem)
        if isinstance(answer, Infeasible):
            reasons = tuple(
                f"{reason.message}; {reason.next_step}" if reason.next_step else reason.message
                for reason in answer.reasons
            )
            return JointOutcome(label, None, {}, kept, reasons)
        return self._judged(label, assemble(self.members, kept, problem, answer), kept)

    def _judged(self, label: str, trial: JointTrial, learned: Mapping[str, Corrections]) -> JointOutcome:
        verdicts = {member.name: self._fault(trial, learned, member)[1] for member in self.members}
        return JointOutcome(label, trial, verdicts, learned)

    def _fault(
        self, trial: JointTrial, learned: Mapping[str, Corrections], member: Member
    ) -> tuple[Candidate, Verification, Blame]:
        """The verdict on a service in a trial, in failures too, and what of it missed."""
        own, found = own_problem(member, learned, trial.problem), trial.candidates[member.name]
        return self.shops[member.name].judged_with_failures(own, found, trial.inputs[member.name])

    def _tighten(self, trial: JointTrial, learned: dict[str, Corrections]) -> None:
        """Correct the columns at fault of every service that missed."""
        for member in self.members:
            at_fault, verdict, blame = self._fault(trial, learned, member)
            if not verdict.passed:
                self.shops[member.name].tighten(at_fault, blame, learned[member.name])

    def _relaxed(self, passed: JointOutcome, way: Way) -> JointOutcome:
        """Try to do better with columns that may have been judged too carefully; keep what still passes."""
        best, left, tried = passed, self.effort.max_probes * len(self.members), set[object]()
        while left > 0:
            for learned in self._relaxations(best):
                problem = joint_problem(self.members, self.options, learned)
                answer = way(problem)
                if not isinstance(answer, ProgramSolution) or score(answer) >= best.score - 1e-9:
                    continue
                trial = assemble(self.members, learned, problem, answer)
                key = tuple(found.key for found in trial.candidates.values())
                if key in tried:
                    continue
                tried.add(key)
                left -= 1
                outcome = self._judged(best.label, trial, learned)
                if outcome.passed:
                    best = outcome
                    self.passed.append(outcome)
                    break
                if left <= 0:
                    return best
            else:
                return best
        return best

    def _relaxations(self, best: JointOutcome) -> Iterator[dict[str, Corrections]]:
        """Corrections under which a service would do with an instance less; for goodput, all less careful."""
        if best.trial is None:
            return
        single = {name: list(relaxations(found, best.learned[name])) for name, found in best.trial.candidates.items()}
        if best.trial.solution.objective == "goodput":
            yield {name: ways[0] if ways else best.learned[name] for name, ways in single.items()}
            return
        for name, ways in single.items():
            for corrections in ways:
                yield {**best.learned, name: corrections}


def learned_by_all(outcomes: Sequence[JointOutcome], chosen: JointOutcome) -> dict[str, Corrections]:
    """What all ways learned of each column, at its worst; of the chosen plan's own columns, what it passed with."""
    found: dict[str, Corrections] = {}
    for name, own in chosen.learned.items():
        factor: dict[str, float] = {}
        for outcome in outcomes:
            for column, value in outcome.learned[name].factor.items():
                factor[column] = max(factor.get(column, value), value)
        placed = chosen.trial.candidates[name].solution.placed if chosen.trial else ()
        factor.update({item.column: own.factor.get(item.column, 1.0) for item in placed})
        found[name] = Corrections({column: value for column, value in factor.items() if value != 1.0})
    return found
