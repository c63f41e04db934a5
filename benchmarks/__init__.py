"""Measurements of accuracy, speed and scale. Run each as `python -m benchmarks.<name>`."""
