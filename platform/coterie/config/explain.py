"""Turns a pydantic error into one sentence: the dotted key, its value, and what to do."""

import difflib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from coterie.config.synonyms import LOGGERS, letter, meant, told

Fields = Mapping[str, FieldInfo]
"""All existing keys, by their full dotted names."""

NAMED = 12
"""The most names that a message lists."""

_OFFERED = 3
"""The most keys that a message offers in place of an unknown one."""

_BESIDE = ("aggregation.", "evaluation.")
"""Sections that are not meant where the method has a key of the name."""

_CHOSEN = ("augmentation", "cluster", "data", "encoder", "partition", "tracking")
"""Sections whose content is chosen by name."""
_NAMING = ("name", "type", "kind", "dataset")

_SENTENCES = {
    "bool_type": "must be true or false",
    "finite_number": "must be finite",
    "float_type": "not a number; give one such as {example}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "not a whole number; give one such as {example}",
    "int_type": "not a whole number; give one such as {example}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "model_type": "must be a group of keys; give it one such as {example}",
    "locale": "this shell's locale lacks some of its signs; set LC_ALL=C.UTF-8",
    "string_too_short": "must not be empty",
    "string_type": "not a text; quote it twice, as {key}='\"{value}\"'",
    "string_unicode": "it is not UTF-8; rename the file or folder, or give a link to it",
    "too_long": "must have at most {max_length} entries, not {actual_length}",
    "too_short": "must have at least {min_length} entries, not {actual_length}",
    "tuple_type": "must be a list in brackets such as {example}",
    "value_error": "{error}",
}

_TYPES = {
    "float_type": "a number",
    "greater_than": "a larger number",
    "greater_than_equal": "a larger number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
}
"""The types that a union takes besides words, by the error of each type."""


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option that means the same or is closest to `word`, or None if none is close."""
    options = [*options]
    if (same := meant(word, options)) is not None:
        return same
    found = difflib.get_close_matches(word, options, n=1)
    return found[0] if found else None


def one_of(word: str, options: Iterable[str]) -> str:
    """Return the reason to refuse `word`: the options, and the closest one if it is close."""
    names = list(options)
    close = nearest(word, names)
    shown = ", ".join(f"'{name}'" if "," in name else name for name in names)
    if close:
        return f"must be one of {shown}; did you mean {close}?"
    elsewhere = told(word) if word in LOGGERS and "wandb" in names else None
    return f"must be one of {shown}" + (f"; {elsewhere}." if elsewhere else ".")


def not_among(kind: str, word: str, options: Iterable[str], listing: str) -> str:
    """Return the reason to refuse a name, as `one_of` does, but list few options.

    Args:
        kind: What is named, such as "experiment".
        word: The name.
        options: The names that there are.
        listing: The command that lists them.
    """
    names = list(options)
    if len(names) <= NAMED:
        return one_of(word, names)
    close = nearest(word, names)
    meant = f"did you mean {close}? " if close else ""
    return f"there is no such {kind}; {meant}{listing} lists all."


def show(value: Any) -> str:
    """Format a value as on the command line, cut at 60 characters."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return _cut(f"[{','.join(show(item) for item in value)}]")
    if isinstance(value, Mapping):
        return _cut("{" + ",".join(f"{key}:{show(item)}" for key, item in value.items()) + "}")
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested sections by dotted name."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}.{name}".strip(".")
        found |= dotted(value, key) if isinstance(value, Mapping) and value else {key: value}
    return found


