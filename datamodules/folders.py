"""Pictures in folders: a folder per class, a folder per client, or one folder."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.datamodules.base import Half
from coterie.datamodules.own_data import OwnData, PicturesConfig
from coterie.datamodules.picture_search import PictureSearch
from coterie.datamodules.source import Source, source_from_pictures
from coterie.errors import DataError


class ImageFolder(OwnData[PicturesConfig]):
    """Unlabelled pictures in a folder and the folders below it, sorted by path."""

    class Config(PicturesConfig):
        """Config of a folder of pictures."""

    def open_half(self, half: Half) -> Source:
        """Find the pictures."""
        search = PictureSearch()
        paths = search.find(self.path)
        search.tell(self.path)
        return open_pictures(paths, self.config)


class ClassFolders(OwnData[PicturesConfig]):
    """Pictures in a folder per class, as torchvision's ImageFolder reads them.

    Reads <path>/<class>/…; if <path>/train and <path>/test both exist, <path>/train/<class>/… and
    <path>/test/<class>/…
    """

    class Config(PicturesConfig):
        """Config of a folder per class."""

    def has_test(self) -> bool:
        """Whether both `train` and `test` exist."""
        return (self.path / "train").is_dir() and (self.path / "test").is_dir()

    def open_half(self, half: Half) -> Source:
        """Find the pictures of a half, class by class."""
        classes = list(subfolders(self._folder("train"), "classes"))
        found = subfolders(self._folder(half), "classes")
        new = [name for name in found if name not in classes]
        if new:
            raise DataError(
                f"{found[new[0]]}: there is no such class in {self._folder('train')}; take it out."
            )
        search = PictureSearch()
        search.pass_over(self._folder(half))
        pictures = {classes.index(name): search.find(folder) for name, folder in found.items()}
        search.tell(self._folder(half))
        labels = np.repeat(list(pictures), [len(paths) for paths in pictures.values()])
        source = open_pictures([path for paths in pictures.values() for path in paths], self.config)
        return replace(source, labels=labels.astype(np.int64), classes=tuple(classes))

    def _folder(self, half: Half) -> Path:
        return self.path / half if self.has_test() else self.path


class ClientFolders(OwnData[PicturesConfig]):
    """Pictures in a folder per client, for `partition=by_client`.

    Reads <path>/<client>/… or <path>/<client>/<class>/…; a client need not have every class.
    """

    class Config(PicturesConfig):
        """Config of a folder per client."""

    def open_half(self, half: Half) -> Source:
        """Find the pictures, client by client."""
        clients = subfolders(self.path, "clients")
        search = PictureSearch()
        search.pass_over(self.path)
        pictures = {name: search.find(folder) for name, folder in clients.items()}
        search.tell(self.path)
        paths = [path for own in pictures.values() for path in own]
        inside = [path.relative_to(clients[name]) for name, own in pictures.items() for path in own]
        owners = np.repeat(np.arange(len(pictures)), [len(own) for own in pictures.values()])
        source = replace(
            open_pictures(paths, self.config),
            owners=owners.astype(np.int64),
            owner_names=tuple(pictures),
        )
        loose = [len(path.parts) == 1 for path in inside]
        if all(loose):
            return source
        if any(loose):
            raise DataError(
                f"{paths[loose.index(True)]} lies in no class folder, but "
                f"{paths[loose.index(False)]} does; put all pictures in class folders, or none."
            )
        # Every folder is a class, even one called -1.
        names = [path.parts[0] for path in inside]
        numbers = {name: number for number, name in enumerate(sorted(set(names)))}
        labels = np.array([numbers[name] for name in names], dtype=np.int64)
        return replace(source, labels=labels, classes=tuple(numbers))


def open_pictures(paths: Sequence[Path], config: PicturesConfig) -> Source:
    """Source of picture files, without labels."""
    names = [str(path) for path in paths]
    return source_from_pictures(paths, names, config.form)


def subfolders(folder: Path, what: str) -> dict[str, Path]:
    """List the visible folders in a folder, by name and sorted.

    Args:
        folder: The parent folder.
        what: What the folders stand for, in errors.

    Raises:
        DataError: If the folder is missing or has none.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; set data.path to one with {what}.")
    found = {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    }
    if not found:
        raise DataError(
            f"{folder}: there are no folders of {what} in it; make one for each, or choose "
            "data=image_folder for pictures without."
        )
    return found
