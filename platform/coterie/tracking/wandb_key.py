"""Tells whether W&B has an API key for its server, without importing W&B or using the network.

W&B's own `login(prompt=False)` asks the server, and raises without one.
"""

import netrc
import os
from configparser import ConfigParser
from configparser import Error as MalformedError
from pathlib import Path
from urllib.parse import urlsplit

from coterie.config.given_path import given_path, home

_SERVERS = ("https://api.forge.coreweave.com", "https://api.wandb.ai")
"""W&B's public server, by its names in new and old versions."""


def api_key_known() -> bool:
    """Return whether there is a key: in the environment, W&B's settings or the netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = _settings()
    if settings.get("api_key"):
        return True
    given = os.environ.get("WANDB_BASE_URL") or settings.get("base_url", "")
    servers = _SERVERS if given.rstrip("/") in {"", *_SERVERS} else (given,)
    return any(_in_netrc(urlsplit(server).netloc) for server in servers)


def _settings() -> dict[str, str]:
    """Return W&B's settings of the user, overridden by those of the working directory."""
    own = os.environ.get("WANDB_CONFIG_DIR")
    there = Path(own) if own else (home() or Path()) / ".config" / "wandb"
    here = Path(os.environ.get("WANDB_DIR") or ".") / "wandb"
    found: dict[str, str] = {}
    for folder in (there, here):
        parser = ConfigParser(interpolation=None)
        try:
            parser.read(folder / "settings", encoding="utf-8")
        except (MalformedError, OSError, UnicodeDecodeError):
            continue  # W&B treats it as empty, too
        if parser.has_section("default"):
            found |= dict(parser["default"])
    return found


def _in_netrc(machine: str) -> bool:
    """Return whether the netrc file has a password for a server, by its name and port."""
    given = os.environ.get("NETRC")
    if given:
        paths = [given_path("NETRC", given)]
    else:
        paths = [(home() or Path()) / name for name in (".netrc", "_netrc")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return False
    try:
        entry = netrc.netrc(path).authenticators(machine)
    except (OSError, netrc.NetrcParseError):
        return False  # W&B cannot read it either
    return entry is not None and bool(entry[2])
