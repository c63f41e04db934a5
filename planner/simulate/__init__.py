"""Queues, batches, KV memory and links, step by step: the judge of every plan."""

from splitplan.planner.simulate.deployment import Deployment, InstanceSpec, Link
from splitplan.planner.simulate.results import Results, Run, combine
from splitplan.planner.simulate.run import simulate
from splitplan.planner.simulate.statistics import Interval
