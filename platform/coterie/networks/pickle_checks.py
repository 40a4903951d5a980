"""Looks at the pickles of a PyTorch file before PyTorch's restricted unpickler runs them.

They run no code there. But with a few hundred bytes they can call what PyTorch permits with
arguments that take memory and time without end, such as a set of numbers that no file holds. So
each step is followed here first: they may name what weights and plain values are made of and
nothing else, and the arguments of calls are bounded by what the file holds.
"""

import argparse
import io
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from coterie.errors import printable

_LONGEST = 1 << 24
"""Bytes of a pickle: the names of 100,000 weights."""
_PICKLES = 5
"""Pickles at the start of a file of PyTorch's old format."""
_DIMENSIONS = 64
_BYTES: Mapping[str, int] = {
    "torch.storage UntypedStorage": 1,
    **{f"torch {name}Storage": 8 for name in ("Double", "Long")},
    **{f"torch {name}Storage": 4 for name in ("Float", "Int")},
    **{f"torch {name}Storage": 2 for name in ("Half", "BFloat16", "Short")},
    **{f"torch {name}Storage": 1 for name in ("Byte", "Char", "Bool")},
    **{f"torch {name}": 8 for name in ("float64", "int64", "uint64")},
    **{f"torch {name}": 4 for name in ("float32", "int32", "uint32")},
    **{f"torch {name}": 2 for name in ("float16", "bfloat16", "int16", "uint16")},
    **{f"torch {name}": 1 for name in ("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool")},
}
"""Bytes of a number in storages, and of each type."""
PLAIN: Mapping[str, type] = {
    "argparse.Namespace": argparse.Namespace,
    **{
        f"{module}.AttributeDict": OrderedDict
        for module in (
            "lightning.fabric.utilities.data",
            "lightning_fabric.utilities.data",
            "pytorch_lightning.utilities.parsing",
        )
    },
}
"""Objects without code that training scripts store beside the weights, their hyperparameters, and
what is made of them here: PyTorch fills no others."""
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_PUSHED = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING")
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def check_pickles(content: bytes) -> None:
    """Look at a file that `torch.save` may have written.

    Raises:
        RefusedError: If it is compressed, names what weights do not need, or takes memory or time
            beyond its size.
        pickle.UnpicklingError: If it is none.
    """
    machine = _Machine(len(content))
    if not zipfile.is_zipfile(io.BytesIO(content)):
        stream = io.BytesIO(content)
        keys = [_check(stream, machine) for _ in range(_PICKLES)][-1]
        read = isinstance(keys, list) and all(type(key) is str for key in keys)
        if not read or set(keys) != machine.storages.keys():
            raise RefusedError("it lacks some of its numbers")
        return
    _check_archive(content)
    reader = torch._C.PyTorchFileReader(io.BytesIO(content))
    _check(io.BytesIO(reader.get_record("data.pkl")), machine)


def _check_archive(content: bytes) -> None:
    """Refuse an archive that is compressed, or of which PyTorch could read other parts than Python.

    Its directory has to end where the file does, as that of `torch.save`.
    """
    end = len(content) - 22
    size, start = struct.unpack_from("<II", content, end + 12)
    known = content.startswith(b"PK\5\6", end)
    if content.startswith(b"PK\6\7", end - 20):
        end -= 76
        known = known and struct.unpack_from("<Q", content, end + 64) == (end,)
        size, start = struct.unpack_from("<QQ", content, end + 40)
    if not known or start + size != end:
        raise RefusedError("its archive does not end like one of torch.save")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = archive.infolist()
    if any(part.filename.endswith("constants.pkl") for part in parts):
        raise pickle.UnpicklingError("it is TorchScript")
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise RefusedError("its archive is compressed")
    if sum(part.file_size for part in parts) > len(content):
        raise RefusedError("the parts of its archive overlap")


def _check(stream: io.BytesIO, machine: "_Machine") -> Any:
    """Check a pickle, and return a stand-in for the object that it would make."""
    start = stream.tell()
    machine.begin()
    operations = pickletools.genops(stream)
    while True:
        try:
            operation, argument, _ = next(operations)
        except (StopIteration, ValueError) as error:
            raise pickle.UnpicklingError("it is damaged") from error
        read = stream.tell() - start
        if read > _LONGEST:
            raise RefusedError(f"its pickle is longer than {_LONGEST >> 20} MiB")
        try:
            if operation.name == "STOP":
                return machine.stack.pop()
            machine.take(operation.name, argument)
        except RefusedError:
            raise
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise pickle.UnpicklingError("it is damaged") from error
        if machine.copied > read:
            raise RefusedError("it repeats its items without end")


