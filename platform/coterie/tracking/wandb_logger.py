"""Weights & Biases, imported here alone and only if a run uses it."""

import logging
import netrc
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from lightning.pytorch.loggers import WandbLogger

from coterie.config.schema import WandbConfig
from coterie.errors import ConfigError
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.formatting import display_path

_log = logging.getLogger(__name__)

Mode = Literal["online", "offline", "disabled"]
_ENVIRONMENT_MODES: Mapping[str, Mode] = {
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
_START_TIMEOUT_S = 20.0
"""Longest delay of a run's start by an unreachable server; the run then goes on without it."""


class WandbRunLogger(WandbLogger):
    """Lightning's W&B logger for a run that only the driver tracks.

    `save` starts the W&B run. `finalize` ends it, so that it is uploaded and marked as completed or
    failed before the process goes on. Every row has its step as `trainer/global_step`, the x-axis
    of all charts, because W&B's own counter cannot go back on resume.
    """

    def log_hyperparams(self, params: Any) -> None:
        """Do nothing: W&B has the config from the start of the run."""

    def save(self) -> None:
        """Start the W&B run if it has not started, so that it is visible from the first round.

        Raises:
            wandb.Error: If an online run cannot be started.
        """
        self._wandb_init.pop("anonymous", None)  # Lightning's None makes W&B warn in the terminal
        _ = self.experiment

    def finalize(self, status: str) -> None:
        """End the W&B run; anything but "success" marks it as failed."""
        if self._experiment is None:
            return
        super().finalize(status)
        folder, offline = Path(self._experiment.dir).parent, self._experiment.offline
        self._experiment.finish(exit_code=0 if status == "success" else 1)
        if offline:
            _log.info("W&B was offline: upload the run with wandb sync %s", display_path(folder))


def build_wandb_logger(
    config: WandbConfig, directory: Path, run_name: str, resolved_config: Mapping[str, Any]
) -> WandbRunLogger:
    """Build the W&B logger of a run; nothing is started or sent yet.

    An online run keeps its id in `<directory>/wandb/run_id`, so that a resumed run continues it.
    Offline runs cannot be continued, so a resumed run gets a new id.

    Args:
        config: The project, the account and the mode.
        directory: The run directory; W&B's files go to `wandb/` in it.
        run_name: The run's name on W&B.
        resolved_config: The config that W&B shows for the run.

    Raises:
        ConfigError: If W&B is to be online and no API key is known.
    """
    import wandb

    mode = resolve_mode(config)
    settings = wandb.Settings(
        # Silent, and stdout not wrapped: the terminal belongs to the run's own view.
        silent=True,
        console="off",
        init_timeout=_START_TIMEOUT_S,
        # A new run, even if something else in this process uses W&B.
        reinit="create_new",
    )
    return WandbRunLogger(
        name=run_name,
        save_dir=directory,
        version=_persistent_id(directory) if mode == "online" else None,
        project=config.project,
        entity=config.entity,
        config=dict(resolved_config),
        mode=mode,
        settings=settings,
    )


def resolve_mode(config: WandbConfig) -> Mode:
    """Choose the mode of W&B, never one in which it would ask for a key in the terminal.

    `auto` follows WANDB_MODE=offline or disabled; else it is online if a key is known.

    Raises:
        ConfigError: If W&B is to be online and no API key is known.
    """
    if config.mode == "offline":
        return "offline"
    if config.mode == "auto":
        asked = _ENVIRONMENT_MODES.get(os.environ.get("WANDB_MODE", ""))
        return asked or ("online" if api_key_known() else "offline")
    if not api_key_known():
        raise ConfigError(
            "tracking.wandb.mode=online: no API key is known; run wandb login, set WANDB_API_KEY, "
            "or choose tracking.wandb.mode=offline."
        )
    return "online"


def api_key_known() -> bool:
    """Whether WANDB_API_KEY is set or the netrc file has an entry for the W&B server."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    server = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    given = os.environ.get("NETRC")
    paths = [Path(given)] if given else [Path.home() / ".netrc", Path.home() / "_netrc"]
    path = next((path.expanduser() for path in paths if path.expanduser().is_file()), None)
    if path is None:
        return False
    try:
        entry = netrc.netrc(path).authenticators(urlsplit(server).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return False  # W&B cannot read it either
    return entry is not None and bool(entry[2])


def _persistent_id(directory: Path) -> str:
    """The W&B id of the run in this directory, created at the first call."""
    path = directory / "wandb" / "run_id"
    if not path.is_file():
        write_text_atomically(path, secrets.token_hex(4) + "\n")
    return path.read_text(encoding="utf-8").strip()
