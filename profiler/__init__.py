"""A device, or a published source of measurements, becomes a Profile: tables of op latency with provenance."""