def dotted_fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return all keys of a config model and its nested models, by their full dotted names."""
    fields: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        fields[prefix + name] = field
        inner = model_in(field.annotation)
        if inner is not None:
            fields |= dotted_fields(inner, f"{prefix}{name}.")
    return fields


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the config model in an annotation `X` or `X | None`, or None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) not in (Annotated, Union, UnionType):
        return None
    return next(filter(None, map(model_in, get_args(annotation))), None)


def explain(error: ValidationError, values: Mapping[str, Any], fields: Fields, prefix: str) -> str:
    """Describe the first problem of a refused config in one sentence.

    Args:
        error: The error of pydantic.
        values: The mapping that was refused.
        fields: All existing keys, to suggest the closest one.
        prefix: Prefix of this mapping's keys: "" or "method.".

    Returns:
        For example `method.temprature=1: there is no such key; did you mean method.temperature?`.
    """
    # A misspelt key often leaves another one missing: report the misspelt one first.
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    path = _path(problems[0], values)
    key, value = prefix + _dotted(path), problems[0]["input"]
    if problems[0]["type"] == "extra_forbidden":
        return _unknown(key, value, fields)
    # pydantic reports one problem for each type of a union.
    same = [problem for problem in problems if _path(problem, values) == path]
    reason = _joined([_reason(dict(problem), key, fields) for problem in same], same)
    given = f"={show(value)}" if path and problems[0]["type"] != "missing" else ""
    ending = "" if reason.endswith((".", "?")) else "."
    where = f"{key.rstrip('.')}{given}: " if key else ""  # a model of its own has no name
    return f"{where}{reason}{ending}"


def _joined(reasons: Sequence[str], problems: Sequence[Any]) -> str:
    """Join the reasons that a union's types give."""
    if problems[0]["type"] == "literal_error" and reasons[0].endswith("?"):
        return reasons[0]
    if problems[0]["type"] != "literal_error" or len(problems) == 1:
        return ", or ".join(dict.fromkeys(reasons))
    others = [_TYPES.get(problem["type"], "another value") for problem in problems[1:]]
    return ", or ".join([reasons[0].rstrip("."), *dict.fromkeys(others)])


def _path(problem: Any, values: Any) -> tuple[int | str, ...]:
    """Return the location of an error without the names that pydantic gives to a union's types."""
    here, path, location = values, [], problem["loc"]
    absent = len(location) if problem["type"] == "missing" else 0
    for number, part in enumerate(location, start=1):
        if isinstance(here, Mapping) and (part in here or number == absent):
            path.append(part)
            here = here.get(part)
        elif isinstance(here, list | tuple) and isinstance(part, int):
            path.append(part)
            here = here[part] if part < len(here) else None
    return tuple(path)


def _dotted(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).strip(".")


def _unknown(key: str, value: Any, fields: Fields) -> str:
    rest = ""
    while isinstance(value, Mapping) and value:  # show metod.lr=1, as the user wrote it
        name, value = next(iter(value.items()))
        rest += f".{name}"
    parent, _, leaf = key.rpartition(".")
    beside = [name for name in fields if name.startswith(f"{parent}." if parent else "")]
    further = _further_in(key, leaf, fields)
    of_method = further if further and further.startswith("method.") else None
    if sure := meant(leaf, beside) or _described(leaf, fields) or of_method:
        return f"{key}{rest}={show(value)}: there is no such key; did you mean {sure}?"
    if leaf in _NAMING and parent in _CHOSEN:
        return f"{key}={show(value)}: there is no such key; choose it by {parent}={show(value)}."
    elsewhere = told(leaf)
    own = key == f"method.{leaf}" and (elsewhere or "").startswith("this method ")
    if elsewhere is not None and (own or key in (leaf, f"partition.{leaf}")):
        return f"{key}{rest}={show(value)}: there is no such key here; {elsewhere}."
    siblings = [name for name in fields if name.rpartition(".")[0] == parent]
    near = nearest(leaf, [name.rpartition(".")[2] for name in siblings])
    close = further or (f"{parent}.{near}".strip(".") if near else None)
    close = close or next((name for name in fields if name.rpartition(".")[2] == leaf), None)
    if close:
        hint = f"did you mean {close}{rest}?"
    elif parent and len(siblings) > NAMED:
        hint = f"--help lists the keys of {parent}."
    else:
        names = ", ".join(name.rpartition(".")[2] for name in siblings) or "none"
        hint = f"{parent or 'the top'} has {names}."
    return f"{key}{rest}={show(value)}: there is no such key; {hint}"


