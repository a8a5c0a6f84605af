"""Pages from templates. Text from data reaches a page only through Jinja2's escaping."""

import re
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup


def get(name: str) -> Template:
    """A template of this folder.

    `include_raw` puts one of our own files (css, js) into it as it is; `unbroken` keeps `%` and `n − 1` on one line.
    """
    environment = Environment(
        loader=PackageLoader("feddiverse.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["include_raw"] = lambda file: Markup((Path(__file__).parent / file).read_text("utf-8"))
    environment.filters["unbroken"] = lambda text: re.sub(r" (?=%|− 1)|(?<=−) (?=1)", "\u00a0", text)
    return environment.get_template(name)
