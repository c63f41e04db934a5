"""Fleets as clusters describe themselves: kubectl, Slurm, topograph, nvidia-smi → our Fleet file."""
