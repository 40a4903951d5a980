"""The help texts of the commands, from the YAML groups and the config models."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from coterie.commands.compose import (
    compose_plain,
    describe_choice,
    experiments,
    groups,
    read_choice,
    split_choice,
)
from coterie.commands.overrides import parse
from coterie.commands.program import run_command
from coterie.commands.written import written
from coterie.config import COMPONENTS, RunConfig
from coterie.config.component import Component
from coterie.config.explain import dotted_fields, model_in, show
from coterie.config.loading import section_model
from coterie.config.source_model import source_model

_Command = Callable[[Sequence[str]], int]
"""Takes the command line after the command's name and returns the exit code."""
_WIDTH = 80
_FILLED_IN = "Filled in"
"""Words in the description of a key that the config itself sets."""
_ABOUT = (
    "Learns representations and clusters from unlabelled data that is spread over many clients. "
    "Runs on the Ray cluster at hand, or on this machine."
)
_USAGE = """\
usage: coterie train experiment=NAME [GROUP=CHOICE ...] [KEY=VALUE]
       coterie train resume=true run_dir=DIR [KEY=VALUE]
       coterie train --help [experiment=NAME] [GROUP=CHOICE ...]
       coterie train --help all
       ray job submit --working-dir . --runtime-env ray_jobs/runtime_env.yaml \\
         -- python -m ray_jobs.train experiment=NAME ..."""
_FIRST = """\
usage: coterie train experiment=METHOD_DATA [KEY=VALUE ...]
METHOD and DATA as below, or your data: experiment=METHOD data=… (docs/data.md)."""
_MORE = """\
--help experiment=NAME: what it sets, and every key. --help all: all there is."""
_SELDOM = (
    *("deterministic", "cluster.start_timeout_s", "cluster.max_actor_restarts"),
    *("faults.max_growth", "links.down_mbit_s", "links.up_mbit_s", "links.peer_mbit_s"),
    *("evaluation.batch_size", "evaluation.knn_between"),
    *("evaluation.linear_probe_between", "evaluation.linear_probe_standardise"),
    *("evaluation.knn_weighting", "evaluation.fine_tuning_epochs", "evaluation.local_test_ratio"),
    *("checkpoint.keep", "tracking.client_rows", "tracking.wandb.job_type"),
)
"""Keys that serve a protocol or an odd machine; the help lists them apart."""
_KEYS_OF = " or ".join(f"{name}=CHOICE" for name in COMPONENTS[:2])
_EXIT_CODES = {
    "0": "completed",
    "1": "the run failed",
    "2": "the config or the data was refused",
    "3": "completed, but clients were dropped",
    "130": "interrupted, after a checkpoint",
}


def help_text(*overrides: str) -> str:
    """Return the help of `coterie train`, at most 80 columns wide, and 40 lines without arguments.

    Args:
        overrides: `all`; or choices such as `method=fedmcc`, and classes such as
            `method.target=mine:Mine`, whose own keys come first. With an experiment, so do the
            values that the whole command line sets. The experiments are listed for `all` alone.

    Raises:
        ConfigError: If a choice does not exist, or its class cannot be imported.
    """
    if not overrides:
        return _first_screen()
    overrides = () if overrides == ("all",) else overrides
    keys = _settable(dotted_fields(RunConfig))
    for name in ("experiment", *COMPONENTS):
        keys.pop(name, None)
    choices = {name: ", ".join(found) for name, found in groups().items() if name != "experiment"}
    seldom = {name: keys.pop(name) for name in _SELDOM}
    parts = [
        textwrap.fill(_ABOUT, _WIDTH),
        _USAGE,
        *_choices_keys(overrides),
        *_experiments_values(overrides),
        *([] if overrides else [_table("Experiments (experiment=NAME):", experiments())]),
        _table("Groups (GROUP=CHOICE):", choices),
        _key_list("Keys (KEY=VALUE) with their defaults:", keys),
        textwrap.fill(f"A choice has keys of its own: add {_KEYS_OF} to --help.", _WIDTH),
        _key_list("Keys that are seldom needed:", seldom),
        _table("Exit codes:", _EXIT_CODES),
    ]
    return "\n\n".join(parts) + "\n"


def _first_screen() -> str:
    """Return the methods, each with its experiments' data sets; those for digits only come last."""
    known = experiments()
    found: dict[str, list[str]] = {name: [] for name in known if not _recipe(name, known)}
    for name in known:
        if method := _recipe(name, known):
            found[method].append(name.removeprefix(f"{method}_"))
    lines = [
        f"{name:<12}{' '.join(_joined(data)) or textwrap.shorten(known[name], _WIDTH - 12)}"
        for name, data in found.items()
        if data != ["digits"]
    ]
    few = [name for name, data in found.items() if data == ["digits"]]
    alone = textwrap.fill(f"{', '.join(few)}: digits", _WIDTH)
    return "\n".join([_FIRST, *lines, alone, _MORE])


def _joined(names: Sequence[str]) -> Iterable[str]:
    """Join names, and shorten a name that continues the one before: digits[_more]."""
    found: dict[str, str] = {}
    for name in names:
        base = next((other for other in names if name.startswith(f"{other}_")), name)
        rest = name.removeprefix(base)
        found[base] = found.get(base, base) + (f"[{rest}]" if rest else "")
    return found.values()


def _recipe(name: str, known: Iterable[str]) -> str:
    """Return the experiment that this one adapts to a data set; "" if it adapts none."""
    return next((other for other in known if name.startswith(f"{other}_")), "")


