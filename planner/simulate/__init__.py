"""Queues, batches, KV memory and links, step by step: the judge of every plan."""

from splitplan.planner.simulate.deployment import Change, Deployment, InstanceSpec, Link, PathCost
from splitplan.planner.simulate.goodput import Goodput, goodput, simulate_until
from splitplan.planner.simulate.results import Results, Run, combine
from splitplan.planner.simulate.run import simulate
from splitplan.planner.simulate.statistics import Interval
from splitplan.planner.simulate.sweep import Case, sweep
from splitplan.planner.simulate.timeline import Timeline, timeline
