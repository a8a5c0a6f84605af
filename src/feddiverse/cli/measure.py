"""`feddiverse measure`."""


def measure() -> None:
    """Measure how skewed a federation is."""
    raise NotImplementedError