class RefusedError(ValueError):
    """A file uses something that weights do not need."""


class _Name:
    """A name that the file refers to, such as `torch FloatStorage`."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Dict:
    """Stand-in for a dict, or an object with one: its size, and keys that are method names."""

    size = 0
    methods: frozenset[str] = frozenset()


class _Namespace(_Dict):
    """Stand-in for an object that has attributes but no items."""


class _Storage:
    """Stand-in for a storage of numbers in the file."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size


class _Tensor:
    """Stand-in for a tensor."""


class _Machine:
    """PyTorch's unpickler, with stand-ins for dicts and tensors; plain values are kept.

    Its steps raise a TypeError, or what else Python raises, where PyTorch's fail.

    Attributes:
        stack: The stack.
        storages: The bytes of each storage.
        copied: The items that calls have copied, of which a pickle names each.
    """

    def __init__(self, most: int) -> None:
        self.storages: dict[str, int] = {}
        self._left = most
        self.begin()

    def begin(self) -> None:
        """Begin another pickle of the file."""
        self.stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self.copied = 0

    def take(self, name: str, argument: Any) -> None:
        """Execute one operation of the pickle."""
        if name in _CONSTANTS:
            self.push(_CONSTANTS[name])
        elif name in _PUSHED:
            self.push(argument)
        elif name in {"BINPUT", "LONG_BINPUT"}:
            self._memo[argument] = self.stack[-1]
        elif name in {"BINGET", "LONG_BINGET"}:
            self.push(self._memo[argument])
        elif name == "GLOBAL":
            self.push(_known(argument))
        elif name in _TUPLES:
            inside = tuple(self.stack[-_TUPLES[name] :])
            del self.stack[-_TUPLES[name] :]
            self.push(inside)
        elif name != "PROTO":
            _STEPS[name](self)  # others are not PyTorch's

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def mark(self) -> None:
        self._marks.append(self.stack)
        self.stack = []

    def marked(self) -> list[Any]:
        """Pop what is above the last mark from the stack."""
        inside, self.stack = self.stack, self._marks.pop()
        return inside

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not _Dict:
            raise TypeError
        self.stack[-1].size += len(items) // 2
        self.stack[-1].methods |= _checked_keys(items[::2])

    def last(self, count: int) -> list[Any]:
        return [self.stack.pop() for _ in range(count)][::-1]

    def new(self) -> None:
        """Make a plain object, which has no arguments."""
        kind, arguments = self.last(2)
        made = PLAIN[kind.name.replace(" ", ".")]
        if type(arguments) is not tuple or arguments:
            raise TypeError
        self.push(_Namespace() if made is argparse.Namespace else _Dict())

    def build(self) -> None:
        """Update the attributes of an object."""
        (state,) = self.last(1)
        if not isinstance(self.stack[-1], _Dict) or type(state) is not _Dict:
            raise TypeError
        if state.methods and type(self.stack[-1]) is _Dict:
            raise RefusedError(f"it has its own {min(state.methods)} in place of a dict's")
        self.copied += state.size
        self.stack[-1].size += state.size

    def call(self) -> None:
        function, arguments = self.last(2)
        if type(arguments) is not tuple:
            raise TypeError
        self.push(_CALLS[function.name](self, *arguments))

    def storage(self) -> None:
        """Open a storage; refuse a view of one, which the old format allows."""
        tag, kind, key, location, count, *views = self.stack.pop()
        if tag != "storage" or type(location) is not str or len(views) > 1 or any(views):
            raise TypeError
        if type(key) is not str or not key.isascii() or type(count) is not int or count < 0:
            raise TypeError
        size = count * _BYTES[kind.name]
        if key not in self.storages:
            self.storages[key] = size
            self._left -= size
        if self._left < 0 or self.storages[key] != size:
            raise RefusedError("it lacks some of its numbers")
        self.push(_Storage(_BYTES[kind.name], size))

    def copy(self, size: int, methods: frozenset[str]) -> _Dict:
        """Make a stand-in for a dict with this number of copied items."""
        made = _Dict()
        made.size, made.methods = size, methods
        self.copied += size
        return made


