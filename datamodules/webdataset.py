"""Pictures in tar files in WebDataset's layout: a picture and its label share a name."""

import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field

from coterie.datamodules.base import Half
from coterie.datamodules.custom_data import CustomData, PicturesConfig, number_classes
from coterie.datamodules.picture_search import EXTENSIONS
from coterie.datamodules.remote import opened
from coterie.datamodules.source import Source, source_from_pictures
from coterie.datamodules.stored import FilePart
from coterie.errors import DataError

_LONGEST_LABEL = 4096
_LONGEST_HEADERS = 1 << 16
"""Bytes of all headers of a member."""
_LONG_NUMBER = re.compile(rb"\d{200}")
"""Digits on which tarfile takes time with the square of their number."""
_MOST_COMMON = 100
"""Keys in the headers of a whole file, of which each member has a copy."""


class WebDataset(CustomData["WebDataset.Config"]):
    """Pictures in one tar file, or in all of a folder, sorted; the files are not unpacked.

    Reads <path>, <path>/*.tar, or if both <path>/train and <path>/test exist, the tar files in
    each. A sample is the files `name.jpg`, `name.cls`, …, next to each other.
    """

    class Config(PicturesConfig):
        """Config of tar files."""

        label_extension: str = Field(default="cls", min_length=1)
        """Extension of the files that hold a label as text; samples without such a file have no
        label."""

    def has_test(self) -> bool:
        """Return whether both `train` and `test` exist."""
        return (self.path / "train").is_dir() and (self.path / "test").is_dir()

    def open_half(self, half: Half) -> Source:
        """List the pictures of a half's tar files.

        Raises:
            DataError: If there are none, or a file is no plain tar file.
        """
        folder = self.path / half if self.has_test() else self.path
        files = sorted(folder.glob("*.tar")) if folder.is_dir() else [folder]
        if not files or not all(path.is_file() for path in files):
            raise DataError(f"data.path={folder}: there are no tar files; give a .tar or a folder.")
        pictures, names, labels = [], [], []
        for path in files:
            for name, part, label in self._samples(path):
                pictures.append(part)
                names.append(f"{path}, {name}")
                labels.append(label)
        if not pictures:
            raise DataError(f"data.path={folder}: its tar files hold no pictures; check them.")
        source = source_from_pictures(pictures, names, self.config.pixel_format)
        if all(label is None for label in labels):
            return source
        known = self.train_classes if half == "test" and self.has_test() else None
        numbers, classes = number_classes(_as_numbers(labels), f"{folder}, {self._label}", known)
        return replace(source, labels=numbers, classes=classes)

    @property
    def _label(self) -> str:
        return "." + self.config.label_extension.removeprefix(".").lower()

    def _samples(self, path: Path) -> Iterator[tuple[str, FilePart, str | None]]:
        """Yield each picture of a tar file: its name, place and label."""
        key, picture, label = None, None, None
        for member, content in self._members(path):
            own, extension = _split(member.name)
            if own != key:
                if picture is not None:
                    yield (*picture, label)
                key, picture, label = own, None, None
            if "." + extension.rpartition(".")[2] in EXTENSIONS and picture is None:
                picture = member.name, FilePart(path, member.offset_data, member.size)
            elif content is not None:
                label = content.decode("utf-8", "replace").strip()
        if picture is not None:
            yield (*picture, label)

    def _members(self, path: Path) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
        """Return the regular files of a tar file, with the content of labels."""
        try:
            with (
                opened(path) as file,
                tarfile.open(fileobj=(headers := _Headers(file)), mode="r:") as archive,  # type: ignore[call-overload]  # it needs no more
            ):
                while (member := archive.next()) is not None:
                    archive.members = []  # tarfile would keep all
                    headers.left = _LONGEST_HEADERS
                    if len(archive.pax_headers) > _MOST_COMMON:
                        raise tarfile.ReadError("a header for all files with over 100 keys")
                    if member.size < 0:
                        raise tarfile.ReadError("a file of negative size")
                    if not member.isreg() or member.issparse():
                        continue
                    is_label = "." + _split(member.name)[1] == self._label
                    content: Any = archive.extractfile(member) if is_label else None
                    yield member, None if content is None else content.read(_LONGEST_LABEL)
        except (tarfile.TarError, OSError, EOFError, OverflowError, ValueError) as error:
            raise DataError(
                f"{path}: it cannot be read as a tar file ({error}); unpack compressed ones, or "
                "fetch it again."
            ) from error


class _Headers:
    """A tar file with a limit on what is read for a member, as headers may claim any length."""

    def __init__(self, file: Any) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell
        self.left = _LONGEST_HEADERS

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        self.left -= size
        if size < 0 or self.left < 0:
            raise tarfile.ReadError("headers of more than 64 KiB")
        content: bytes = self._file.read(size)
        if _LONG_NUMBER.search(content):
            raise tarfile.ReadError("a number of 200 digits or more")
        return content


def _split(name: str) -> tuple[str, str]:
    """Split a member's file name at its first dot into key and extension."""
    path = PurePosixPath(name)
    stem, _, extension = path.name.partition(".")
    return str(path.parent / stem), extension.lower()


def _as_numbers(labels: list[str | None]) -> list[Any]:
    """Return labels as integers if all of them are."""
    known = [label for label in labels if label]
    if not all(label.removeprefix("-").isdecimal() for label in known):
        return list(labels)
    return [int(label) if label else None for label in labels]
