"""Whom to ask in each round: one file a selector. A new one is one more line in `feddiverse.registry`."""
