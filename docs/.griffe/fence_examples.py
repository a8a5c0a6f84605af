"""Shows the examples of our docstrings (`>>> …`, up to the next empty line) as code: Griffe takes them for text."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)


class FenceExamples(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
