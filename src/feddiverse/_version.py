"""The version, as installed; it is written in pyproject.toml alone."""

from importlib.metadata import version

VERSION = version("feddiverse")
