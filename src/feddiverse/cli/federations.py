"""`feddiverse federations`."""


def federations() -> None:
    """List the named federations and what is missing to use them."""
    raise NotImplementedError
