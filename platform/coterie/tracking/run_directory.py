"""The run directory: the folder and files of a run.

Layout (other tools read it): `config.yaml`, `metrics.jsonl`, `summary.json`, `checkpoints/`,
`model/`, `assignments.parquet`, `clients.csv`, `failures.log`, `figures/`, `report.html`.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from coterie.config.given_path import checkpoint_in_parts
from coterie.config.plain_files import YAML_BYTES
from coterie.config.stored import read_stored_config
from coterie.errors import ConfigError
from coterie.tracking.atomic import is_half, is_left, write_text_atomically
from coterie.tracking.claim import LOCK, check_unclaimed
from coterie.tracking.environment import ENVIRONMENT_KEYS, environment
from coterie.tracking.paths import (
    MODE,
    check_contained,
    close_to_others,
    default_root,
    local_path,
    make_writable,
)
from coterie.tracking.skipped import SKIPPED


@dataclass(frozen=True)
class _Part:
    """The path of a file or folder in a run directory."""

    name: str

    def __get__(self, directory: "RunDirectory", _: object) -> Path:
        return directory.path / self.name


@dataclass(frozen=True)
class RunDirectory:
    """The folder of one run and the paths in it.

    Attributes:
        path: The folder itself, absolute.
        made: Whether `create` made it; else it existed and was empty.
    """

    path: Path
    made: bool = field(default=False, compare=False)

    config = _Part("config.yaml")
    """`config.yaml`: the resolved config and the versions."""
    metrics = _Part("metrics.jsonl")
    """`metrics.jsonl`: one JSON object per line."""
    summary = _Part("summary.json")
    """`summary.json`: how the run ended."""
    checkpoints = _Part("checkpoints")
    """`checkpoints/`: the state of the run at some rounds."""
    model = _Part("model")
    """`model/`: the trained model."""
    assignments = _Part("assignments.parquet")
    """`assignments.parquet`: sample, client, cluster, confidence, and their names."""
    clients = _Part("clients.csv")
    """`clients.csv`: samples, tasks, failures, loss, seconds, bytes of each client."""
    report = _Part("report.html")
    """`report.html`: the whole run on one page."""
    noise = _Part("noise.jsonl")
    """`noise.jsonl`: the secret key of a private run's noise, and the sums released."""
    audit = _Part("audit.json")
    """`audit.json`: what left the clients, and if the model reveals its training samples."""
    client_groups = _Part("client_groups.csv")
    """`client_groups.csv`: round, client, group."""
    skipped = _Part(SKIPPED)
    """`skipped.csv`: samples that could not be read and were left out, with the reasons."""
    figures = _Part("figures")
    """`figures/`: figures of the run."""

    @classmethod
    def create(
        cls, run_dir: str | None, experiment: str, *, job: bool, key: str = "run_dir"
    ) -> "RunDirectory":
        """Make the folder of a new run.

        Args:
            run_dir: The folder, as a path or file:// URI; None for
                `<$COTERIE_RUNS or runs>/<experiment>/<UTC time>`.
            experiment: The experiment's name, one path component.
            job: Whether this is a submitted Ray job, whose working directory is deleted.
            key: The name of the path in errors.

        Raises:
            ConfigError: If the path is relative under a job, not empty, another user's, or cannot
                be written.
        """
        if run_dir is None:
            return cls(_make_default(default_root(job=job), experiment), made=True)
        path = local_path(key, run_dir)
        if job and not path.is_absolute():
            raise ConfigError(
                f"{key}={run_dir}: a submitted job's working directory is deleted, so give an "
                "absolute path on storage that outlives the job."
            )
        path = path.absolute()
        made = not path.exists()
        if path.is_dir() and not any(path.iterdir()):
            close_to_others(path)
        make_writable(key, path)
        check_unclaimed(path)
        ours = [child for child in path.iterdir() if child.name == LOCK or is_half(child)]
        if any(child not in ours or child.is_symlink() for child in path.iterdir()):
            raise ConfigError(
                f"{key}={run_dir}: the folder is not empty; choose another one, or resume "
                "the run in it."
            )
        return cls(path, made=made)

    @classmethod
    def exists(cls, run_dir: str) -> bool:
        """Return whether this folder is that of an earlier run."""
        return cls(local_path("run_dir", run_dir).absolute()).is_run

    @classmethod
    def open(cls, run_dir: str, *, key: str = "run_dir") -> "RunDirectory":
        """Open the folder of an earlier run, to resume or to read it.

        `key` names the path in errors.

        Raises:
            ConfigError: If it has no run, or a part of it is a link to elsewhere.
        """
        directory = cls(local_path(key, run_dir).absolute())
        if not directory.is_run:
            if directory.config.is_file():
                run = directory.path.parent
                raise ConfigError(
                    f"{key}={run_dir}: it is a run's model; give the run's folder {run}."
                )
            found = directory.path.is_dir()
            hint = "no config.yaml in it" if found else "there is no such folder"
            if directory.path.is_file():
                hint = "it is a file, such as a checkpoint of Lightning, and not a run"
            if checkpoint_in_parts(directory.path):
                hint = "it is a checkpoint of Lightning, and not a run"
            raise ConfigError(f"{key}={run_dir}: {hint}; give the folder of an earlier run.")
        close_to_others(directory.path)
        check_contained(key, directory.path)
        return directory

    @property
    def is_run(self) -> bool:
        """Whether a run has begun here; a folder `model/` also has a config, but is not a run."""
        return self.config.is_file() and not (self.path / "model.json").is_file()

    def sweep(self) -> None:
        """Delete temporary files of killed processes; the caller must hold the lock."""
        for path in self.path.rglob(".*.tmp"):
            if is_left(path):
                folder = path.is_dir() and not path.is_symlink()
                shutil.rmtree(path) if folder else path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Delete what a refused run has made in a folder from `create`."""
        for child in self.path.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        if self.made:
            self.path.rmdir()

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write `config.yaml`: the resolved config, then the versions."""
        text = yaml.safe_dump({**config, **environment()}, sort_keys=False, allow_unicode=True)
        if len(text.encode()) > YAML_BYTES:
            raise ConfigError(
                f"{self.config}: the config is larger than {YAML_BYTES >> 10} KiB and could not be "
                "read again; give long lists, such as participation.availability, as files."
            )
        write_text_atomically(self.config, text)

    def read_config(self) -> dict[str, Any]:
        """Return the config that `write_config` wrote, without the versions.

        Raises:
            ConfigError: If the file is not a run's config.
        """
        values = read_stored_config(self.config)
        return {key: value for key, value in values.items() if key not in ENVIRONMENT_KEYS}


def _make_default(root: Path, experiment: str) -> Path:
    """Make `<root>/<experiment>/<UTC time>`, with a number appended if it exists."""
    if experiment in {"", ".", ".."} or Path(experiment).name != experiment:
        raise ConfigError(f"experiment={experiment}: use a plain name without slashes.")
    parent, number = root / experiment, 1
    stamp = datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S")
    make_writable("run_dir", parent, shared=True)  # many may have their runs below it
    while True:
        path = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            path.mkdir(MODE)  # fails if it exists, so that two runs never share a folder
        except FileExistsError:
            number += 1
        else:
            return path
