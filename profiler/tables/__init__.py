"""Tables of one operation family as fast look-ups."""
