"""`python -m feddiverse`."""

from feddiverse.cli import main

main()
