"""`noise.jsonl`: the random part of a private run's noise key, and the sums that were released.

Who has the key can take the noise off again. It is made of a random number, which is in the file,
and of the user's secret, which is not: the key of a run folder from somebody else would not protect
this user's data, so it is refused. Noise from the run's seed, which is in its config, would protect
nobody.
"""

import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from coterie.aggregation.noise import Spent
from coterie.config.given_path import given_path
from coterie.config.regular_files import open_regular
from coterie.errors import ConfigError, reason
from coterie.tracking.atomic import replacing
from coterie.tracking.paths import part_links

SECRET_VARIABLE = "COTERIE_NOISE_SECRET"  # noqa: S105 - a name
"""Environment variable with the path of the user's secret; by default in the home."""
_KEY_BYTES = 32
_SPENT = TypeAdapter(Spent)


@dataclass(frozen=True)
class NoiseFile:
    """The file of one run."""

    path: Path

    def open(self, *, begun: bool, released: int = 0) -> tuple[bytes, list[Spent]]:
        """Return the key and the released sums, from a new file with a new key if there is none.

        Args:
            begun: Whether the run has begun, so that the file must be there.
            released: How many sums the run has released at least, by its checkpoint.

        Raises:
            ConfigError: If it is missing or damaged, was made with another user's secret, or lacks
                sums that were released.
        """
        secret = _own_secret()
        if not self.path.exists() and not begun:
            salt = secrets.token_hex(_KEY_BYTES)
            begun_with = {"salt": salt, "check": _check(_key(secret, salt))}
            with replacing(self.path, private=True) as temporary:
                temporary.write_text(json.dumps(begun_with) + "\n")
        part_links(self.path, private=True)
        try:
            with open_regular(self.path) as file:
                text = file.read().decode("utf-8")
            whole = text[: text.rfind("\n") + 1]  # a line that was not finished was not released
            if whole != text:
                os.truncate(self.path, len(whole.encode()))
            first, *others = whole.splitlines()
            known = json.loads(first)
            key, check = _key(secret, known["salt"]), str(known["check"])
            spent = [_SPENT.validate_json(line) for line in others]
        except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"{self.path}: the run's noise and what it has spent cannot be read "
                f"({type(error).__name__}); restore the file, or start another run."
            ) from error
        if not hmac.compare_digest(check.encode(), _check(key).encode()):
            raise ConfigError(
                f"{self.path}: the run's noise key is not from your secret, and whoever has it can "
                f"remove the noise; if it is yours, set {SECRET_VARIABLE} to your secret, or start "
                "another run."
            )
        if len(spent) < released:
            raise ConfigError(
                f"{self.path}: it has {len(spent)} sums, but the run has released {released}, so "
                "ε would be understated; restore the file, or start another run."
            )
        return key, spent

    def append(self, spent: Spent) -> None:
        """Write a sum to disk, and wait until all of it is there, before the sum is released."""
        line = json.dumps(asdict(spent)) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "ab") as file:
            file.write(line.encode())
            file.flush()  # raises unless the whole line is written, unlike os.write
            os.fsync(descriptor)


def _key(secret: bytes, salt: str) -> bytes:
    """Return a run's noise key."""
    if len(bytes.fromhex(salt)) != _KEY_BYTES:
        raise ValueError("no salt")
    return hmac.digest(secret, b"noise " + bytes.fromhex(salt), "sha256")


def _check(key: bytes) -> str:
    """Return a value that identifies a key without revealing it."""
    return hmac.digest(key, b"check", "sha256").hex()


def _own_secret() -> bytes:
    """Return the user's secret, which is made at its first use."""
    given = os.environ.get(SECRET_VARIABLE)
    path = given_path(SECRET_VARIABLE, given or "~/.coterie/noise_secret")
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), _private_file(path) as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
        with open_regular(path) as file:
            status, secret = os.fstat(file.fileno()), file.read()
    except OSError as error:
        raise ConfigError(
            f"{path}: the secret of your private runs' noise cannot be read ({reason(error)}); "
            f"change its permissions, or set {SECRET_VARIABLE} to another file."
        ) from error
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or len(secret) < _KEY_BYTES:
        raise ConfigError(
            f"{path}: the secret of your private runs' noise must be readable by you alone and "
            f"have at least {_KEY_BYTES} bytes; chmod 600 it, or set {SECRET_VARIABLE} to another "
            "file."
        )
    return secret


@contextmanager
def _private_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a new file for its owner only, which appears complete."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.link(name, path)
    finally:
        Path(name).unlink()
