"""What one instance can do: every (role, GPU, parallelism, dtype, batch) that fits, and the rate it sustains."""
