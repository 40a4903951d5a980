"""Base of the data sets that torchvision downloads."""

from pathlib import Path
from typing import ClassVar, TypeVar

from coterie.datamodules.base import ImageConfig, ImageDataModule
from coterie.errors import DataError


class DownloadConfig(ImageConfig):
    """Config keys of the data sets that torchvision downloads."""

    download: bool = False
    """Whether torchvision downloads missing files into the root folder."""


DownloadConfigT = TypeVar("DownloadConfigT", bound=DownloadConfig)


class DownloadedDataModule(ImageDataModule[DownloadConfigT]):
    """Base of the data sets that torchvision downloads and knows by the name of their class.

    Attributes:
        files: Paths below the root, all of which a complete data set has.
    """

    files: ClassVar[tuple[str, ...]] = ()

    def complete(self) -> bool:
        """Return whether all files exist."""
        return all((self.root() / file).is_file() for file in self.files)

    def fetch(self, root: Path) -> None:
        """Download with torchvision, which is imported only here because that takes a second."""
        from torchvision import datasets

        kinds = (getattr(datasets, each.__name__, None) for each in type(self).__mro__)
        next(filter(None, kinds))(root=str(root), download=True)

    def prepare_data(self) -> None:
        """Fetch missing files if `download=true`.

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
