"""`noise.jsonl`: the secret key of a private run's noise, and the sums that it has released.

Who has the key can take the noise off again, so the file is for its owner alone. The key comes from
the operating system: noise from the run's seed, which is in its config, would protect nobody.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from coterie.aggregation.noise import Spent
from coterie.errors import ConfigError
from coterie.tracking.atomic import replacing

_KEY_BYTES = 32
_SPENT = TypeAdapter(Spent)


@dataclass(frozen=True)
class NoiseFile:
    """The file of one run.

    Attributes:
        path: Where it is.
    """

    path: Path

    def open(self, *, begun: bool, released: int = 0) -> tuple[bytes, list[Spent]]:
        """The key and the released sums, in a new file with a new key if there is none.

        Args:
            begun: Whether the run has begun, so that the file must be there.
            released: How many sums the run has released at least, by its checkpoint.

        Raises:
            ConfigError: If it is missing or damaged, or lacks sums that were released.
        """
        if not self.path.exists() and not begun:
            with replacing(self.path, private=True) as temporary:
                temporary.write_text(json.dumps({"key": secrets.token_hex(_KEY_BYTES)}) + "\n")
        try:
            text = self.path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]  # a line that was not finished was not released
            if whole != text:
                os.truncate(self.path, len(whole.encode()))
            key, spent = _read(whole)
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.path}: the run's noise and what it has spent cannot be read "
                f"({type(error).__name__}); restore the file, or start another run."
            ) from error
        if len(spent) < released:
            raise ConfigError(
                f"{self.path}: it has {len(spent)} sums, but the run has released {released}, and "
                "ε would be understated; restore the file, or start another run."
            )
        return key, spent

    def append(self, spent: Spent) -> None:
        """Write a sum down, and wait until it is on disk, before it is released."""
        line = json.dumps(asdict(spent)) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read(text: str) -> tuple[bytes, list[Spent]]:
    first, *others = text.splitlines()
    key = bytes.fromhex(json.loads(first)["key"])
    if len(key) != _KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key, [_SPENT.validate_json(line) for line in others]
