"""`noise.jsonl`: the secret key of a private run's noise, and the sums that it has released.

Who has the key can take the noise off again, so the file is for its owner alone. The key comes from
the operating system: noise from the run's seed, which is in its config, would protect nobody.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from coterie.errors import ConfigError
from coterie.rounds.privacy import Spent
from coterie.tracking.atomic import replacing

_KEY_BYTES = 32


@dataclass(frozen=True)
class NoiseFile:
    """The file of one run.

    Attributes:
        path: Where it is.
    """

    path: Path

    def open(self, *, begun: bool) -> tuple[bytes, list[Spent]]:
        """The key and the released sums, in a new file with a new key if there is none.

        Args:
            begun: Whether the run has released sums already, so that the file must be there.

        Raises:
            ConfigError: If it is missing or damaged.
        """
        if not self.path.exists() and not begun:
            with replacing(self.path, private=True) as temporary:
                temporary.write_text(json.dumps({"key": secrets.token_hex(_KEY_BYTES)}) + "\n")
        try:
            text = self.path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]  # a line that was not finished was not released
            if whole != text:
                os.truncate(self.path, len(whole.encode()))
            first, *others = map(json.loads, whole.splitlines())
            spent = [Spent(**{**line, "clients": tuple(line["clients"])}) for line in others]
            return bytes.fromhex(first["key"]), spent
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.path}: the run's noise and what it has spent cannot be read "
                f"({type(error).__name__}); restore the file, or start another run."
            ) from error

    def append(self, spent: Spent) -> None:
        """Write a sum down, and wait until it is on disk, before it is released."""
        line = json.dumps(asdict(spent)) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
