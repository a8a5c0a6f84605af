"""The Flower tests run where Flower is installed, and are skipped elsewhere."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("flwr") else ["test_*.py"]
