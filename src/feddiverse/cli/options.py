"""Options that several commands share, each stated once."""

from typing import Any

import typer

FEDERATION = typer.Argument(metavar="FEDERATION|CSV", help="Named federation, split:source, or FILE.csv.")
MODEL = typer.Option(None, help="mobilenet, cnn, mlp, or package.module:factory.")
CLIENTS_PER_ROUND = typer.Option(None, help="How many clients are asked each round.")
IMAGE_SIZE = typer.Option(None, help="Side of photos in pixels.")
DATA_DIR = typer.Option(None, help="Where a photo set lies, if not in the cache.")
SET = typer.Option([], "--set", metavar="KEY=VALUE", help="Any config key; may be repeated.")
SET_FOR_ALL = typer.Option([], "--set", metavar="KEY=VALUE", help="A config key for all runs; may be repeated.")

WORKERS = typer.Option(0, min=0, help="Worker processes (0: as many as suit the cores). Does not change the result.")
AT_ONCE = typer.Option(1, min=1, help="Runs at the same time, which share the workers. Does not change results.")
DEVICE = typer.Option("auto", help="auto, cpu, cuda or mps.")
ENGINE = typer.Option("local", help="local, or flower.")
RETRIES = typer.Option(None, min=0, help="How often a client is asked again whose worker died (default 1).")
WORKER_TIMEOUT = typer.Option(
    None, min=0, help="Seconds without a sign of life until a worker is replaced (default 300; 0: never)."
)
DRY_RUN = typer.Option(False, "--dry-run", help="Show the runs and the expected time; run nothing.")
JSON = typer.Option(False, "--json", help="Print JSON for programs.")
RESULT_AS_JSON = typer.Option(False, "--json", help="Print the result as JSON, and nothing else, on stdout.")
TABLE_AS_JSON = typer.Option(False, "--json", help="Print the table's numbers as JSON on stdout.")

# What the columns of a table of the user's are called.
CLIENT = typer.Option("", metavar="COLUMN", help="Of a CSV: the column that names the client (default: client).")
LABEL = typer.Option("", metavar="COLUMN", help="Of a CSV: the column with the class (default: class, or label).")
ATTRIBUTE = typer.Option("", metavar="COLUMN", help="Of a CSV: the column with the attribute (default: attribute).")
IMAGE = typer.Option("", metavar="COLUMN", help="Of a CSV: the column with the picture's path (default: image).")
SPLIT = typer.Option("", metavar="COLUMN", help="Of a CSV: the column with train, test or val (default: split).")
FEATURES = typer.Option("", metavar="A,B,…", help="Of a CSV: columns of numbers, in place of pictures.")


def columns(client: str, label: str, attribute: str, image: str, split: str, features: str = "") -> dict[str, str]:
    """The config keys that the options of columns stand for; only those given."""
    names = {"client": client, "class": label, "attribute": attribute, "image": image, "split": split}
    given = {
        "columns": ",".join(f"{key}={column}" for key, column in names.items() if column),
        "features": features,
    }
    return {key: value for key, value in given.items() if value}


def given(**values: Any) -> dict[str, Any]:
    """Config keys with their values; only those that were given."""
    return {key: value for key, value in values.items() if value is not None}
