"""How large a fleet the program plans, how fast, and how close to proven optimal."""
