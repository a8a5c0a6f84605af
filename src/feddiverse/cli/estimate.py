"""`feddiverse estimate`."""


def estimate() -> None:
    """Compare estimated triplets with the truth."""
    raise NotImplementedError
