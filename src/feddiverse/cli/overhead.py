"""`feddiverse overhead`."""


def overhead() -> None:
    """Measure what each selector costs."""
    raise NotImplementedError
