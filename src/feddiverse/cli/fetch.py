"""`feddiverse fetch`."""


def fetch() -> None:
    """Fetch data or weights into the cache."""
    raise NotImplementedError
