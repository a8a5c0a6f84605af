"""`feddiverse study`."""


def study() -> None:
    """Run a grid of runs."""
    raise NotImplementedError
