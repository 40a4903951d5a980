"""Evaluate a run's checkpoints: `coterie evaluate run=DIR [checkpoint=best] …`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from coterie.commands.changed_config import CHANGEABLE, changed_config, read_changes
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.about import about
from coterie.config.component import Component, NotEmpty
from coterie.config.schema import LabelledShare
from coterie.config.trust import Trust
from coterie.tracking.formatting import display_path, scores_table
from coterie.tracking.paths import local_path, make_writable
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.terminal import Terminal

TSNE = "tsne.png"


class EvaluateConfig(Component):
    """Which checkpoint to evaluate, and how."""

    run: NotEmpty
    """The run's folder."""
    checkpoint: Literal["latest", "best"] | NonNegativeInt = "latest"
    """`latest`, `best`, or the round of a checkpoint."""
    rounds: Annotated[tuple[NonNegativeInt, ...], Field(strict=False)] = ()
    """Rounds of several checkpoints, such as [1,25,100], in place of `checkpoint`; with
    `evaluation.figures` their t-SNE maps are put side by side in `evaluation-rounds/tsne.png`."""
    labelled_shares: Annotated[tuple[LabelledShare, ...], Field(strict=False)] = (0.01, 0.1)
    """Shares of the labels to fine-tune the whole network with; [] for no fine-tuning."""
    fine_tuning_epochs: PositiveInt = 100
    """Epochs of fine-tuning."""
    out: NotEmpty | None = None
    """Folder for the scores and figures; by default `evaluation-<checkpoint>` in the run's folder,
    where it replaces an earlier evaluation of that checkpoint."""
    trust: Trust = ()
    """Packages that the run's config may import, in addition to Coterie's own."""


@command(
    "Evaluates a checkpoint of a run: clusters, linear probe, nearest neighbours, fine-tuning "
    "with few labels, and metrics without labels. The run's own config is used; keys of "
    f"{', '.join(CHANGEABLE)} can be changed, such as data.root. Without cluster.backend it "
    "runs on the cluster at hand, or else in this process.",
    "usage: coterie evaluate run=DIR [KEY=VALUE ...]",
    EvaluateConfig,
)
def main(arguments: Sequence[str]) -> int:
    """Evaluate the checkpoint that the arguments name."""
    options, changes = read_changes(EvaluateConfig, arguments)
    directory = RunDirectory.open(options.run, key="run")
    config = changed_config(directory, changes, options.trust)
    from coterie.run.evaluate_run import RunEvaluation

    out = None if options.out is None else local_path("out", options.out)
    make_writable(*(("run", directory.path) if out is None else ("out", out)))
    console, maps = Terminal(), dict[str, Path]()
    for checkpoint in options.rounds or (options.checkpoint,):
        done = RunEvaluation(
            config=config,
            directory=directory,
            checkpoint=checkpoint,
            shares=options.labelled_shares,
            epochs=options.fine_tuning_epochs,
            changes=changes,
            folder=out / f"round-{checkpoint}" if out is not None and options.rounds else out,
        ).run()
        for table in done.tables:
            console.print(scores_table(table, console.width))
        for path in done.outputs:
            console.print(display_path(path), soft_wrap=True, highlight=False)
        maps |= {f"round {checkpoint}": path for path in done.outputs if path.name == TSNE}
    if len(maps) > 1:
        from coterie.studies.comparison_figure import panels_figure  # with matplotlib

        path = (out or directory.path / "evaluation-rounds") / TSNE
        panels_figure(maps, path, about([config]))
        console.print(display_path(path), soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    run_program(main)
