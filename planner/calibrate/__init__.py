"""Measured end-to-end points: reading them, predicting them with the step model and the simulator, fitting parameters."""
