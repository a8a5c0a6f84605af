"""`feddiverse run`."""


def run() -> None:
    """Train one federation and write a run directory."""
    raise NotImplementedError
