r"""One spelling of names: Unicode NFC, with escapes for bytes that are not UTF-8.

Names of files are bytes; a zip from another system may have some that are not UTF-8. Such bytes are
spelled \xe4, as Python does, so that the file can be found again, and so are control characters,
which a terminal would obey. Accents that are letters of
their own (NFD, as macOS writes them) are joined with the letter before (NFC), so that one class has
one name.
"""

import logging
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

_logger = logging.getLogger(__name__)


def spelled(name: str) -> str:
    """Return the name in NFC, with escapes for control characters and bytes that are not UTF-8."""
    if name.isascii() and name.isprintable():
        return name
    try:
        name.encode()
        if any(unicodedata.category(sign) == "Cc" for sign in name):
            name = "".join(map(_escaped, name))
    except UnicodeEncodeError:
        with suppress(UnicodeEncodeError):  # it is of no file
            name = os.fsencode(name).decode(errors="surrogateescape")  # whatever the locale knows
        name = "".join(map(_escaped, name))
    return unicodedata.normalize("NFC", name)


def inside(folder: str, name: str) -> str:
    """Return a file's name relative to a folder; names outside the folder stay as they are."""
    return name.removeprefix(f"{folder.rstrip('/')}/")


def _escaped(sign: str) -> str:
    if sign == "\\":
        return r"\\"
    if unicodedata.category(sign) == "Cc":
        return f"\\x{ord(sign):02x}"
    if "\udc80" <= sign <= "\udcff":  # a byte that is not UTF-8, as Python reads file names
        return f"\\x{ord(sign) - 0xDC00:02x}"
    return f"\\u{ord(sign):04x}" if "\ud800" <= sign <= "\udfff" else sign


def tell_if_merged(names: Iterable[str], told: Sequence[str], what: str) -> None:
    """Warn about names that become equal by their spelling.

    Args:
        names: As they are found.
        told: What each is spelled as, in the same order.
        what: What they are and where, such as "/data: folders".
    """
    found: dict[str, set[str]] = defaultdict(set)
    for name, one in zip(names, told, strict=True):
        found[one].add(name)
    merged = [one for one, before in found.items() if len(before) > 1]
    if merged:
        _logger.warning(
            "%s %s are spelled in several ways, which differ in blanks or in how accents are "
            "stored; each is taken as one.",
            *(what, ", ".join(merged[:5]) + ("…" if len(merged) > 5 else "")),
        )
