"""How long a step takes and what fits in memory: from a Profile and a Model to the tables the simulator runs on."""
