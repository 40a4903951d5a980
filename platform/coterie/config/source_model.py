"""Config models read from source: a mistyped key is refused before PyTorch is imported.

A method's config model stands in the method's file, whose import takes seconds. Its fields can be
read without: the file is parsed, and what the annotations name is looked up in the same way. The
result knows less than the model itself, which has the last word: a field whose type cannot be read
takes any value, and checks in code are left out. The help shows its fields with their docstrings.
"""

import ast
import builtins
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast, get_origin

from pydantic import Field, create_model

from coterie.config.component import Component

_OURS = frozenset({"coterie"})
_LIGHT = frozenset({"collections", "pathlib", "pydantic", "typing"})
_TAKES_ANYTHING = {("coterie.config.component", "NestedComponent"): Any}


class _UnreadableError(Exception):
    """A name's value that cannot be found without an import."""


@cache
def source_model(target: str) -> type[Component] | None:
    """Return a config model with the fields of a target, as far as its source shows them.

    Args:
        target: `package.module:Class`, of Coterie's own packages.

    Returns:
        The model, or None if the source does not tell all names of the fields.
    """
    module, _, name = target.partition(":")
    if module.partition(".")[0] not in _OURS:
        return None
    try:
        found = _look_up(module, f"{name}.Config")
    except _UnreadableError:
        try:
            found = _look_up(module, name)
        except _UnreadableError:
            return None
    return found if isinstance(found, type) and issubclass(found, Component) else None


class _Names(dict[str, Any]):
    """The names of a module, looked up when an expression needs them."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        return _look_up(self.module, name)


@cache
def _look_up(module: str, name: str) -> Any:
    """Return the object at a dotted name of a module.

    A value, a type, or a class as a config model.
    """
    if (module, name) in _TAKES_ANYTHING:
        return _TAKES_ANYTHING[module, name]
    if module.startswith("coterie.config.") or module.partition(".")[0] in _LIGHT:
        try:
            return getattr(import_module(module), name)
        except (AttributeError, ImportError) as error:
            raise _UnreadableError(name) from error
    outer, _, inner = name.partition(".")
    match _definitions(module).get(outer):
        case ast.ImportFrom(module=str(source), level=0, names=names):
            original = next(each.name for each in names if (each.asname or each.name) == outer)
            return _look_up(source, f"{original}.{inner}" if inner else original)
        case ast.ClassDef() as node:
            return _model(module, _nested(node, inner) if inner else node)
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) if not inner:
            return _evaluate(module, value)
        case _:
            raise _UnreadableError(name)


@cache
def _definitions(module: str) -> Mapping[str, ast.stmt]:
    """Return the statements that define a module's names."""
    package, *rest = module.split(".")
    spec = find_spec(package) if package in _OURS else None
    if spec is None or spec.origin is None:
        raise _UnreadableError(module)
    path = Path(spec.origin).parent.joinpath(*rest)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not path.is_file():
        raise _UnreadableError(module)
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_bytes()).body:
        match node:
            case ast.ClassDef(name=name):
                found[name] = node
            case ast.ImportFrom(names=names):
                found |= {each.asname or each.name: node for each in names}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
    return found


def _nested(node: ast.ClassDef, name: str) -> ast.ClassDef:
    for inner in node.body:
        if isinstance(inner, ast.ClassDef) and inner.name == name:
            return inner
    raise _UnreadableError(name)


def _evaluate(module: str, expression: ast.expr) -> Any:
    code = compile(ast.Expression(expression), module, "eval")
    try:
        return eval(code, {"__builtins__": {}}, _Names(module))  # noqa: S307 -- our own source
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise _UnreadableError(module) from error


def _model(module: str, node: ast.ClassDef) -> type[Component]:
    """Build a class that derives from `Component` from its annotated names."""
    bases = tuple(
        base
        for base in (_evaluate(module, each) for each in node.bases if _text(each) != "ABC")
        if isinstance(base, type) and issubclass(base, Component)
    )
    checked = _checked_in_code(node)
    if not bases or None in checked:
        raise _UnreadableError(node.name)
    fields: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not (isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)):
            continue
        name, kind = each.target.id, _or_any(module, each.annotation)
        value = None if each.value is None else _or_any(module, each.value)
        if get_origin(kind) is ClassVar or kind is ClassVar:
            constants[name] = value
        elif not name.startswith("_"):
            default = ... if each.value is None else None if value is Any else value
            kind = Any if name in checked else kind
            fields[name] = (Annotated[kind, Field(description=_docstring(after))], default)
    model = cast("type[Component]", create_model(node.name, __base__=bases, **fields))
    if isinstance(constants.get("absent"), Mapping):
        model.absent = constants["absent"]
    return model


def _docstring(node: ast.stmt | None) -> str | None:
    match node:
        case ast.Expr(ast.Constant(str(text))):
            return cleandoc(text)
    return None


def _or_any(module: str, expression: ast.expr) -> Any:
    try:
        return _evaluate(module, expression)
    except _UnreadableError:
        return Any


def _checked_in_code(node: ast.ClassDef) -> set[str | None]:
    """Return the fields that a validator may convert; None if one may change the whole mapping."""
    names: set[str | None] = set()
    for each in node.body:
        for call in each.decorator_list if isinstance(each, ast.FunctionDef) else ():
            if not isinstance(call, ast.Call):
                continue
            if _text(call.func) == "field_validator":
                names |= {str(each.value) for each in call.args if isinstance(each, ast.Constant)}
            elif _text(call.func) == "model_validator" and "before" in _text(call):
                names.add(None)
    return names


def _text(node: ast.AST) -> str:
    return ast.unparse(node)
