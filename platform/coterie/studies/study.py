"""A study: planned runs in one folder, which are trained as processes and can be resumed."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from coterie.config.schema import RunConfig
from coterie.errors import ConfigError, RunError
from coterie.run.federation import under_submitted_job
from coterie.studies.plan import Variant
from coterie.studies.processes import PlannedRun, check_finished
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.claim import claimed
from coterie.tracking.environment import environment
from coterie.tracking.paths import check_contained, check_ours, local_path
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.run_records import RunRecord

WRITTEN = ("runs", "figures")
"""The folders in a study's folder."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs in one folder: variants of experiments, each trained once per seed.

    Attributes:
        kind: What the user calls the study, such as "comparison".
        folder: The study's folder, with its plan in `<kind>.yaml`.
        runs: The runs, variant by variant, in `runs/<variant>,seed=<seed>`.
    """

    kind: str
    folder: Path
    runs: tuple[PlannedRun, ...]

    @classmethod
    def plan(
        cls,
        kind: str,
        configs: Mapping[Variant, RunConfig],
        seeds: Sequence[int],
        *,
        out: str | None,
        resume: bool,
        key: str = "out",
    ) -> "Study":
        """Plan a run per variant and seed, and make or find the study's folder.

        Args:
            kind: What the user calls the study.
            configs: Each variant's config.
            seeds: The seeds of each variant.
            out: The folder, as a path or file:// URI; None for `<$COTERIE_RUNS or runs>/<kind>/
                <UTC time>`.
            resume: Whether to continue the study in `out`, if there is one.
            key: The name of `out` on the command line.

        Raises:
            ConfigError: If `resume` lacks `out`, or the folder cannot be used.
        """
        folder = _folder(kind, out, resume=resume, key=key)
        runs = tuple(
            PlannedRun(
                variant=variant,
                seed=seed,
                folder=folder / "runs" / f"{variant.folder},seed={seed}",
                config=config.model_copy(update={"seed": seed}),
            )
            for variant, config in configs.items()
            for seed in seeds
        )
        return cls(kind=kind, folder=folder, runs=runs)

    @contextmanager
    def opened(self) -> Iterator[Callable[[], None]]:
        """Hold the folder against other processes, and write the plan into it.

        Yields:
            A check that what is written to the folder still lands there, for before each write.

        Raises:
            ConfigError: If another process holds the folder, or one of the runs in it was trained
                with another config.
        """
        with claimed(self.folder):
            RunDirectory(self.folder).sweep()
            for run in self.runs:
                check_finished(run)
            self._write_plan()
            yield partial(self._check_place, self.folder.stat())

    def _check_place(self, known: os.stat_result) -> None:
        """Refuse to continue if the study's folder was moved, deleted or replaced, or has links.

        Raises:
            RunError: If the folder was moved, deleted or replaced, or has links.
        """
        try:
            same = os.path.samestat(self.folder.stat(), known)
        except OSError:
            same = False
        if not (same and (self.folder / f"{self.kind}.yaml").is_file()):
            raise RunError(
                f"{self.folder}: the folder was moved, deleted or replaced while its runs were "
                "under way; move it back, and resume."
            )
        for name in WRITTEN:
            if (self.folder / name).is_symlink():
                raise RunError(
                    f"{self.folder / name}: it has become a link, and a study writes only in its "
                    "own folder; delete the link, and resume."
                )

    def _write_plan(self) -> None:
        """Write `<kind>.yaml`: folders and arguments of each variant, seeds, package versions."""
        variants = list(dict.fromkeys(run.variant for run in self.runs))
        plan = {
            "experiments": {
                variant.label: {
                    "folders": [
                        f"runs/{run.folder.name}" for run in self.runs if run.variant == variant
                    ],
                    "arguments": [f"experiment={variant.experiment}", *variant.overrides],
                }
                for variant in variants
            },
            "seeds": list(dict.fromkeys(run.seed for run in self.runs)),
            **environment(),
        }
        text = yaml.safe_dump(plan, sort_keys=False, allow_unicode=True)
        write_text_atomically(self.folder / f"{self.kind}.yaml", text)


def exit_code(records: Sequence[RunRecord]) -> int:
    """Return the exit code of a study: 0 all completed; 1 one did not; 3 clients were dropped."""
    if not all(record.completed for record in records):
        return 1
    return 3 if any(record.dropped for record in records) else 0


def _folder(kind: str, out: str | None, *, resume: bool, key: str) -> Path:
    """Return the folder of a new study, or of the one to resume."""
    if resume:
        if out is None:
            raise ConfigError(f"resume=true: give the folder of the {kind} as {key}=DIR.")
        folder = local_path(key, out).absolute()
        if (folder / f"{kind}.yaml").is_file():
            check_contained(key, folder)
            check_ours(key, folder)
            return folder
    return RunDirectory.create(out, kind, job=under_submitted_job(), key=key).path
