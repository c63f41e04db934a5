"""What users write: fleets, workloads and latency targets, as checked values."""
