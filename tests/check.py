"""Run the tests that a change touches, nearest first, as `make check` does.

A change is what differs from the merge base with main, uncommitted and new files included. A test
file is at distance 0 from it if the test file has changed itself or mirrors a changed file
(`tests/unit/rounds/test_loop.py` mirrors `rounds/loop.py`), and otherwise as far as its shortest
chain of imports to a changed file. Nothing is stored between calls.
"""

import ast
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS, LEAST = 75.0, 20.0
"""Tests that have not begun as many seconds after `make check` has, lint included, are skipped; the
tests have at least the second number to themselves."""
TREES = {
    "coterie.modules": "modules",
    "coterie.datamodules": "datamodules",
    "coterie.jobs": "ray_jobs",
    "coterie": "platform/coterie",
    "tests": "tests",
}
"""Package to its folder, the innermost first."""
ALWAYS = "tests/architecture/test_layout.py"
BY_FOLDER = {
    "configs": (
        "tests/unit/config/test_experiments.py",
        "tests/unit/commands/test_compose.py",
        "tests/unit/studies/test_paper_study.py",
        "tests/docs/test_results_pages.py",
    ),
    "deploy": ("tests/deploy",),
    "docs": ("tests/docs",),
    "README.md": ("tests/docs",),
}
"""What a change outside Python touches."""


def changed() -> list[str]:
    """The files that differ from the merge base with main."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    new = _git("ls-files", "--others", "--exclude-standard")
    return sorted({*_git("diff", "--name-only", base[0]), *new})


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


def touched(files: Iterable[str]) -> list[str]:
    """The test files that these files touch, nearest first, whole runs and Ray last."""
    given = set(files)
    distances = _distances(given, _importers())
    near = {mirror(file) for file in given}
    tests = {
        file: 0 if file in near else distance
        for file, distance in distances.items()
        if Path(file).name.startswith("test_")
    }
    for file in given:
        tests.update(dict.fromkeys(BY_FOLDER.get(file.split("/")[0], ()), 1))
    # An actor takes seconds to start: tests on Ray run only for what they name.
    kept = [file for file in tests if tests[file] < 2 or not file.startswith("tests/distributed")]
    return sorted(kept, key=lambda file: (tests[file], not file.startswith("tests/unit"), file))


def mirror(file: str) -> str:
    """The unit test of a source file, which may not exist."""
    path = Path(file.removeprefix("platform/coterie/"))
    return (Path("tests/unit") / path.parent / f"test_{path.name}").as_posix()


def _distances(start: set[str], importers: Mapping[str, set[str]]) -> dict[str, int]:
    found = dict.fromkeys(start & importers.keys(), 0)
    waiting = deque(found)
    while waiting:
        file = waiting.popleft()
        for importer in importers[file] - found.keys():
            found[importer] = found[file] + 1
            waiting.append(importer)
    return found


@cache
def _importers() -> dict[str, set[str]]:
    """File to the files that import it, for every Python file."""
    files = [
        path.relative_to(ROOT).as_posix()
        for folder in TREES.values()
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    importers: dict[str, set[str]] = {file: set() for file in files}
    for file in files:
        for imported in _imports(file):
            importers[imported].add(file)
    return importers


def _imports(file: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from filter(None, map(_file, names))


def _file(module: str) -> str | None:
    """Where a module lies, if it is one of ours."""
    package = next((name for name in TREES if f"{module}.".startswith(f"{name}.")), None)
    if package is None:
        return None
    base = TREES[package] + module.removeprefix(package).replace(".", "/")
    return next((f for f in (f"{base}.py", f"{base}/__init__.py") if (ROOT / f).is_file()), None)


def until(began: float, now: float) -> float:
    """When the tests have to have begun."""
    return max(began + SECONDS, now + LEAST)


def main() -> int:
    """Run what the change touches."""
    tests = touched(changed())
    workers = ("-n", "2") if len(tests) > 1 else ()
    now = time.time()
    began = float(os.environ.get("COTERIE_CHECK_BEGAN", now))
    os.environ["COTERIE_TESTS_UNTIL"] = str(until(began, now))
    sys.stderr.write(f"{len(tests)} test files are touched: {', '.join(tests[:9])} …\n")
    tests = [file for file in tests if file != ALWAYS]
    return pytest.main(["-q", *workers, "-m", "not slow", ALWAYS, *tests])


if __name__ == "__main__":
    sys.exit(main())