def command_help(
    about: str, usage: str, model: type[BaseModel], exit_codes: Mapping[str, str] | None = None
) -> str:
    """Return the help of a command with a config model, at most 80 columns wide.

    Args:
        about: What the command does, in one or more sentences.
        usage: The usage line.
        model: The config model of the command's keys.
        exit_codes: Exit code to meaning; by default done, failed, refused, interrupted.
    """
    fields = _settable(dotted_fields(model))
    shared = {code: text for code, text in _EXIT_CODES.items() if code in ("1", "2")}
    codes = exit_codes or {"0": "done", **shared, "130": "interrupted"}
    parts = [
        textwrap.fill(about, _WIDTH),
        usage,
        _key_list("Keys (KEY=VALUE) with their defaults:", fields),
        _table("Exit codes:", dict(codes)),
    ]
    return "\n\n".join(parts) + "\n"


def command(
    about: str, usage: str, model: type[BaseModel], exit_codes: Mapping[str, str] | None = None
) -> Callable[[_Command], _Command]:
    """Make a function of a command's arguments the command, with help and error messages.

    The function should import PyTorch only after it has read its arguments. The arguments of this
    decorator are those of `command_help`.
    """

    def decorate(work: _Command) -> _Command:
        @wraps(work)
        def main(arguments: Sequence[str]) -> int:
            return run_command(
                work, arguments, lambda *_: command_help(about, usage, model, exit_codes)
            )

        return main

    return decorate


def _choices_keys(overrides: tuple[str, ...]) -> list[str]:
    """Return the keys of each component that the overrides choose or name by class."""
    parts = []
    for override in parse(overrides):
        group, _, key = override.key_or_group.partition(".")
        if group not in COMPONENTS or key not in ("", "target") or override.is_delete():
            continue
        if isinstance(override.value(), dict):
            continue
        choice = written(override.value())
        section = {"target": choice} if key else read_choice(group, choice)
        fields = _settable(dotted_fields(_model(group, section), f"{group}."))
        keys = _key_list(f"Keys of {override.input_line} with their defaults:", fields, section)
        about = "" if key else describe_choice(group, split_choice(group, choice)[0])
        parts.append(f"{textwrap.fill(about, _WIDTH)}\n{keys}" if about else keys)
    return parts


def _model(group: str, section: Mapping[str, Any]) -> type[BaseModel]:
    """Return the config model of a choice, without an import of PyTorch where it is Coterie's."""
    target = section.get("target")
    read = source_model(target) if isinstance(target, str) else None
    return read or section_model(group, section)


def _settable(fields: Mapping[str, FieldInfo]) -> dict[str, FieldInfo]:
    """Return the keys that a user sets: no sections, and none that are filled in."""
    return {
        name: field
        for name, field in fields.items()
        if model_in(field.annotation) in (None, Component)  # a component of any class is a key
        and _FILLED_IN not in (field.description or "")
    }


def _experiments_values(overrides: tuple[str, ...]) -> list[str]:
    """Return the values that an experiment and the other overrides set, as YAML."""
    if not any(override.key_or_group == "experiment" for override in parse(overrides)):
        return []
    values = compose_plain(*overrides, needs_data=False)
    name = values.pop("experiment")
    values = {section: value for section, value in values.items() if value is not None}
    method = values["method"]
    fields = _settable(dotted_fields(_model("method", method), "method."))
    keys = [_key_list("Keys of its method, as it sets them:", fields, method)]
    for key, own in method.items():
        if isinstance(own, Mapping) and "target" in own:
            fields = _settable(dotted_fields(_model("method", own), f"method.{key}."))
            keys.append(_key_list(f"Keys of method.{key}:", fields, own))
    layout: dict[str, Any] = {"sort_keys": False, "width": _WIDTH - 30}
    text: str = yaml.safe_dump(values, default_flow_style=None, **layout)
    if max(map(len, text.splitlines())) > _WIDTH - 2:
        text = yaml.safe_dump(values, default_flow_style=False, **layout)
    title = f"experiment={name} sets these; all else has its default:"
    return [f"{title}\n{textwrap.indent(text.rstrip(), '  ')}", *keys]


def _table(title: str, rows: dict[str, str]) -> str:
    """Return a title, then names with their texts in a second column."""
    column = max(map(len, rows), default=0) + 4
    lines = [
        textwrap.fill(
            text,
            _WIDTH,
            initial_indent=f"  {name}".ljust(column),
            subsequent_indent=" " * column,
            break_on_hyphens=False,
        )
        for name, text in rows.items()
    ]
    return "\n".join([title, *lines])


def _key_list(
    title: str, fields: dict[str, FieldInfo], chosen: Mapping[str, object] | None = None
) -> str:
    """Return a title, then each key with its default and its docstring."""
    lines = [title]
    for name, field in fields.items():
        leaf, default = name.rpartition(".")[2], field.get_default(call_default_factory=True)
        default = (chosen or {}).get(leaf, default)
        value = "(needed)" if default is PydanticUndefined else show(default)
        lines.append(f"  {name}={value}")
        text = " ".join([*(field.description or "").split(), *_options(field.annotation)])
        if text:
            lines.append(
                textwrap.fill(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
            )
    return "\n".join(lines)


def _options(annotation: Any) -> list[str]:
    """Return the values of a `Literal`, as a last sentence: "(auto, cpu, cuda)"."""
    if get_origin(annotation) is Literal:
        return [f"({', '.join(map(show, get_args(annotation)))})"]
    return next(filter(None, map(_options, get_args(annotation))), [])
