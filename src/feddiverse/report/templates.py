"""Pages from templates. Text from data reaches a page only through Jinja2's escaping."""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup


def get(name: str) -> Template:
    """A template of this folder; `include_raw` puts one of our own files (css, js) into it as it is."""
    environment = Environment(
        loader=PackageLoader("feddiverse.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["include_raw"] = lambda file: Markup((Path(__file__).parent / file).read_text("utf-8"))
    environment.filters["unbroken"] = lambda text: text.replace(" %", "\u00a0%")  # no line begins with the sign
    return environment.get_template(name)
