"""Rules of the layout and of the code's shape that no linter knows."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "platform" / "coterie"
SOURCES = sorted(
    path
    for folder in (ENGINE, ROOT / "modules", ROOT / "datamodules", ROOT / "ray_jobs")
    for path in folder.rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_FUNCTION_LINES = 50
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def python(
    *arguments: str, cwd: Path = ROOT, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter afresh; `path` is its PYTHONPATH."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {} if path is None else {"PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.AST) -> Iterator[Function]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_the_scan_sees_the_code() -> None:
    names = {relative(path) for path in SOURCES}
    assert {"platform/coterie/rounds/loop.py", "modules/fedmcc.py", "ray_jobs/train.py"} <= names


def test_unit_tests_lie_in_the_folders_of_the_source() -> None:
    folders = {path.parent.relative_to(ENGINE) for path in ENGINE.rglob("*.py")}
    folders |= {Path(name) for name in ("modules", "datamodules", "ray_jobs")}
    unit = ROOT / "tests" / "unit"
    tested = {path.parent.relative_to(unit) for path in unit.rglob("*.py")}
    assert tested <= folders
    assert folders - tested == {Path("gradcache")}  # compared with plain steps in tests/parity


def test_no_test_file_imports_another() -> None:
    """But for `tests/chaos`, a program that tries what the tests have at random."""
    imports = {
        f"{relative(path)}: {name}"
        for path in TESTS
        if path.parent.name != "chaos"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (getattr(node, "module", None), *(alias.name for alias in node.names))
        if name and any(part.startswith(("test_", "conftest")) for part in name.split("."))
    }
    assert imports == set()


def test_platform_is_a_source_root_and_no_package() -> None:
    assert [path.name for path in (ROOT / "platform").glob("*.py")] == []
    assert (ENGINE / "__init__.py").is_file()


OWN = """
import sys

def own():
    import datamodules, jobs, modules, ray_jobs
    assert datamodules.MINE and jobs.MINE and modules.MINE and ray_jobs.MINE

def coteries():
    import coterie.modules.kmeans, coterie.datamodules.digits, coterie.jobs.train

for first, second in ((own, coteries), (coteries, own)):
    first()
    second()
    own()
    for name in list(sys.modules):
        if name.partition(".")[0] in {"coterie", "datamodules", "jobs", "modules", "ray_jobs"}:
            del sys.modules[name]
"""


@pytest.mark.slow
def test_a_users_own_packages_keep_their_names(tmp_path: Path) -> None:
    """Whichever is imported first; PyTorch is imported once for both orders."""
    for name in ("modules", "datamodules", "ray_jobs", "jobs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    done = python("-c", OWN, cwd=tmp_path, path=str(ROOT / "platform"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [None, "platform", f"platform{os.pathsep}."])
def test_pythons_own_platform_wins(path: str | None) -> None:
    code = "import platform; print(platform.__file__); print(platform.system())"
    for arguments in (("-c", code), ("-c", f"import sys; sys.path.insert(0, '.'); {code}")):
        done = python(*arguments, path=path)
        assert done.returncode == 0, done.stderr
        file, system = done.stdout.split()
        assert not Path(file).is_relative_to(ROOT / "platform")
        assert Path(file).name in {"platform.py", "__init__.py"}
        assert system in {"Linux", "Darwin", "Windows"}


def length(function: Function) -> int:
    """A function's lines from `def` to its end, its docstring left out."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None and first.end_lineno is not None:
        lines -= first.end_lineno - first.lineno + 1
    return lines


def test_no_function_is_long() -> None:
    long = {
        f"{relative(path)}:{function.name}": length(function)
        for path in SOURCES
        for function in functions(parsed(path))
        if length(function) > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_nine_in_ten_functions_are_short() -> None:
    lengths = [length(function) for path in SOURCES for function in functions(parsed(path))]
    assert sum(count < 30 for count in lengths) >= 0.9 * len(lengths)


def undocumented(node: ast.AST, where: str) -> Iterator[str]:
    """Public classes and functions without a docstring, not looking into functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        overload = any("overload" in ast.dump(mark) for mark in child.decorator_list)
        if child.name.startswith("_") or overload:
            continue
        if ast.get_docstring(child) is None:
            yield f"{where}:{child.name}"
        if isinstance(child, ast.ClassDef):
            yield from undocumented(child, f"{where}:{child.name}")


def test_everything_public_has_a_docstring() -> None:
    assert [name for path in SOURCES for name in undocumented(parsed(path), relative(path))] == []
    assert [relative(path) for path in SOURCES if ast.get_docstring(parsed(path)) is None] == []


def test_no_file_is_a_drawer() -> None:
    names = [path for path in (*SOURCES, *TESTS) if path.stem.lower() in FORBIDDEN_NAMES]
    folders = [path for path in (*SOURCES, *TESTS) if path.parent.name.lower() in FORBIDDEN_NAMES]
    assert names == folders == []


def test_the_engine_without_actors_does_not_import_ray() -> None:
    code = "import sys, coterie, coterie.execution.serial; sys.exit('ray' in sys.modules)"
    done = python("-c", code, path="platform")
    assert done.returncode == 0, done.stderr or "ray was imported"


@pytest.mark.parametrize("first", [(), ("experiment=fedmcc_digits",)])
def test_a_mistyped_key_ends_with_one_line_and_exit_code_2(first: tuple[str, ...]) -> None:
    done = python("-m", "coterie.jobs.train", *first, "bad.key=1", path="platform")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert ("bad" if first else "experiment") in done.stderr
