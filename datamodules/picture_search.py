"""Finds the pictures in folders: regular files, once each, despite links between folders."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from coterie.config.regular_files import system_devices
from coterie.datamodules import picture_files
from coterie.datamodules.dicom import is_dicom_file
from coterie.datamodules.spelling import spelled
from coterie.errors import DataError

EXTENSIONS = (*picture_files.EXTENSIONS, ".dcm", ".dicom")
"""Extensions of pictures: more than torchvision's ImageFolder knows, and DICOM's."""

_LITTER = frozenset(
    {
        *("__macosx", "lost+found", "$recycle.bin", "system volume information"),
        *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp"),
        *("network trash folder", "temporary items", "__pycache__"),
    }
)
"""Names, in small letters, of folders that systems and their services make."""

_MOST, _DEEPEST = 1_000_000, 64
"""The most folders that are entered, and the longest path in folders."""

_logger = logging.getLogger(__name__)


@dataclass
class PictureSearch:
    """A search through some folders, which counts the other files that it meets.

    Hidden files and folders are passed over. Links are followed, but no folder below the one that
    is searched is entered twice, so that a loop of links ends.

    Attributes:
        others: Number of files of other kinds, by extension.
        litter: Number of folders of the system that are passed over, by name.
    """

    others: Counter[str] = field(default_factory=Counter)
    litter: Counter[str] = field(default_factory=Counter)

    def find(self, folder: Path) -> list[Path]:
        """List the pictures in a folder and the folders below it, sorted.

        Pictures are regular files with a picture's extension, and DICOM files without extension.

        Raises:
            DataError: If the folder is missing, cannot be listed, or holds none.
        """
        if not folder.is_dir():
            raise DataError(
                f"{folder}: there is no such folder; set data.path to one with pictures."
            )
        here: Counter[str] = Counter()
        local = isinstance(folder, Path)
        walk = _walk(folder, set(), here, self.litter)
        found = sorted(walk if local else _listing(folder, here, self.litter))
        self.others += here
        if not found:
            but = f", but {_listed(here)}; convert them" if here else "; put some there"
            raise DataError(
                f"{folder}: there are no pictures ({', '.join(EXTENSIONS)}) in it{but}, or take "
                "the folder out."
            )
        return found

    def pass_over(self, folder: Path) -> None:
        """Count a folder's visible files, which are left out if its folders hold the pictures."""
        for entry in _entries(folder) if isinstance(folder, Path) else ():
            kind = _kind(entry)
            if kind != "folder":
                self.others[kind] += 1
            elif is_litter(entry.name):
                self.litter[entry.name] += 1

    def tell(self, folder: Path) -> None:
        """Warn once about files that were left out, if any, and once about folders."""
        if self.litter:
            _logger.warning(
                "%s: folders that operating systems make are skipped (%s).",
                *(spelled(str(folder)), _listed(self.litter)),
            )
        if self.others:
            count = self.others.total()
            what = (
                "files are not pictures by their" if count > 1 else "file is not a picture by its"
            )
            _logger.warning(
                "%s: %d %s extension or place, and %s left out (%s).",
                spelled(str(folder)),
                count,
                what,
                "are" if count > 1 else "is",
                _listed(self.others),
            )


def is_litter(name: str) -> bool:
    """Return whether a folder of this name is made by a system, and not by a person."""
    return name.lower() in _LITTER


def _walk(
    folder: Path, entered: set[tuple[int, int]], others: Counter[str], litter: Counter[str]
) -> Iterator[Path]:
    pending, system = [folder], system_devices()
    while pending:
        here = pending.pop()
        status = here.stat()
        if (status.st_dev, status.st_ino) in entered:
            continue
        entered.add((status.st_dev, status.st_ino))
        if status.st_dev in system or len(entered) > _MOST or len(here.parts) > _DEEPEST:
            raise DataError(
                f"{folder}: it leads to {here}, a folder of the system or an endless loop; "
                "give a folder of pictures, or take the link out."
            )
        below = []
        for entry in _entries(here):
            kind = _kind(entry)
            if kind == "folder" and is_litter(entry.name):
                litter[entry.name] += 1
            elif kind == "folder":
                below.append(Path(entry.path))
            elif kind == "picture":
                yield Path(entry.path)
            else:
                others[kind] += 1
        pending += reversed(below)


def _listing(folder: Any, others: Counter[str], litter: Counter[str]) -> Iterator[Any]:
    """Return the pictures below a folder at a URL, by extension."""
    start = folder.path.rstrip("/") + "/"
    for name in folder.fs.find(start):
        inside = PurePosixPath(name.removeprefix(start))
        if any(part.startswith(".") for part in inside.parts):
            continue
        if passed := [part for part in inside.parts[:-1] if is_litter(part)]:
            litter[passed[0]] = 1
            continue
        if inside.suffix.lower() in EXTENSIONS:
            yield folder / str(inside)
        else:
            others[inside.suffix.lower() or "without extension"] += 1


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the visible entries of a folder, sorted."""
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(
            f"{folder}: it cannot be listed ({error.strerror}); change its permissions, or take "
            "it out."
        ) from error
    return sorted(visible, key=lambda entry: entry.name)


def _kind(entry: os.DirEntry[str]) -> str:
    """Return what an entry is: "folder", "picture", or another kind, in words."""
    try:
        if entry.is_dir():
            return "folder"
        if not entry.is_file():
            return "broken links" if entry.is_symlink() else "pipes or devices"
    except OSError:  # a link to itself, or to a folder that is closed
        return "broken links"
    suffix = Path(entry.name).suffix.lower()
    if suffix in EXTENSIONS or (not suffix and is_dicom_file(Path(entry.path))):
        return "picture"
    return suffix or "without extension"


def _listed(others: Counter[str]) -> str:
    shown = [f"{count} {kind}" for kind, count in others.most_common(5)]
    return ", ".join(shown if len(others) <= 5 else [*shown, "…"])
