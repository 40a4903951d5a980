"""Compare experiments over seeds: `python -m ray_jobs.compare experiments=[…] seeds=[…]`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from coterie.commands.compose import compose_plain
from coterie.commands.help_text import command_help
from coterie.commands.program import run_command, run_program
from coterie.config.loading import load_config
from coterie.config.schema import RunConfig
from coterie.errors import ConfigError, InterruptedRunError
from coterie.studies.plan import CompareConfig, Variant, read_comparison
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.claim import claimed
from coterie.tracking.environment import environment
from coterie.tracking.paths import local_path
from coterie.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from coterie.studies.processes import PlannedRun
    from coterie.studies.study_view import View
    from coterie.tracking.run_records import RunRecord

_PLAN = "comparison.yaml"
_FAILED, _DROPPED = 1, 3
_EXIT_CODES = {
    "0": "all runs completed",
    "1": "a run failed",
    "2": "the arguments were refused",
    "3": "all runs completed, but clients were dropped on the way",
    "130": "interrupted, the runs under way after a checkpoint",
}
_ABOUT = (
    "Runs experiments over seeds, each run as ray_jobs.train does it, and writes one table (mean ± "
    "standard deviation over the seeds: table.md, table.csv, on W&B with tracking=wandb) and "
    "figures into out=DIR. Other keys go to all experiments (method.epochs=1), with NAME: in front "
    "to one (fedmcc_digits:method.momentum=0.9), and with several values, separated by commas, to "
    "a run for each (partition.p=0,0.5,1). Runs stand side by side where CPUs and GPUs allow; one "
    "that fails does not stop the others. The experiments and their keys are those of "
    "python -m ray_jobs.train --help."
)


def main(arguments: Sequence[str]) -> int:
    """Run the comparison that the arguments ask for.

    Returns:
        The exit code: 0 all runs completed; 1 one failed; 2 arguments refused; 3 all completed, but
        clients were dropped; 130 interrupted, the runs under way after a checkpoint.
    """
    return run_command(_compare, arguments, _help)


def _help(*arguments: str) -> str:
    return command_help(
        _ABOUT,
        "usage: python -m ray_jobs.compare experiments=[NAME,...] [seeds=[0,1,2]]\n"
        "         [[NAME:]KEY=VALUE[,VALUE ...] ...]",
        CompareConfig,
        _EXIT_CODES,
    )


def _compare(arguments: Sequence[str]) -> int:
    options, variants = read_comparison(arguments)
    configs = _configs(options, variants)
    # Imported only now: a mistyped key is answered at once, not after PyTorch has loaded.
    from coterie.studies.processes import PlannedRun
    from coterie.studies.study_view import View
    from coterie.tracking.wandb_logger import resolve_mode

    tracking = next(iter(configs.values())).tracking
    if "wandb" in tracking.loggers:
        resolve_mode(tracking.wandb)
    out = _directory(options)
    runs = [
        PlannedRun(
            variant=variant,
            seed=seed,
            folder=out / "runs" / f"{variant.folder},seed={seed}",
            config=configs[variant].model_copy(update={"seed": seed}),
        )
        for variant in variants
        for seed in options.seeds
    ]
    with claimed(out):
        RunDirectory(out).sweep()
        _write_plan(out, options, variants)
        return _run(options, runs, View(tracking.progress), out)


def _configs(options: CompareConfig, variants: Sequence[Variant]) -> dict[Variant, RunConfig]:
    """Each variant's config: what is wrong with one is found before any has run."""
    arguments = {variant: variant.arguments(options.seeds[0]) for variant in variants}
    plain, configs = {}, {}
    try:
        for variant in variants:  # all of them before the first class is imported
            plain[variant] = compose_plain(*arguments[variant])
        for variant in variants:
            configs[variant] = load_config(plain[variant])
    except ConfigError as error:
        raise ConfigError(f"{variant.label}: {error}") from error
    return configs


def _directory(options: CompareConfig) -> Path:
    """The comparison's folder: a new one, or that of the comparison which goes on."""
    from coterie.run.federation import under_submitted_job

    if options.resume:
        if options.out is None:
            raise ConfigError("resume=true: give the folder of the comparison as out=DIR.")
        out = local_path("out", options.out).absolute()
        if (out / _PLAN).is_file():
            return out
    job = under_submitted_job()
    return RunDirectory.create(options.out, "comparison", job=job, key="out").path


def _write_plan(out: Path, options: CompareConfig, variants: Sequence[Variant]) -> None:
    """Write `comparison.yaml`: what is compared, and with which versions."""
    plan = {
        "experiments": {
            variant.label: {
                "folders": [f"runs/{variant.folder},seed={seed}" for seed in options.seeds],
                "arguments": [f"experiment={variant.experiment}", *variant.overrides],
            }
            for variant in variants
        },
        "seeds": list(options.seeds),
        **environment(),
    }
    text = yaml.safe_dump(plan, sort_keys=False, allow_unicode=True)
    write_text_atomically(out / _PLAN, text)


def _run(options: CompareConfig, runs: Sequence["PlannedRun"], view: "View", out: Path) -> int:
    from coterie.run.interrupts import Interrupts
    from coterie.studies.processes import check_finished, run_all

    for run in runs:
        check_finished(run)  # refuses a run of another config
    limit = None if options.parallel == "auto" else options.parallel
    with Interrupts() as interrupts:
        try:
            records = run_all(runs, limit, view, lambda: interrupts.check("the runs have stopped"))
        except InterruptedRunError as error:
            view.close()
            _report(options, [run.record() for run in runs], runs, view, out)
            raise InterruptedRunError(
                f"{str(error).rstrip('.')}; go on with the same command and resume=true out={out}."
            ) from error
        finally:
            view.close()
        _report(options, records, runs, view, out)
    if not all(record.completed for record in records):
        return _FAILED
    return _DROPPED if any(record.dropped for record in records) else 0


def _report(
    options: CompareConfig,
    records: Sequence["RunRecord"],
    runs: Sequence["PlannedRun"],
    view: "View",
    out: Path,
) -> None:
    """Write and show the table and the figures."""
    from coterie.config.loading import dump_config
    from coterie.studies.report import write_report

    comparison, outputs = write_report(options, records, out)
    tracking = runs[0].config.tracking
    if "wandb" in tracking.loggers:
        from coterie.studies.wandb_report import send_comparison

        plan = {run.variant.label: dump_config(run.config) for run in runs}
        figures = [path for path in outputs if path.suffix == ".png"]
        send_comparison(comparison, figures, config=tracking.wandb, directory=out, plan=plan)
    view.finish(comparison, outputs)


if __name__ == "__main__":
    run_program(main)
