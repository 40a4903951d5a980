"""A comparison: a study of experiments over seeds, reported as one table and figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.config.about import about
from coterie.config.loading import dump_config
from coterie.config.schema import RunConfig, TrackingConfig
from coterie.errors import InterruptedRunError
from coterie.run.interrupts import Interrupts
from coterie.studies.comparison_table import ComparisonTable
from coterie.studies.configs_apart import check_all, differences_text
from coterie.studies.plan import CompareConfig, Variant
from coterie.studies.processes import run_all
from coterie.studies.report import write_report
from coterie.studies.study import Study
from coterie.studies.study_view import StudyView, terminal_table
from coterie.tracking.run_records import RunRecord
from coterie.tracking.wandb_logger import WandbRunLogger, resolve_mode, send_to_wandb


def run_comparison(
    options: CompareConfig, configs: Mapping[Variant, RunConfig], view: StudyView
) -> list[RunRecord]:
    """Train the variants over the seeds and write the report, also after an interrupt.

    Raises:
        ConfigError: If the folder cannot be used, a run in it has another config, or W&B has no
            API key.
        InterruptedRunError: After the report, if a signal stopped the runs.
    """
    tracking = next(iter(configs.values())).tracking
    if "wandb" in tracking.loggers:
        resolve_mode(tracking.wandb)
    out, resume = options.out, options.resume
    apart = differences_text(configs)
    if apart:
        view.note(apart)
    check_all(configs, "out", out)
    study = Study.plan("comparison", configs, options.seeds, out=out, resume=resume)
    stopped: InterruptedRunError | None = None
    with study.opened() as check_place, Interrupts() as interrupts:

        def check() -> None:
            check_place()
            interrupts.check("the runs have stopped")

        try:
            records = run_all(study.runs, options.parallel, view, check)
        except InterruptedRunError as error:
            records, stopped = [run.record() for run in study.runs], error
        finally:
            view.close()
        check_place()
        table, outputs = write_report(
            records,
            study.folder,
            metrics=options.metrics,
            axes=options.axes,
            about=_about(study, records),
            note=apart,
        )
        if "wandb" in tracking.loggers:
            _send(study, tracking, table, outputs)
        view.finish(terminal_table(table), table.problems, outputs)
    if stopped is not None:
        raise InterruptedRunError(
            f"{str(stopped).rstrip('.')}; go on with the same command and resume=true "
            f"out={study.folder}."
        ) from stopped
    return records


def _about(study: Study, records: Sequence[RunRecord]) -> str:
    """Name what the figures show: the runs that have completed."""
    pairs = [*zip(study.runs, records, strict=True)]
    shown = [run for run, record in pairs if record.completed] or study.runs
    return about(run.config for run in shown)


def _send(
    study: Study, tracking: TrackingConfig, table: ComparisonTable, outputs: Sequence[Path]
) -> None:
    """Send the table and the figures to W&B, as a run beside those of the comparison.

    An outage causes a warning only: the files have everything.
    """
    plan = {run.variant.label: dump_config(run.config) for run in study.runs}
    figures = [str(path) for path in outputs if path.suffix == ".png"]
    name = f"comparison-{study.folder.name}"

    def fill(logger: WandbRunLogger) -> None:
        logger.log_table("comparison", columns=table.head, data=table.lines)
        if figures:
            logger.log_image("figures", figures)

    own = {"group": tracking.wandb.group or name, "job_type": "compare"}
    send_to_wandb(tracking.wandb.model_copy(update=own), study.folder, name, plan, fill)