def _known(argument: str) -> _Name:
    """Return the name if weights need it.

    Raises:
        RefusedError: If they do not, whatever PyTorch permits.
    """
    shown = argument.replace(" ", ".")
    if argument not in _CALLS and argument not in _BYTES and shown not in PLAIN:
        raise RefusedError(f"it holds {printable(shown)}, which weights do not need")
    return _Name(argument)


def _checked_keys(keys: Collection[Any]) -> frozenset[str]:
    """Return the keys that are also names of a dict's methods, which they would hide as attributes.

    A name may take no time to be looked up, as tuples of tuples do, or any number.
    """
    for key in keys:
        if type(key) is int and key.bit_length() > 64:
            raise TypeError
        if type(key) not in {str, int, float, bool, type(None)}:
            raise RefusedError("it holds names that are neither text nor numbers")
    return frozenset(key for key in keys if type(key) is str and hasattr(OrderedDict, key))


def _check_numbers(numbers: Any) -> None:
    """Check the sizes or strides of a tensor."""
    if type(numbers) not in {list, tuple} or len(numbers) > _DIMENSIONS:
        raise TypeError
    if any(type(number) is not int or number < 0 for number in numbers):
        raise TypeError


def _ordered(machine: _Machine, pairs: Any = ()) -> _Dict:
    """Make an OrderedDict; a pickle of Python 2 passes its items as an argument."""
    if type(pairs) not in {list, tuple} or any(type(pair) not in {list, tuple} for pair in pairs):
        raise TypeError
    return machine.copy(len(pairs), _checked_keys([key for key, _ in pairs]))


def _counter(machine: _Machine, counts: Any) -> _Dict:
    """Make the `Counter` in which a learning-rate schedule keeps its milestones."""
    if type(counts) is not _Dict:
        raise TypeError
    return machine.copy(counts.size, counts.methods)


def _size(_: _Machine, lengths: Any) -> tuple[int, ...]:
    _check_numbers(lengths)
    return tuple(lengths)


def _device(_: _Machine, kind: Any, index: Any = 0) -> object:
    if type(kind) is not str or type(index) is not int:
        raise TypeError
    return object()


def _tensor(_: _Machine, *arguments: Any, number: int = 0) -> _Tensor:
    """Make a tensor of numbers in the file, of `number` bytes each if not those of the storage."""
    storage, offset, shape, strides, *more = arguments
    grad, *dicts = (*more, False, None)[: max(2, len(more))]
    if type(storage) is not _Storage or len(shape) != len(strides) or type(grad) is not bool:
        raise TypeError
    if len(dicts) > 2 or any(type(each) not in {_Dict, type(None)} for each in dicts):
        raise TypeError
    for numbers in ((offset,), shape, strides):
        _check_numbers(numbers)
    steps = sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
    if all(shape) and (offset + steps + 1) * (number or storage.number) > storage.size:
        raise RefusedError("it lacks some of its numbers")
    return _Tensor()


def _typed_tensor(machine: _Machine, *arguments: Any) -> _Tensor:
    """Make a tensor of a dtype for which there is no storage class."""
    dtype = arguments[6]
    return _tensor(machine, *arguments[:6], *arguments[7:], number=_BYTES[dtype.name])


def _parameter(_: _Machine, data: Any, grad: Any, hooks: Any) -> _Tensor:
    if type(data) is not _Tensor or type(grad) is not bool or type(hooks) is not _Dict:
        raise TypeError
    return data


_CALLS: Mapping[str, Callable[..., Any]] = {
    "collections OrderedDict": _ordered,
    "collections Counter": _counter,
    "torch Size": _size,
    "torch device": _device,
    "torch._utils _rebuild_tensor": _tensor,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _typed_tensor,
    "torch._utils _rebuild_parameter": _parameter,
}
"""What may be called."""
_STEPS: Mapping[str, Callable[[_Machine], None]] = {
    "MARK": _Machine.mark,
    "TUPLE": lambda machine: machine.push(tuple(machine.marked())),
    "EMPTY_LIST": lambda machine: machine.push([]),
    "EMPTY_DICT": lambda machine: machine.push(_Dict()),
    "APPEND": lambda machine: machine.extend(machine.last(1)),
    "APPENDS": lambda machine: machine.extend(machine.marked()),
    "SETITEM": lambda machine: machine.update(machine.last(2)),
    "SETITEMS": lambda machine: machine.update(machine.marked()),
    "NEWOBJ": _Machine.new,
    "BUILD": _Machine.build,
    "REDUCE": _Machine.call,
    "BINPERSID": _Machine.storage,
}
"""What else PyTorch's unpickler does."""
