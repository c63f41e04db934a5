"""The facts: GPUs, links, models, engines, example fleets and workloads, measured profiles. One reader for all."""
