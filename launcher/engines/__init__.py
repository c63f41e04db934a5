"""Engines: what to run for each member of a cluster, and the router in front of them."""
