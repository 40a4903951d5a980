"""Pictures in folders: a folder per class, a folder per client, or one folder."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.config.explain import one_of
from coterie.datamodules.base import Half
from coterie.datamodules.custom_data import CustomData, PicturesConfig
from coterie.datamodules.picture_search import PictureSearch, is_litter
from coterie.datamodules.source import Source, source_from_pictures
from coterie.datamodules.spelling import spelled, tell_if_merged
from coterie.errors import DataError

_TRAIN = ("train", "training")
_TEST = ("test", "testing", "val", "valid", "validation")
"""Names of folders of test samples; the first that exists counts."""

_logger = logging.getLogger(__name__)


class ImageFolder(CustomData[PicturesConfig]):
    """Unlabelled pictures in a folder and the folders below it, sorted by path."""

    class Config(PicturesConfig):
        """Config of a folder of pictures."""

    def open_half(self, half: Half) -> Source:
        """Find the pictures."""
        search = PictureSearch()
        paths = search.find(self.path)
        search.tell(self.path)
        return open_pictures(self.path, paths, self.config)


class ClassFolders(CustomData["ClassFolders.Config"]):
    """Pictures in a folder per class, as torchvision's ImageFolder reads them.

    Reads <path>/<class>/…; or, where `train` lies beside `test` or `val`, <path>/train/<class>/…
    and the other as the test set.
    """

    class Config(PicturesConfig):
        """Config of a folder per class."""

        classes: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
        """Folders to take, such as some of ImageNet's; by default all."""

    def has_test(self) -> bool:
        """Return whether there are folders of a training and a test set."""
        return "test" in self._halves

    def open_half(self, half: Half) -> Source:
        """Find the pictures of the training or test set, class by class."""
        classes = list(self._classes("train"))
        found = self._classes(half)
        new = [name for name in found if name not in classes]
        if new:
            raise DataError(
                f"{found[new[0]][0]}: there is no such class in {self._folder('train')}; take it "
                "out."
            )
        search = PictureSearch()
        search.pass_over(self._folder(half))
        pictures = {classes.index(name): _find(search, own) for name, own in found.items()}
        search.tell(self._folder(half))
        labels = np.repeat(list(pictures), [len(paths) for paths in pictures.values()])
        paths = [path for own in pictures.values() for path in own]
        source = open_pictures(self.path, paths, self.config)
        return replace(source, labels=labels.astype(np.int64), classes=tuple(classes))

    def _classes(self, half: Half) -> dict[str, list[Path]]:
        """Return the folders of the classes, or of those that are wanted."""
        found, wanted = subfolders(self._folder(half), "classes"), self.config.classes
        if wanted is None:
            return found
        missing = [name for name in wanted if name not in found]
        if missing and half == "train":
            raise DataError(
                f"data.classes=[{missing[0]}]: there is no such folder in {self._folder(half)}; "
                f"it {one_of(missing[0], found)}"
            )
        return {name: folders for name, folders in found.items() if name in wanted}

    def _folder(self, half: Half) -> Path:
        return self._halves.get(half, self.path)

    @cached_property
    def _halves(self) -> Mapping[Half, Path]:
        """The folders of training and test set; empty if the folders are classes."""
        if not self.path.is_dir():
            return {}
        folders = {path.name.lower(): path for path in _visible(self.path)}
        train = next((folders[name] for name in _TRAIN if name in folders), None)
        test = next((folders[name] for name in _TEST if name in folders), None)
        if train is None or (test is None and (len(folders) > 1 or not any(_visible(train)))):
            return {}
        left = [path.name for path in folders.values() if path not in (train, test)]
        if left:
            _logger.warning(
                "%s: %s holds the classes, and %s beside it are left out.",
                *(self.path, train.name, ", ".join(map(spelled, left[:5]))),
            )
        if test is None:
            return {"train": train}
        if test.name != "test":
            _logger.warning("%s: %s is taken as the test set.", self.path, test.name)
        return {"train": train, "test": test}


