"""A saved model as an exported program, which predicts without the classes that trained it."""

import copy
import io
import logging
from pathlib import Path

import torch
from torch import Tensor, nn

from coterie.config.plain_files import read_bytes
from coterie.contract.clusterer import Clusterer, Prediction
from coterie.errors import DataError, out_of_memory, reason
from coterie.models.saved_model import WEIGHTS
from coterie.networks.program_file import Program, ProgramError, checked_program
from coterie.tracking.atomic import replacing

PROGRAM = "model.pt2"
"""Its name in a saved model's folder."""

_SPARE = 1 << 31
"""Bytes that a program may have in addition to twice those of the weights, which it includes."""
_CANNOT = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors that `torch.export` raises for networks that it cannot export."""

_log = logging.getLogger(__name__)


class SavedProgram(Program):
    """An exported program, which is pickled as the content of its file."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._content = content

    def forward(self, samples: Tensor) -> Prediction:
        """Run the program.

        Raises:
            DataError: If it cannot take the samples, or gives something else than a prediction.
        """
        try:
            return Prediction(*super().forward(samples))
        except Exception as error:  # what a graph from elsewhere raises
            if out_of_memory(error):
                raise
            raise DataError(
                f"The model's program cannot take samples of shape {tuple(samples.shape[1:])} "
                f"({reason(error)}); copy the model again."
            ) from error

    def __reduce__(self) -> tuple[type["SavedProgram"], tuple[bytes]]:
        """Pickle the content of the file."""
        return SavedProgram, (self._content,)


class _Plain(nn.Module):
    """A model whose result is a tuple, which PyTorch can load without Coterie."""

    def __init__(self, model: Clusterer) -> None:
        super().__init__()
        self.model = model

    def forward(self, samples: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return embedding and probabilities."""
        embedding, probabilities = self.model(samples)
        return embedding, probabilities


def write_program(folder: Path, model: Clusterer, sample: Tensor) -> None:
    """Write the program of a model, for any batch size.

    A model that `torch.export` cannot take has none; `load_program` then returns None.
    """
    path = folder / PROGRAM
    path.unlink(missing_ok=True)
    try:
        write_program_file(path, model, sample)
    except DataError as error:
        _log.info("%s", error)


def write_program_file(path: Path, model: Clusterer, sample: Tensor) -> None:
    """Write the program of a model to its own file.

    Raises:
        DataError: If `torch.export` cannot take the model.
    """
    try:
        checked = _exported(model, sample)
    except _CANNOT as error:
        raise DataError(f"{path}: torch.export cannot take the model ({reason(error)}).") from error
    with replacing(path) as temporary:
        temporary.write_bytes(checked)


def plain(model: Clusterer) -> nn.Module:
    """Return a copy of a model that returns a tuple and shares no memory.

    What came in a message is a view of the message.
    """
    whole = copy.deepcopy(model)
    own = {k: v.clone(memory_format=torch.contiguous_format) for k, v in whole.state_dict().items()}
    whole.load_state_dict(own, assign=True)
    return _Plain(whole)


def _exported(model: Clusterer, sample: Tensor) -> bytes:
    """Return the content of a program's file, for any batch size."""
    from torch.export import Dim, export, save  # a slow import

    content, batch = io.BytesIO(), torch.cat([sample] * 2)
    program = export(plain(model), (batch,), dynamic_shapes=({0: Dim("n")},))
    save(program, content)
    return checked_program(content.getvalue())


def load_program(folder: Path) -> SavedProgram | None:
    """Return the program of a saved model; None if it has none.

    Raises:
        DataError: If it is damaged, or holds more than a network.
    """
    path, weights = folder / PROGRAM, folder / WEIGHTS
    if not path.is_file():
        return None
    most = _SPARE + 2 * (weights.stat().st_size if weights.is_file() else 0)
    try:
        return SavedProgram(read_bytes(path, most))
    except (ProgramError, ValueError) as error:
        raise DataError(f"{path}: {error}; copy the model again.") from error
