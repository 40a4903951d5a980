"""What the data sets share that torchvision downloads."""

from abc import abstractmethod
from pathlib import Path
from typing import TypeVar

from coterie.errors import DataError
from datamodules.base import ImageConfig, ImageDataModule


class DownloadConfig(ImageConfig):
    """The keys of the data sets that torchvision downloads."""

    download: bool = False
    """Let torchvision download the files into the root folder if they are not there yet."""


DownloadConfigT = TypeVar("DownloadConfigT", bound=DownloadConfig)


class DownloadedDataModule(ImageDataModule[DownloadConfigT]):
    """Base of the data sets that torchvision downloads; a data set adds `fetch` and `complete`."""

    @abstractmethod
    def complete(self) -> bool:
        """Whether all files are there."""

    @abstractmethod
    def fetch(self, root: Path) -> None:
        """Download with torchvision; importing it takes a second, so only here."""

    def prepare_data(self) -> None:
        """With `download=true`, fetch the files unless they are there.

        Raises:
            DataError: If they cannot be fetched.
        """
        if not self.config.download or self.complete():
            return
        try:
            self.fetch(self.root())
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
            raise DataError(
                f"{self.title}: download=true, but fetching the files into {self.root()} failed "
                f"({reason}); put them there by hand and set download=false."
            ) from error
