"""Placement searches of DistServe and Splitwise, reproduced as baselines on the same columns as ours."""
