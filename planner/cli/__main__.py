"""`python -m splitplan.planner.cli` is `planner`."""

from splitplan.planner.cli.main import run

run()