class ClientFolders(CustomData[PicturesConfig]):
    """Pictures in a folder per client, for `partition=by_client`.

    Reads <path>/<client>/… or <path>/<client>/<class>/…; a client need not have every class.
    """

    class Config(PicturesConfig):
        """Config of a folder per client."""

    def open_half(self, half: Half) -> Source:
        """Find the pictures, client by client."""
        clients = subfolders(self.path, "clients")
        _refuse_halves(
            clients, f"{self.path}: its folders", "clients", "give data.path as one of them"
        )
        search = PictureSearch()
        search.pass_over(self.path)
        pictures = {name: _find(search, folders) for name, folders in clients.items()}
        search.tell(self.path)
        paths = [path for own in pictures.values() for path in own]
        inside = [path.relative_to(self.path) for path in paths]
        owners = np.repeat(np.arange(len(pictures)), [len(own) for own in pictures.values()])
        source = replace(
            open_pictures(self.path, paths, self.config),
            owners=owners.astype(np.int64),
            owner_names=tuple(pictures),
        )
        loose = [len(path.parts) == 2 for path in inside]
        if all(loose):
            return source
        if any(loose):
            raise DataError(
                f"{paths[loose.index(True)]} lies in no class folder, but "
                f"{paths[loose.index(False)]} does; put all pictures in class folders, or none."
            )
        # Every folder is a class, even one called -1.
        found = [path.parts[1] for path in inside]
        names = [spelled(name) for name in found]
        tell_if_merged(found, names, f"{self.path}: classes")
        numbers = {name: number for number, name in enumerate(sorted(set(names)))}
        _refuse_halves(
            numbers, f"{self.path}: its clients' folders", "classes", "put classes right below"
        )
        labels = np.array([numbers[name] for name in names], dtype=np.int64)
        return replace(source, labels=labels, classes=tuple(numbers))


def open_pictures(folder: Path, paths: Sequence[Path], config: PicturesConfig) -> Source:
    """Return a source of picture files, without labels, whose names are paths in the folder."""
    names = [spelled(str(path)) for path in paths]
    source = source_from_pictures(paths, names, config.pixel_format)
    return replace(source, folder=spelled(str(folder)))


def subfolders(folder: Path, what: str) -> dict[str, list[Path]]:
    """Return the visible folders in a folder, by name and sorted, without the system's.

    Args:
        folder: The parent folder.
        what: What the folders stand for, in errors.

    Raises:
        DataError: If the folder is missing or has none.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; set data.path to one with {what}.")
    paths = _visible(folder)
    if not paths:
        raise DataError(
            f"{folder}: there are no folders of {what} in it; make one for each, or choose "
            f"data=image_folder for pictures without {what}."
        )
    names = [spelled(path.name) for path in paths]
    tell_if_merged([path.name for path in paths], names, f"{spelled(str(folder))}: {what}")
    found: dict[str, list[Path]] = {}
    for name, path in sorted(zip(names, paths, strict=True)):
        found.setdefault(name, []).append(path)
    return found


def _find(search: PictureSearch, folders: Iterable[Path]) -> list[Path]:
    return [path for folder in folders for path in search.find(folder)]


def _visible(folder: Path) -> list[Path]:
    """Return the visible folders in a folder, sorted, without the system's."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith(".") and not is_litter(path.name)
    ]


def _refuse_halves(names: Iterable[str], where: str, what: str, remedy: str) -> None:
    """Refuse folders named as training and test sets where other folders are expected."""
    given = {name.lower() for name in names}
    if given & set(_TRAIN) and given & set(_TEST) and given <= {*_TRAIN, *_TEST}:
        raise DataError(
            f"{where} are {' and '.join(sorted(given))}, which are parts of a data set, not "
            f"{what}; {remedy}."
        )
