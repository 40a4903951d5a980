"""Reads programs that `torch.export.save` wrote, without running code from the file.

`torch.export.load` unpickles weights, constants and example inputs, imports modules that the file
names, evaluates its expressions and guards, and compiles Python from its names. So the archive is
taken apart here, everything in it is checked against what programs of networks consist of, and a
new archive of the checked parts alone is given to PyTorch: graph and plain tensors.
"""

import io
import json
import math
import re
import zipfile
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, fx, nn

from coterie.errors import damage
from coterie.networks.bounded_calls import BOUNDED, bounded, is_bounded
from coterie.networks.program_operators import is_allowed
from coterie.networks.size_expressions import is_range_name, is_size_expression

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_GRAPH = "models/model.json"
_WEIGHTS, _CONSTANTS = "data/weights/", "data/constants/"
_TABLES = {
    _WEIGHTS: ("model_weights_config.json", re.compile(r"weight_\d+")),
    _CONSTANTS: ("model_constants_config.json", re.compile(r"tensor_\d+")),
}
_PLAIN = {"archive_format": b"pt2", "archive_version": b"0", ".data/version": b"3\n"}
_EXAMPLES = "data/sample_inputs/model.pt"

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ARGUMENT = re.compile(rf"(?:{_NAME.pattern})?", re.ASCII)
"""An argument's name; arguments that are parts of a graph have none."""
_DOTTED = re.compile(r"(?!__)(?:\w|\.(?!__))*", re.ASCII)
_VERSION = re.compile(r"[\w.+<=]*", re.ASCII)
_OPERATOR = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)", re.ASCII)
_MOST_EXPRESSIONS = 200
"""Different sizes in a graph that depend on the number or form of samples, at most."""
_MOST_NODES, _MOST_TENSORS = 10_000, 20_000
"""Calls of a graph, and tensors and names of tensors beside it, at most."""
_PYTHON = {
    *(f"_operator.{name}" for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg")),
    *(f"_operator.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge", "getitem", "and_")),
    *(f"torch.sym_{name}" for name in ("float", "int", "max", "min", "not")),
    "torch.ops.higher_order.wrap_with_set_grad_enabled",
}
"""Functions that a graph may call besides ATen's operators."""
_PREDICTION = "coterie.contract.clusterer.Prediction"
"""The name of the type of a model's result."""
_STRUCTURES = {None, "builtins.tuple", "builtins.list", "builtins.dict"}
_DROPPED: dict[str, Any] = {"metadata": {}, "guards_code": []}
"""Parts of a graph that are not needed: paths and lines of source code, and checks as code."""
_TRUNC = "trunc"
"""A division's rounding, in which the least integer by -1 ends the process."""
_KINDS = {
    "ScalarType": torch.dtype,
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
    "Device": torch.device,
}
"""Types of operators' arguments that are numbers within PyTorch."""
_REFUSED = {"as_operator", "as_custom_obj", "custom_obj", "class_fqn"}


class ProgramError(ValueError):
    """A file is not a network's program: it is damaged, or has parts that no network needs."""


class Program(nn.Module):
    """An exported program, which has no training mode.

    Raises:
        ProgramError: If it cannot be read, or holds pickles, objects, or a graph of other calls
            than those of networks.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__()
        from torch.export.pt2_archive._package import load_pt2  # a slow import

        try:
            programs = load_pt2(io.BytesIO(checked_program(content))).exported_programs
            self.program = _with_checked_calls(programs["model"].module())
        except ProgramError:
            raise
        except Exception as error:  # PyTorch raises undocumented errors for damaged graphs
            raise ProgramError(f"it cannot be read ({damage(error)})") from error

    def forward(self, samples: Tensor) -> Any:
        """Run the program."""
        learns = torch.is_grad_enabled()
        try:
            return self.program(samples)
        except BaseException:
            torch.set_grad_enabled(learns)  # a part that fails within no_grad leaves gradients off
            raise

    def train(self, mode: bool = True) -> Self:
        """Record the mode only: a program is exported in one mode and stays in it."""
        self.training = mode
        return self


def _with_checked_calls(program: nn.Module) -> nn.Module:
    """Return the program with our attention, sums, products and bounds, also in its submodules.

    Raises:
        ProgramError: If a call gives a number where a type or layout of numbers belongs.
    """
    for part in program.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                _check_kinds(node)
                node.target = BOUNDED.get(node.target, node.target)
                if is_bounded(node.target):
                    node.args, node.target = (node.target, *node.args), bounded
            for node in part.graph.find_nodes(op="call_function", target=_ATTENTION):
                node.target = _attention
            part.recompile()
    return program


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
    """Compute attention as PyTorch does, and check that there are as many keys as values.

    On CPUs PyTorch does not compare the two and reads as many keys as there are values.

    Raises:
        RuntimeError: If keys and values differ in number.
    """
    if key.shape[-2] != value.shape[-2]:
        counts = f"{key.shape[-2]} keys but {value.shape[-2]} values"
        raise RuntimeError(f"scaled_dot_product_attention: {counts}")
    attended: Tensor = _ATTENTION(query, key, value, *rest, **options)
    return attended


def _check_kinds(node: fx.Node) -> None:
    """Refuse a number as a dtype, layout or device: PyTorch uses it as one without a check."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    wanted = node.target._schema.arguments
    named = {argument.name: argument for argument in wanted}
    given = [*zip(wanted, node.args, strict=False)]
    given += [(named[name], value) for name, value in node.kwargs.items() if name in named]
    for argument, value in given:
        kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
        if kind in _KINDS and not (value is None or isinstance(value, _KINDS[kind])):
            told = f"its graph gives {str(value)[:40]} as {argument.name}"
            raise ProgramError(f"{told}, which is not allowed")


