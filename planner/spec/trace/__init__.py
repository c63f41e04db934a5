"""Recorded traces: read in whatever format they come, streamed, with every row that is left out counted by line."""
