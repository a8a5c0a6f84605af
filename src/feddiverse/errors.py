"""The two ways a command can end badly: the user's mistake, or ours."""


class UserError(Exception):
    """What the user can mend. The message is one sentence: what is wrong, where, what to do. Exit code 2.

    >>> import feddiverse as fd
    >>> try:
    ...     fd.counts_of("digits-gcs")
    ... except UserError as error:
    ...     print(error)
    There is no federation 'digits-gcs' (did you mean 'digits-gsc'?). See: feddiverse federations.
    """


class RunError(Exception):
    """What went wrong although the user did nothing wrong, told in one sentence. Exit code 1.

    >>> issubclass(RunError, Exception)
    True
    """
