"""Looks at the pickles of a PyTorch file before PyTorch's restricted unpickler runs them.

They run no code there, but a few hundred bytes of them can build tuples within tuples, the hash of
which takes years, or ask for gigabytes of empty bytes.
"""

import io
import pickletools
import zipfile
from typing import Any

import torch

_LARGEST = 100_000
"""The most items of a tuple, with those of the tuples in it."""
_PICKLES = 5
"""Pickles at the start of a file of PyTorch's old format."""
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def check_pickles(content: bytes) -> None:
    """Look at a file that `torch.save` may have written.

    Raises:
        ValueError: If it is compressed, or its pickles take memory or time without end.
    """
    if not zipfile.is_zipfile(io.BytesIO(content)):
        stream = io.BytesIO(content)
        for _ in range(_PICKLES):
            _check(stream)
        return
    reader = torch._C.PyTorchFileReader(io.BytesIO(content))
    if "constants.pkl" in reader.get_all_records():
        return  # TorchScript, which PyTorch refuses
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("its archive is compressed")
    _check(io.BytesIO(reader.get_record("data.pkl")))


def _check(stream: io.BytesIO) -> None:
    """Check a pickle; damaged ones are left to PyTorch, which reports them."""
    machine = _Machine()
    operations = pickletools.genops(stream)
    while True:
        try:
            operation, argument, _ = next(operations)
            machine.take(operation, argument)
        except (StopIteration, IndexError, KeyError, ValueError):
            return
        if machine.stack and machine.stack[-1] > _LARGEST:
            raise ValueError("it holds tuples within tuples without end")
        if operation.name in {"GLOBAL", "STACK_GLOBAL"} and str(argument).endswith("bytearray"):
            raise ValueError("it holds Python objects")


class _Machine:
    """The unpickler's stack, with the number of items in place of each object."""

    def __init__(self) -> None:
        self.stack: list[int] = []
        self._marks: list[list[int]] = []
        self._memo: dict[int, int] = {}

    def take(self, operation: Any, argument: Any) -> None:
        """Take a step."""
        name = operation.name
        if name == "MARK":
            self._marks.append(self.stack)
            self.stack = []
        elif name == "TUPLE":
            inside, self.stack = self.stack, self._marks.pop()
            self.stack.append(1 + sum(inside))
        elif name in _TUPLES:
            inside = self.stack[-_TUPLES[name] :]
            del self.stack[-_TUPLES[name] :]
            self.stack.append(1 + sum(inside))
        elif name in {"BINPUT", "LONG_BINPUT"}:
            self._memo[argument] = self.stack[-1]
        elif name in {"BINGET", "LONG_BINGET"}:
            self.stack.append(self._memo[argument])
        elif pickletools.markobject in operation.stack_before:  # they end in what was before it
            self.stack = self._marks.pop()
        else:
            del self.stack[len(self.stack) - len(operation.stack_before) :]
            self.stack.extend([1] * len(operation.stack_after))
