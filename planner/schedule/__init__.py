"""Hours of a day: which plan runs when, chosen together with what switching between them costs."""
