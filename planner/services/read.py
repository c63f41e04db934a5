"""From a Services file to one question per service, every problem with its file, line and key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from splitplan.catalogs.documents import Document, KeyPath, dotted, read_document, validate
from splitplan.catalogs.engines import find_engine
from splitplan.catalogs.errors import DocumentError, Problem, SplitplanError
from splitplan.catalogs.models import find_model
from splitplan.planner.columns.options import ColumnOptions
from splitplan.planner.inputs import SolveInputs, load_inputs
from splitplan.planner.program.types import ProgramOptions
from splitplan.planner.question import PriceKind, Question
from splitplan.planner.spec.fleet import load_fleet
from splitplan.planner.spec.reading import check_kind
from splitplan.planner.spec.services_schema import ServiceFile, ServicesFile
from splitplan.planner.spec.slo import parse_slo
from splitplan.planner.spec.workload import load_workload


@dataclass(frozen=True, slots=True)
class Shared:
    """What is asked of all services together: the fleet they share, the objective and its limits."""

    fleet: str
    program: ProgramOptions = field(default_factory=lambda: ProgramOptions(max_kinds=1))
    columns: ColumnOptions = field(default_factory=ColumnOptions)  # what the services do not say for themselves
    price_kind: PriceKind = "on_demand"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Service:
    """One service by name, with everything its question names."""

    name: str
    inputs: SolveInputs


def read_services(path: str | Path, shared: Shared) -> tuple[Service, ...]:
    """Read and load a Services file. Raises DocumentError with every problem of every service."""
    document = read_document(path, "services file")
    check_kind(document, "Services")
    file = validate(document, ServicesFile)
    load_fleet(shared.fleet, price_kind=shared.price_kind)  # what is wrong with the fleet is said once
    problems = _name_problems(document, file)
    services = []
    for number, item in enumerate(file.services):
        try:
            services.append(Service(item.name, load_inputs(question_of_service(item, shared, Path(path).parent))))
        except SplitplanError as error:
            problems += _located(document, number, item, Path(path).parent, error)
    if problems:
        raise DocumentError(problems)
    return tuple(services)


def question_of_service(item: ServiceFile, shared: Shared, folder: Path) -> Question:
    """The question of one service; files that stand beside the services file are found there."""
    options = replace(shared.program, mode=item.mode, pin=tuple(item.pin), forbid=tuple(item.forbid))
    return Question(
        model=_beside(item.model, folder),
        fleet=shared.fleet,
        workload=_beside(item.workload, folder),
        slo=item.slo,
        rate_req_per_s=item.rate_req_per_s,
        program=options,
        columns=replace(
            shared.columns,
            engine=item.engine,
            connector=item.connector,
            weight_dtype=item.weight_dtype,
            kv_dtype=item.kv_dtype,
            memory_fraction=item.memory_fraction,
        ),
        price_kind=shared.price_kind,
        profiles=tuple(_beside(name, folder) for name in item.profiles),
        seed=shared.seed,
    )


def _beside(name: str, folder: Path) -> str:
    """The path of a file beside the services file, or the name as it is."""
    try:
        return str(folder / name) if (folder / name).is_file() else name
    except (OSError, ValueError):  # too long, or a NUL: whoever reads the name says what is wrong
        return name


def _name_problems(document: Document, file: ServicesFile) -> list[Problem]:
    seen: set[str] = set()
    problems = []
    for number, item in enumerate(file.services):
        if item.name.casefold() in seen:
            at: KeyPath = ("services", number, "name")
            problems.append(document.problem(at, f"service '{item.name}' given twice", "each name once"))
        seen.add(item.name.casefold())
    return problems


def _located(document: Document, number: int, item: ServiceFile, folder: Path, error: SplitplanError) -> list[Problem]:
    """The problems of one service at the keys that they come from."""
    at: KeyPath = ("services", number)
    reads: dict[str, Callable[[], object]] = {
        "model": lambda: find_model(_beside(item.model, folder)),
        "engine": lambda: find_engine(item.engine),
        "slo": lambda: parse_slo(item.slo, where=""),
        "workload": lambda: load_workload(_beside(item.workload, folder), item.rate_req_per_s),
    }
    found = []
    for key, read in reads.items():
        try:
            read()
        except SplitplanError as wrong:
            found += [_at(document, (*at, key), problem) for problem in wrong.problems]
    return found or [_at(document, at, problem) for problem in error.problems]


def _at(document: Document, at: KeyPath, problem: Problem) -> Problem:
    """A problem with the place in the services file; what was found in another file keeps that place in its words."""
    inner = " ".join(part for part in (problem.where, f"`{problem.key}`" if problem.key else "") if part)
    message = f"{inner}: {problem.message}" if inner else problem.message
    return replace(problem, message=message, where=document.where(at), key=dotted(at))