def checked_program(content: bytes) -> bytes:
    """Return a new archive of a program's checked graph and tensors.

    Example inputs, lines of source code and checks of arguments are left out.

    Raises:
        ProgramError: As `Program`; other errors if the archive is damaged.
    """
    found = _members(content)
    graph = _clean(json.loads(found[_GRAPH]), "")
    text = json.dumps(graph)
    if len(set(re.findall(r'"expr_str": "[^"]*"', text))) > _MOST_EXPRESSIONS:
        raise ProgramError(f"its sizes are more than {_MOST_EXPRESSIONS} different expressions")
    parts = {**_PLAIN, _GRAPH: text.encode(), _EXAMPLES: b""}
    for folder in _TABLES:
        parts |= _tensors(found, folder)
    new = io.BytesIO()
    with zipfile.ZipFile(new, "w", zipfile.ZIP_STORED) as archive:
        for name, part in parts.items():
            archive.writestr(f"program/{name}", part)
    return new.getvalue()


def _members(content: bytes) -> dict[str, bytes]:
    """Return the files of the archive, without its top folder."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        if any(info.compress_type != zipfile.ZIP_STORED for info in infos) or (
            sum(info.file_size for info in infos) > len(content)
        ):
            raise ProgramError("its archive is compressed")
        return {info.filename.partition("/")[2]: archive.read(info) for info in infos}


def _tensors(found: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    """Return the tensors of a folder and the table that names them."""
    name, pattern = _TABLES[folder]
    table = json.loads(found[folder + name])
    parts = {folder + name: json.dumps(_clean(table, "")).encode()}
    if len(table["config"]) > _MOST_TENSORS:
        raise ProgramError(f"it names more than {_MOST_TENSORS:,} tensors")
    for entry in table["config"].values():
        path = entry["path_name"]
        if entry["use_pickle"] is not False or not pattern.fullmatch(path):
            raise ProgramError("it holds pickled objects")
        part = found[folder + path]
        sizes = [size["as_int"] for size in entry["tensor_meta"]["sizes"]]
        if not part and math.prod(sizes):
            raise ProgramError(f"{path} is empty")
        if math.prod(sizes) > len(part):  # by strides of zero
            raise ProgramError(f"{path} has fewer numbers than its tensor")
        parts[folder + path] = part
    return parts


def _clean(value: Any, key: str) -> Any:
    """Return a part of the JSON reduced to what is needed, with each text checked.

    Args:
        value: The part.
        key: Its key, which decides what a text may be.
    """
    if isinstance(value, dict):
        for name in value:
            fits = is_range_name(name) if key == "range_constraints" else _DOTTED.fullmatch(name)
            if not fits or name in _REFUSED:
                raise ProgramError(f"it has an unexpected entry {name[:40]!r}")
        if "inputs" in value and "target" in value:
            _check_call(value["target"])
        if "nodes" in value:
            _check_count(value)
            value = {**value, "nodes": [node for node in value["nodes"] if not _asserts(node)]}
        return {
            name: _DROPPED[name] if name in _DROPPED else _clean(inner, name)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_clean(inner, key) for inner in value]
    if isinstance(value, str) and not _is_plain(value, key):
        raise ProgramError(f"its {key} has the unexpected value {value[:40]!r}")
    return value


def _check_count(graph: dict[str, Any]) -> None:
    """Refuse a graph that would take minutes to read."""
    counts = {"calls": (len(graph["nodes"]), _MOST_NODES)}
    counts["inputs"] = (len(graph.get("inputs", ())), _MOST_TENSORS)
    for what, (count, most) in counts.items():
        if count > most:
            raise ProgramError(f"its graph has {count:,} {what}, more than {most:,}")


def _is_plain(text: str, key: str) -> bool:
    """Return whether a text may stand under this key in the program of a network."""
    if key in {"in_spec", "out_spec"}:
        return _is_structure(json.loads(text)[1])
    if key == "expr_str":
        return is_size_expression(text)
    if key in {"as_string", "as_strings"}:  # an operator's option, such as a mode of padding
        return len(text) <= 100 and text != _TRUNC
    patterns = {"name": _ARGUMENT, "as_name": _NAME, "torch_version": _VERSION}
    return patterns.get(key, _DOTTED).fullmatch(text) is not None


def _is_structure(spec: Any) -> bool:
    """Return whether the arguments or results are built of tuples, lists and dictionaries only."""
    kind, context = spec["type"], spec["context"]
    if kind == "collections.namedtuple":
        return context == _PREDICTION and all(map(_is_structure, spec["children_spec"]))
    if kind not in _STRUCTURES:
        return False
    names = (json.loads(context) if isinstance(context, str) else context) or []
    listed = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return listed and all(map(_is_structure, spec["children_spec"]))


def _asserts(node: Any) -> bool:
    """Return whether a node only asserts a tensor's device, which a user may choose again."""
    return bool(node["target"] == "torch.ops.aten._assert_tensor_metadata.default")


def _check_call(target: Any) -> None:
    """Raise a ProgramError unless a node calls an allowed operator."""
    match = _OPERATOR.fullmatch(target) if isinstance(target, str) else None
    known = match is not None and hasattr(getattr(torch.ops.aten, match[1], None), match[2])
    if target not in _PYTHON and not (match and known and is_allowed(match[1], match[2])):
        raise ProgramError(f"its graph calls {str(target)[:60]}, which is not allowed")
