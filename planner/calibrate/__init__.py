"""Measured end-to-end points: reading them, predicting them, fitting the calibration to them."""
