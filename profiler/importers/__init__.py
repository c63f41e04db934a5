"""Readers that turn published measurements into Profiles."""
