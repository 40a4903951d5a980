"""A saved model as an exported program: prediction needs none of the classes that trained it."""

import copy
import io
import logging
from pathlib import Path

import torch
from torch import Tensor

from coterie.contract.clusterer import Clusterer
from coterie.errors import DataError
from coterie.networks.program_file import Program, ProgramError, checked_program
from coterie.tracking.atomic import replacing

PROGRAM = "model.pt2"
"""Its name in a saved model's folder."""

_CANNOT = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What `torch.export` raises for networks that it cannot take."""

_log = logging.getLogger(__name__)


class SavedProgram(Program):
    """A program that travels to other processes as the content of its file."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._content = content

    def __reduce__(self) -> tuple[type["SavedProgram"], tuple[bytes]]:
        """Build it again from the content."""
        return SavedProgram, (self._content,)


def write_program(folder: Path, model: Clusterer, sample: Tensor) -> None:
    """Write the program of a model, for batches of any size.

    A model that `torch.export` cannot take has none; `load_program` then returns None.

    Args:
        folder: The saved model's.
        model: In eval mode, on the CPU.
        sample: A batch of one sample.
    """
    from torch.export import Dim, export, save  # a slow import

    (folder / PROGRAM).unlink(missing_ok=True)
    content = io.BytesIO()
    # Each tensor gets memory of its own: what came in a message is a view of the message.
    whole = copy.deepcopy(model)
    own = {k: v.clone(memory_format=torch.contiguous_format) for k, v in whole.state_dict().items()}
    whole.load_state_dict(own, assign=True)
    try:
        program = export(whole, (torch.cat([sample] * 2),), dynamic_shapes=({0: Dim("n")},))
        save(program, content)
        checked = checked_program(content.getvalue())
    except _CANNOT as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        _log.info("%s: the model is not exported (%s).", folder, reason)
        return
    with replacing(folder / PROGRAM) as temporary:
        temporary.write_bytes(checked)


def load_program(folder: Path) -> SavedProgram | None:
    """The program of a saved model; None if it has none.

    Raises:
        DataError: If it is damaged, or holds more than a network.
    """
    path = folder / PROGRAM
    if not path.is_file():
        return None
    try:
        return SavedProgram(path.read_bytes())
    except ProgramError as error:
        raise DataError(f"{path}: {error}; copy the model again.") from error
