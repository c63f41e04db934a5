"""Targets: where the processes of a cluster run, and how they are described there."""
