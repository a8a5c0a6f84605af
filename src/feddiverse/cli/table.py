"""The options by which every command that reads a table of the user's is told what its columns are called."""

import typer

CLIENT = typer.Option("", metavar="COLUMN", help="Of a CSV: the column that names the client (default: client).")
LABEL = typer.Option("", metavar="COLUMN", help="Of a CSV: the column with the class (default: class, or label).")
ATTRIBUTE = typer.Option("", metavar="COLUMN", help="Of a CSV: the column with the attribute (default: attribute).")
IMAGE = typer.Option("", metavar="COLUMN", help="Of a CSV: the column with the picture's path (default: image).")
SPLIT = typer.Option("", metavar="COLUMN", help="Of a CSV: the column with train, test or val (default: split).")
FEATURES = typer.Option("", metavar="A,B,…", help="Of a CSV: columns of numbers, in place of pictures.")


def settings(client: str, label: str, attribute: str, image: str, split: str, features: str) -> dict[str, str]:
    """The config keys that these options stand for; only those given."""
    names = {"client": client, "class": label, "attribute": attribute, "image": image, "split": split}
    given = {
        "columns": ",".join(f"{key}={column}" for key, column in names.items() if column),
        "features": features,
    }
    return {key: value for key, value in given.items() if value}
