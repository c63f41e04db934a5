"""How well plans stand step times that are not as predicted."""
