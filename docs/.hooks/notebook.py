"""The notebook as a page of the site, with its outputs: a hook of MkDocs.

`python docs/.hooks/notebook.py` runs the notebook and keeps what it printed and drew.
"""

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"
PAGE = "first-steps.md"
# Of pandas' tables: what the site's own style would not get past.
STYLE = re.compile(r"<style scoped>.*?</style>\s*|(?<=<table) border=\"1\" class=\"dataframe\"", re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """MkDocs asks which files there are: those of the folder, and these."""
    from mkdocs.structure.files import File

    pictures: dict[str, bytes] = {}
    files.append(File.generated(config, PAGE, content="\n".join(as_markdown(pictures))))
    for name, content in pictures.items():
        files.append(File.generated(config, name, content=content))
    return files


def as_markdown(pictures: dict[str, bytes]) -> Iterator[str]:
    """The notebook, line by line; what it drew goes to `pictures`."""
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "markdown":
            yield f"{cell.source}\n"
            continue
        yield f"```python\n{cell.source}\n```\n"
        for output in cell.outputs:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                name = f"first-steps-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                yield f"![{cell.source.splitlines()[-1]}]({name})\n"
            elif "text/html" in data:
                yield f"{STYLE.sub('', data['text/html'])}\n"
            else:
                yield f"```text\n{data['text/plain'].rstrip()}\n```\n"


def run() -> None:
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=900, record_timing=False).execute()
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    run()
