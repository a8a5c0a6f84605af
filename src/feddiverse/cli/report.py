"""`feddiverse report`."""


def report() -> None:
    """Write one HTML page about a run or a study."""
    raise NotImplementedError
