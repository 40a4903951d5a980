"""An exported program as a frozen encoder: `encoder=exported encoder.path=FILE.pt2`."""

from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import Field, PrivateAttr, model_validator
from torch import Tensor

from coterie.config.file_digest import are_untouched, with_digest
from coterie.errors import ConfigError, DataError, reason
from coterie.networks.encoders import Encoder, ScalableConfig
from coterie.networks.frozen import frozen
from coterie.networks.program_file import Program, ProgramError
from coterie.networks.weight_files import read_file

PROGRAM = "encoder.pt2"
"""The program's name in a saved model."""


class Exported(ScalableConfig):
    """A frozen network of any origin, with weights, that `torch.export.save` wrote.

    It takes a batch of samples (n, …) with values in [0, 1], for any n, and returns
    representations (n, features). The class of the network need not be importable. The program
    travels with the config and is saved with the model. Programs that hold more than ATen's
    operators and plain tensors are refused.
    """

    path: Annotated[str, Field(min_length=1)]
    """The program, a .pt2 file."""
    digest: str | None = None
    """SHA-256 of the file. Filled in from the file; a given value must match."""
    _content: bytes = PrivateAttr(default=b"")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        return with_digest(given, file="path", digest="digest", section="encoder")

    @model_validator(mode="after")
    def _read(self) -> Self:
        """Read the program; a resolved config may outlive the file."""
        try:
            if not are_untouched():
                self._content = read_file("encoder.path", self.path)
        except ConfigError:
            if self.digest is None:
                raise
        return self

    @property
    def untrained(self) -> bool:
        """See `EncoderConfig.untrained`."""
        return False

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """Return the program as a frozen encoder; see `EncoderConfig.build`.

        Raises:
            DataError: If the file is damaged, or missing since the config was resolved.
        """
        if not self._content:
            raise DataError(
                f"encoder.path={self.path}: it is empty or no longer there; put it back."
            )
        try:
            with torch.device("cpu"):  # its tensors come with it, also while a model is built blank
                network = Program(self._content)
        except ProgramError as error:
            raise DataError(
                f"encoder.path={self.path}: {error}; write it with torch.export.save."
            ) from error
        try:
            with torch.no_grad(), torch.device("cpu"):
                found = network(torch.zeros(2, *shape))
        except Exception as error:  # what a graph from elsewhere raises
            raise ConfigError(
                f"encoder.path={self.path}: it cannot take 2 samples of shape {shape} "
                f"({reason(error)}); export it for samples of this shape, and for batches of any "
                "size."
            ) from error
        if not isinstance(found, Tensor) or found.ndim != 2 or not found.shape[1]:
            raise ConfigError(
                f"encoder.path={self.path}: it gives no tensor (samples, features); export the "
                "network without its classifier."
            )
        files = {PROGRAM: self._content}
        encoder = Encoder(network, int(found.shape[1]), files, unit_length=self.unit_length)
        return frozen(encoder)

    def among(self, folder: Path) -> ScalableConfig:
        """Return the same encoder, from the program in a saved model's folder."""
        return type(self)(
            path=str(folder / PROGRAM), digest=self.digest, unit_length=self.unit_length
        )