def _described(leaf: str, fields: Fields) -> str | None:
    """Return the method's keys that are described by the Greek letter which the leaf names."""
    greek = letter(leaf)
    if greek is None:
        return None
    sign = re.compile(rf"(?<!\w){greek}(?![^\W_])")
    found = [n for n, f in fields.items() if n.startswith("method.") and f.description]
    found = [name for name in found if sign.search(fields[name].description or "")]
    return " or ".join(found) if 0 < len(found) <= _OFFERED else None


def _singular(word: str) -> str:
    return word.removesuffix("s")


def _further_in(key: str, leaf: str, fields: Fields) -> str | None:
    """Return keys of this name in sections, or else keys that contain it or have it as initials.

    For momentum that is method.momentum, for rounds method.clustering_rounds, for lr
    method.learning_rate.
    """
    inner = {n: n.rpartition(".")[2] for n in fields if n.startswith(key.removesuffix(leaf))}
    parts = {name: own.split("_") for name, own in inner.items() if "_" in own}
    found = (
        [name for name, own in inner.items() if own == leaf]
        or [name for name, own in inner.items() if _singular(own) == _singular(leaf)]
        or [name for name, own in parts.items() if _singular(leaf) in map(_singular, own)]
        or [n for n, own in parts.items() if "".join(part[:1] for part in own) == leaf]
    )
    if any(name.startswith("method.") for name in found):
        found = [name for name in found if not name.startswith(_BESIDE)]
    return " or ".join(found) if 0 < len(found) <= _OFFERED else None


def _reason(problem: dict[str, Any], key: str, fields: Fields) -> str:
    kind, context = problem["type"], dict(problem.get("ctx", {}))
    if kind == "missing":
        return "a value is needed" + ("" if key.endswith("]") else f"; give {key}=…")
    if kind == "string_unicode" and sys.getfilesystemencoding() != "utf-8":
        kind = "locale"
    if isinstance(problem["input"], str) and _in_quotes(kind, problem["input"]):
        return "it is a text; give it without quotes"
    if kind == "literal_error":
        options = re.split(r", | or ", context["expected"])
        return one_of(show(problem["input"]), [option.strip("'") for option in options])
    if kind == "greater_than":  # a whole number's bound is an int: above 0 is at least 1
        bound = context["gt"]
        return (
            f"must be at least {bound + 1}"
            if isinstance(bound, int)
            else f"must be above {bound:g}"
        )
    context = {name: f"{x:g}" if isinstance(x, float) else x for name, x in context.items()}
    context |= {
        "key": key,
        "value": show(problem["input"]),
        "example": _example(kind, key, fields, problem["input"]),
    }
    if kind not in _SENTENCES:
        message = str(problem["msg"])
        return message[:1].lower() + message[1:]
    return _SENTENCES[kind].format(**context)


def _in_quotes(kind: str, text: str) -> bool:
    """Return whether a refused text is a value of the wanted type in quotes."""
    if kind == "bool_type":
        return text.lower() in {"true", "false"}
    whole = r"(0|[1-9]\d*)"
    number = {"int_type": whole, "float_type": rf"({whole}\.?\d*|\.\d+)(e[+-]?\d+)?"}
    return kind in number and re.fullmatch("[+-]?" + number[kind], text.strip(), re.I) is not None


def _example(kind: str, key: str, fields: Fields, given: Any) -> str:
    if kind == "model_type":
        return next((f"{name}=…" for name in fields if name.startswith(f"{key}.")), f"{key}.name=…")
    default = fields[key].default if key in fields else None
    if kind == "tuple_type" and default == () and isinstance(given, str):
        return f"{key}=[{given}]"
    fitting = {
        "int_type": int,
        "int_from_float": int,
        "float_type": int | float,
        "tuple_type": tuple,
    }
    if isinstance(default, bool) or not isinstance(default, fitting.get(kind, object)):
        default = {"float_type": 0.5, "tuple_type": (1, 2)}.get(kind, 1)
    return f"{key}={show(default)}"
