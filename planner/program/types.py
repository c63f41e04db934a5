"""What the program takes and what it says: plain frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from splitplan.planner.columns.column import Column, Reach, Role
from splitplan.planner.program.topology import Granularity
from splitplan.planner.spec.fleet import Fleet
from splitplan.planner.spec.held import NOTHING, Held

FloatArray = NDArray[np.float64]
Objective = Literal["cost", "goodput", "power"]
Mode = Literal["auto", "disagg", "colocated"]

NETWORK_UTILISATION = 0.6
"""Share of a link's line rate that KV transfers may take on average. Protocols leave about 0.87 of the line rate to
payload, so this is 0.7 of what the link can do; with Poisson transfers of one size (M/D/1) the mean wait is then
0.7 / (2 · 0.3) = 1.2 transfers, which the columns' transfer budgets can carry; at 0.9 it would be 4.5."""


def every_pair(prefill: Column, decode: Column) -> bool:
    """The connector rule of an engine that connects everything."""
    return True


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """What is wanted and what is allowed.

    `pin` and `forbid` are column filters such as "decode=a100-sxm", "prefill:tp=2" or "l40s" (see `reduce.py`).
    """

    objective: Objective = "cost"
    mode: Mode = "auto"
    only_gpu: str | None = None
    pin: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    require: tuple[str, ...] = ()  # at least one instance that matches each filter
    max_kinds: int | None = None  # most different columns of one role on one GPU type; large fleets do without
    budget_usd_per_hour: float | None = None
    max_power_watts: float | None = None
    network_utilisation: float = NETWORK_UTILISATION
    class_weights: tuple[float, ...] | None = None  # goodput: worth of one request of each class; None: one rate scale
    price_kinds: tuple[str, ...] = ()  # kinds of price to mix, each up to its cap; (): the fleet's one price per type
    move_usd_per_hour: float = 0.0  # for every instance started or stopped against `running`, spread over its time
    max_rate_scale: float | None = None  # goodput: no more than this multiple of the asked rates
    survive: Literal["", "node", "rack", "power-domain"] = ""  # the load is still served with any one of them gone
    max_share_per_rack: float | None = None  # of every role's requests
    whole_classes: bool = False  # a class is not split: one kind of column prefills it, one decodes it
    class_groups: bool = False  # columns that serve some classes only: each class in one group (see `groups.py`)
    whole_groups: bool = False  # only columns that serve every class
    granularity: Granularity | None = None
    time_limit_s: float = 60.0
    gap_percent: float = 0.0
    tie_breaks: bool = True


@dataclass(frozen=True, slots=True)
class Hour:
    """One stretch of the day with its own load."""

    name: str
    rate_req_per_s: FloatArray  # [classes]


@dataclass(frozen=True, slots=True)
class Running:
    """Instances of a column that run on a node (for one over several nodes: on its first) and may stay."""

    column: str
    node: str
    instances: int = 1
    slots: tuple[tuple[str, int], ...] = ()  # (node, GPU index) of a single instance, stage after stage


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """Everything the program is built from.

    rate_req_per_s: [classes] requests per second asked for. kv_bytes_per_request: by KV dtype of the prefill column,
    [classes] bytes that one request sends from prefill to decode.
    """

    fleet: Fleet
    columns: tuple[Column, ...]
    class_names: tuple[str, ...]
    rate_req_per_s: FloatArray
    kv_bytes_per_request: Mapping[str, FloatArray]
    pairs_allowed: Callable[[Column, Column], bool] = every_pair
    options: ProgramOptions = field(default_factory=ProgramOptions)
    hours: tuple[Hour, ...] = ()  # several hours of the day that one plan must serve; rate_req_per_s is then unused
    running: tuple[Running, ...] = ()  # what runs already; `options.move_usd_per_hour` prices every change
    fair_nics: bool = (
        False  # where hosts are merged: an instance has no more of a NIC than its share of the host's GPUs
    )
    held: Held = NOTHING  # rack power and link bandwidth that other services have; their GPUs the fleet lacks already

    @property
    def rates(self) -> tuple[tuple[str, FloatArray], ...]:
        """(name, [classes] req/s) of every hour, the busiest first."""
        if not self.hours:
            return (("", self.rate_req_per_s),)
        busiest = sorted(self.hours, key=lambda hour: -float(hour.rate_req_per_s.sum()))
        return tuple((hour.name, hour.rate_req_per_s) for hour in busiest)


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Stages of mixed pipelines that stand at a location: `groups` of one of the column's parts."""

    part: int  # in the order of `Column.parts`
    location: str
    groups: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Instances of one column at one location, and the load they carry together.

    A pipeline that mixes GPU types counts where its first stage stands; `stages` says where all of them do.
    """

    column: str
    role: Role
    location: str
    rack: str
    instances: int
    rate_req_per_s: tuple[float, ...]  # by class
    utilisation: float  # share of their usable time that the planned load takes
    stages: tuple[StagePlace, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """KV of one class from one placed prefill column to one placed decode column."""

    class_index: int
    prefill: str
    prefill_location: str
    decode: str
    decode_location: str
    rate_req_per_s: float
    reach: Reach  # how far it travels: inside one location, one rack, or further


@dataclass(frozen=True, slots=True)
class ServedState:
    """Who serves what in one more state of the fleet: another hour of the day, or a failure domain gone."""

    hour: str  # name of the hour; "" where there is one load only
    gone: str  # name of the failure domain; "" with everything up
    stands_for: tuple[str, ...]  # every domain whose loss is this one but for names, this one included
    placed: tuple[Placed, ...]  # what is left, with its rates in this state
    flows: tuple[Flow, ...]


@dataclass(frozen=True, slots=True)
class Bought:
    """GPUs of one type at one kind of price."""

    gpu: str
    kind: str
    num_gpus: int
    usd_per_gpu_hour: float


@dataclass(frozen=True, slots=True)
class Binding:
    """A constraint without slack. `dual` is the gain in rate scale (1 = all that was asked) per unit of its limit."""

    constraint: str
    dual: float


@dataclass(frozen=True, slots=True)
class ProgramSolution:
    """The program's answer, re-verified in plain Python."""

    status: Literal["optimal", "feasible"]
    objective: Objective
    value: float
    bound: float
    gap_percent: float
    placed: tuple[Placed, ...]
    flows: tuple[Flow, ...]
    rate_scale: float  # served rate ÷ asked rate (1 for cost and power)
    class_scale: tuple[float, ...]  # the same by class
    headroom: float  # factor by which every class could still grow on these instances
    usd_per_hour: float
    num_gpus: int
    watts: float
    bought: tuple[Bought, ...]  # GPUs by kind of price, where kinds are mixed
    moves: int  # instances started or stopped against what runs
    binding: tuple[Binding, ...]
    constraints_checked: int
    solver: str
    granularity: Granularity
    columns_used: int  # columns left after filters and dominance
    states: tuple[ServedState, ...] = ()  # the other hours, and every failure to survive
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that stands in the way, and the way around it."""

    message: str
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No plan. `max_rate_scale` is the share of the asked rate that this fleet can serve (0 when nothing runs)."""

    reasons: tuple[Reason, ...]
    max_rate_scale: float
    conflict: tuple[str, ...] = ()  # names of constraints that cannot hold together
