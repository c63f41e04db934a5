"""What people ask of a plan once it is there: why, what else, what changed, and how to get from here to there."""
