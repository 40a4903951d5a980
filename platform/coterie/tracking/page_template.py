"""The templates of pages that a run leaves."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Template


@cache
def page_template(path: Path) -> "Template":
    """Read a template of HTML, which escapes what is put into it."""
    from jinja2 import Environment  # imported only where a page is made

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(path.read_text(encoding="utf-8"))
