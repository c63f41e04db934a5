"""A Plan becomes manifests and a running, health-checked cluster on an existing engine and scheduler."""
