"""An engine and a router of the standard library alone, timed by the plan: for demos and tests of the plumbing."""
