"""Scores predictions against published end-to-end measurements: `python -m benchmarks.accuracy FILE…`."""
