"""docs/api.md has all that `coterie` exports, and the pages import from nowhere else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import coterie

ROOT = Path(__file__).resolve().parents[2]
EXPORTED = sorted(set(coterie.__all__) - {"__version__"})
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_page_lists_what_is_exported():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: coterie\.(\w+)$", page, flags=re.MULTILINE)) == EXPORTED


def test_each_name_can_be_imported():
    assert all(getattr(coterie, name) is not None for name in EXPORTED)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = coterie.nonsense


def test_the_import_alone_loads_no_pytorch():
    code = "import sys, coterie; print(sorted({'torch', 'pydantic', 'ray'} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "platform",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_import_from_coterie_itself(page):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(
        r"^\s*(?:from coterie\.\S+ import|import coterie\.).*$", text, re.MULTILINE
    )
    for names in re.findall(r"^from coterie import (?:\(([^)]*)\)|(.*))$", text, re.MULTILINE):
        wanted = {name.strip() for name in "".join(names).split(",")} - {""}
        assert wanted <= {*EXPORTED, "__version__"}
