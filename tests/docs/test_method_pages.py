"""Every method has its page in docs/methods/, whose options are those of its config.

A page's table of options has keys in its first column and what they are in its last. The columns
between hold defaults: under `default` those of all methods on the page, under names those of these
methods. A row of several keys has as many defaults. `5; SCFC 100` is 5, but 100 for SCFC. Where the
default is null, words say what that means.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders.every_method import EVERY

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in ROOT.glob("docs/methods/*.md")}
SECTIONS = ("When to pick it", "What (leaves a client|crosses the network)", "Options", "Results")


def page_of(kind: type) -> str:
    """The page of the method's file: of the same name, or one that names the file."""
    stem = kind.__module__.rpartition(".")[2]
    if stem in PAGES:
        return PAGES[stem]
    naming = [text for text in PAGES.values() if f"`modules/{stem}.py`" in text]
    assert len(naming) == 1, f"there is no docs/methods/{stem}.md, nor one page for its file"
    return naming[0]


def options(page: str) -> list[tuple[list[str], dict[str, str]]]:
    """Each row's keys, and its cells of defaults by their column's head."""
    section = re.search(r"^## Options\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert section, "the page has no section Options"
    lines = [line for line in section[1].splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    return [
        (re.findall(r"`(\w+)`", row[0]), dict(zip(head[1:-1], row[1:-1], strict=True)))
        for row in rows
    ]


def documented(page: str, name: str) -> dict[str, str]:
    """Key to what the page says of its default for this method."""
    found = {}
    for keys, cells in options(page):
        for head, cell in cells.items():
            if head != "default" and name not in re.split(r"\W+", head):
                continue
            first, *others = split(cell, ";")
            own = [text.removeprefix(f"{name} ") for text in others if text.startswith(f"{name} ")]
            values = (
                split(own[0] if own else first, ",")
                if len(keys) > 1
                else [own[0] if own else first]
            )
            assert len(values) == len(keys), f"{keys}: {cell}"
            assert not set(keys) & set(found), f"{keys}: a second time"
            found |= dict(zip(keys, values, strict=True))
    return found


def split(cell: str, mark: str) -> list[str]:
    """Split at a mark that does not stand in brackets."""
    return [part.strip() for part in re.split(rf"{mark}\s*(?![^\[]*\])", cell)]


def says(text: str, default: Any) -> bool:
    """Whether the text is the default."""
    value = yaml.safe_load(text.strip("`").replace("−", "-"))
    if isinstance(value, str):
        try:
            value = float(value)  # YAML takes 1e-3 for text
        except ValueError:
            value = value.strip()
    if default is None:
        return value is None or isinstance(value, str)
    if isinstance(default, tuple):
        return isinstance(value, list) and tuple(value) == default
    if isinstance(default, bool) or isinstance(value, bool):
        return value is default
    return bool(value == default)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_its_page_lists_every_key_with_its_default(kind: Any) -> None:
    found = documented(page_of(kind), kind.__name__)
    defaults = dict(kind.Config())
    assert sorted(set(defaults) - set(found)) == []
    wrong = {
        key: (found[key], default)
        for key, default in defaults.items()
        if not says(found[key], default)
    }
    assert wrong == {}


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_lists_no_key_that_no_method_has(stem: str) -> None:
    kinds = [kind for kind in EVERY if page_of(kind) == PAGES[stem]]
    assert kinds
    known = {key for kind in kinds for key in dict(kind.Config())}
    assert {key for keys, _ in options(PAGES[stem]) for key in keys} <= known


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_has_the_sections_of_the_others(stem: str) -> None:
    heads = [rf"^## {section}$" for section in SECTIONS]
    assert [head for head in heads if not re.search(head, PAGES[stem], re.MULTILINE)] == []


@pytest.mark.parametrize(
    ("text", "default", "same"),
    [
        ("1e-3", 0.001, True),
        ("0.003", 0.003, True),
        ("100", 100, True),
        ("1", 1.0, True),
        ("`euclidean`", "euclidean", True),
        ("the data's classes", None, True),
        ("–", None, True),
        ("false", False, True),
        ("[0.1, 1]", (0.1, 1), True),
        ("none", "none", True),
        ("1e-3", 0.002, False),
        ("0", None, False),
        ("0", False, False),
        ("false", True, False),
        ("mean", "sum", False),
        ("null", "sum", False),
        ("text", 1.0, False),
    ],
)
def test_the_comparison_of_defaults_can_fail(text: str, default: Any, same: bool) -> None:
    assert says(text, default) is same
