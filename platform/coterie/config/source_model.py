"""The names of a component's keys, read from source: a mistyped one is refused before PyTorch.

A method's config model stands in the method's file, whose import takes seconds. The names of its
fields can be read without: the file is parsed, and so are the files of the classes it derives from.
Values are left to the model itself, and so are all keys where code decides on them.
"""

import ast
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import create_model

from coterie.config.component import Component

_OURS = "coterie"


class _UnreadableError(Exception):
    """The source does not tell the names."""


@cache
def source_model(target: str) -> type[Component] | None:
    """Return a config model that takes any value for each key of a target's.

    Args:
        target: `package.module:Class`.

    Returns:
        The model, or None if the source does not tell all names, as of another package's class.
    """
    module, _, name = target.partition(":")
    for place in (f"{name}.Config", name):
        try:
            fields: dict[str, Any] = dict.fromkeys(_keys(module, place), (Any, None))
        except _UnreadableError:
            continue
        return create_model(name, __base__=Component, **fields)
    return None


def _keys(module: str, name: str) -> dict[str, None]:
    """Return the keys of the config model at a dotted name of a module."""
    if module.startswith(f"{_OURS}.config."):
        return dict.fromkeys(getattr(import_module(module), name).model_fields)
    outer, _, inner = name.partition(".")
    match _definitions(module).get(outer):
        case ast.ImportFrom(module=str(source), level=0, names=names):
            original = next(each.name for each in names if (each.asname or each.name) == outer)
            return _keys(source, f"{original}.{inner}" if inner else original)
        case ast.ClassDef() as node:
            return _keys_of(module, _nested(node, inner) if inner else node)
        case _:
            raise _UnreadableError(name)


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """Return the classes and imports of a module by their names."""
    package, *rest = module.split(".")
    spec = find_spec(package) if package == _OURS else None
    if spec is None or spec.origin is None:
        raise _UnreadableError(module)
    path = Path(spec.origin).parent.joinpath(*rest)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file():
        raise _UnreadableError(module)
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {each.asname or each.name: node for each in node.names}
    return found


def _nested(node: ast.ClassDef, name: str) -> ast.ClassDef:
    for inner in node.body:
        if isinstance(inner, ast.ClassDef) and inner.name == name:
            return inner
    raise _UnreadableError(name)


def _keys_of(module: str, node: ast.ClassDef) -> dict[str, None]:
    """Return a class's annotated names and its bases', and those that `absent` explains."""
    found: dict[str, None] = {}
    for base in node.bases:
        found |= _keys(module, ast.unparse(base)) if ast.unparse(base) != "ABC" else {}
    for each in node.body:
        match each:
            case ast.FunctionDef(decorator_list=decorators) if any(
                "model_validator(mode='before')" in ast.unparse(one) for one in decorators
            ):
                raise _UnreadableError(node.name)
            case ast.AnnAssign(target=ast.Name(id="absent"), value=ast.Dict(keys=keys)):
                found |= {str(key.value): None for key in keys if isinstance(key, ast.Constant)}
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                found |= {} if "ClassVar" in ast.unparse(kind) else {name: None}
    return found
