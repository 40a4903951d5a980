"""Weights & Biases, imported only here, and only if a run uses it."""

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.loggers import WandbLogger

from coterie.config.given_path import home
from coterie.config.plain_files import read_bytes
from coterie.config.schema import WandbConfig
from coterie.errors import ConfigError
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.formatting import display_path
from coterie.tracking.paths import make_writable
from coterie.tracking.wandb_key import api_key_known

_log = logging.getLogger(__name__)

Mode = Literal["online", "offline", "disabled"]
_ENVIRONMENT_MODES: Mapping[str, Mode] = {
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
_TRUE = frozenset({"1", "t", "true", "y", "yes", "on"})
_ARTIFACT = "model_artifact"
"""The file beside W&B's own with the name of the artifact of the run's model."""
_NOTE_BYTES = 1 << 12
_taken: set[str] = set()
"""Ids of this process's runs."""
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

    def log_model_folder(self, folder: Path, metadata: Mapping[str, Any]) -> None:
        """Log a saved model as the artifact `model-<run id>`, and note its name for later runs."""
        import wandb

        run = self.experiment
        artifact = wandb.Artifact(f"model-{run.id}", type="model", metadata=dict(metadata))
        for path in sorted(folder.rglob("*")):  # add_dir writes to the terminal
            if path.is_file():
                artifact.add_file(str(path), name=path.relative_to(folder).as_posix())
        run.log_artifact(artifact)
        place = "/".join(part for part in (run.entity, run.project) if part)
        note = Path(run.dir).parents[1] / _ARTIFACT
        write_text_atomically(note, f"{place}/model-{run.id}:latest\n")

    def use_model(self, artifact: str) -> None:
        """Note that the run starts from another run's model; online it is W&B's lineage too."""
        import wandb

        run = self.experiment
        run.config.update({"pretrained_artifact": artifact})
        if run.offline:
            return
        try:
            run.use_artifact(artifact)
        except (wandb.Error, ValueError) as error:  # an offline run that was not uploaded
            reason = " ".join(str(error).split())
            _log.warning("W&B has no artifact %s (%s): upload its run first.", artifact, reason)

    def finalize(self, status: str) -> None:
        """End the W&B run; anything but "success" marks it as failed."""
        if self._experiment is None:
            return
        super().finalize(status)
        folder, offline = Path(self._experiment.dir).parent, self._experiment.offline
        self._experiment.finish(exit_code=0 if status == "success" else 1)
        if offline:
            _log.info("W&B was offline: upload the run with wandb sync %s", display_path(folder))


def model_artifact(folder: Path) -> str | None:
    """Return the name of a run model's artifact, given the run directory or `model/`.

    Else None.
    """
    notes = (place / "wandb" / _ARTIFACT for place in (folder, folder.parent))
    return next((name for note in notes if (name := _noted(note))), None)


def _noted(path: Path) -> str | None:
    """Return the name in a file of a run; None if it has none."""
    try:
        return read_bytes(path, _NOTE_BYTES).decode("utf-8").strip() or None
    except (OSError, ValueError):
        return None


def send_to_wandb(
    config: WandbConfig,
    directory: Path,
    run_name: str,
    resolved_config: Mapping[str, Any],
    fill: Callable[[WandbRunLogger], None],
) -> None:
    """Make a W&B run of existing files, such as those of a comparison or an evaluation.

    An outage causes a warning only: the files have everything.

    `fill` logs the content. W&B's own files go to `wandb/` in `directory`.

    Raises:
        ConfigError: If W&B is to be online and no API key is known.
    """
    logger = build_wandb_logger(config, directory, run_name, resolved_config)
    try:
        logger.save()
        fill(logger)
        logger.finalize("success")
    except Exception as error:  # noqa: BLE001 - trackers raise whatever their libraries do
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        _log.warning("W&B did not take %s (%s); the files have it.", run_name, reason)


def build_wandb_logger(
    config: WandbConfig, directory: Path, run_name: str, resolved_config: Mapping[str, Any]
) -> WandbRunLogger:
    """Build the W&B logger of a run; nothing is started or sent yet.

    A run keeps its id in `<directory>/wandb/run_id`, so that a resumed run continues it: online at
    once, offline when both of its parts are uploaded.

    Raises:
        ConfigError: If W&B is to be online and no API key is known.
    """
    for variable in [name for name, value in os.environ.items() if not value]:
        if variable.startswith("WANDB_"):
            del os.environ[variable]  # W&B would refuse it; shells and launchers leave such
    mode, own = resolve_mode(config), directory / "wandb" / "home"
    if home() is None:  # a user without a name; W&B reads its settings at home
        os.environ["HOME"] = str(own)
    import wandb

    if mode != "disabled":
        _find_room(own)
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
        version=_persistent_id(directory) if mode != "disabled" else None,
        project=config.project,
        entity=config.entity,
        config=dict(resolved_config),
        group=config.group,
        job_type=config.job_type,
        mode=mode,
        resume="allow" if mode != "disabled" else None,
        settings=settings,
    )


def _find_room(instead: Path) -> None:
    """Have W&B keep logs and pending uploads in this folder if its own cannot be written to."""
    from wandb import env

    places = {"WANDB_DATA_DIR": env.get_data_dir(), "WANDB_CACHE_DIR": env.get_cache_dir()}
    for variable, place in places.items():
        try:
            make_writable(variable, Path(place))
        except ConfigError:
            os.environ[variable] = str(instead)


def resolve_mode(config: WandbConfig) -> Mode:
    """Choose the mode of W&B, never one in which it would ask for a key in the terminal.

    `auto` follows WANDB_MODE=offline or disabled and WANDB_DISABLED=true; else it is online if a
    key is known.

    Raises:
        ConfigError: If W&B is to be online and no API key is known.
    """
    if config.mode == "offline":
        return "offline"
    if config.mode == "auto":
        asked = _ENVIRONMENT_MODES.get(os.environ.get("WANDB_MODE", ""))
        if os.environ.get("WANDB_DISABLED", "").lower() in _TRUE:
            asked = "disabled"
        return asked or ("online" if api_key_known() else "offline")
    if not api_key_known():
        raise ConfigError(
            "tracking.wandb.mode=online: no API key is known; run wandb login, set WANDB_API_KEY, "
            "or choose tracking.wandb.mode=offline."
        )
    return "online"


def offline_note(config: WandbConfig) -> str:
    """Return a sentence if runs are offline though nobody asked for that; "" otherwise."""
    asked = config.mode != "auto" or os.environ.get("WANDB_MODE")
    if asked or resolve_mode(config) != "offline":
        return ""
    return (
        "W&B is offline, as no API key is known; `wandb sync` uploads the run, and after "
        "`wandb login` the next one goes online."
    )


def _persistent_id(directory: Path) -> str:
    """Return the W&B id of the run in this directory, chosen at the first call.

    An agent's WANDB_RUN_ID is that of the first run of this process alone.
    """
    path = directory / "wandb" / "run_id"
    if known := _noted(path):
        return known
    given = os.environ.get("WANDB_RUN_ID")
    chosen = secrets.token_hex(4) if not given or given in _taken else given
    if given and chosen != given:
        _log.warning(
            "WANDB_RUN_ID=%s is the id of an earlier run; W&B has this one as %s.", given, chosen
        )
    _taken.add(chosen)
    write_text_atomically(path, f"{chosen}\n")
    return chosen
