"""How many requests the simulator serves per second of one core."""
