"""Whether a plan holds: candidates as deployments, their simulation against the targets, and what misses teach."""
