"""Evaluate a run's checkpoint: `python -m ray_jobs.evaluate run=DIR [checkpoint=best] …`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt
from rich.console import Console

from coterie.commands.arguments import backend_at_hand, read_values
from coterie.commands.help_text import command_help
from coterie.commands.program import run_command, run_program
from coterie.config.component import Component
from coterie.config.explain import nearest, show
from coterie.config.loading import load_component, load_config
from coterie.config.schema import RunConfig
from coterie.errors import ConfigError, DataError
from coterie.tracking.formatting import shown
from coterie.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from coterie.run.evaluate_run import EvaluatedRun

_Share = Annotated[float, Field(gt=0.0, le=1.0)]
_CHANGEABLE = ("accelerator", "cluster", "data", "evaluation")
"""Sections of the run's config that an evaluation may set: where and what, not what was trained."""


class EvaluateConfig(Component):
    """Which checkpoint to evaluate, and how."""

    run: Annotated[str, Field(min_length=1)]
    """The run's folder."""
    checkpoint: Literal["latest", "best"] | NonNegativeInt = "latest"
    """`latest`, `best`, or the round of one."""
    labelled_shares: Annotated[tuple[_Share, ...], Field(strict=False)] = (0.01, 0.1)
    """Shares of the labels to fine-tune the whole network with; [] leaves that out."""
    fine_tuning_epochs: PositiveInt = 100
    """Epochs of fine-tuning."""
    out: Annotated[str, Field(min_length=1)] | None = None
    """Folder for the scores and figures; by default `evaluation-<checkpoint>` in the run's, where
    they replace those of an earlier evaluation of the checkpoint."""


def main(arguments: Sequence[str]) -> int:
    """Evaluate what the arguments ask for.

    Returns:
        The exit code: 0 done; 1 failed; 2 arguments, checkpoint or data refused; 130 interrupted.
    """
    return run_command(_evaluate, arguments, _help)


def _help(*arguments: str) -> str:
    return command_help(
        "Evaluates a checkpoint of a run: clusters, linear probe, nearest neighbours, fine-tuning "
        "with few labels, and scores that need no labels. It takes the run's own config, of which "
        f"keys of {', '.join(_CHANGEABLE)} can be set anew, such as data.root; without "
        "cluster.backend it runs on the cluster at hand, else in this process.",
        "usage: python -m ray_jobs.evaluate run=DIR [KEY=VALUE ...]",
        EvaluateConfig,
    )


def _evaluate(arguments: Sequence[str]) -> int:
    values = read_values(arguments)
    own = {key: values.pop(key) for key in EvaluateConfig.model_fields if key in values}
    _check_changes(values)
    options = load_component(EvaluateConfig, own)
    directory = RunDirectory.open(options.run, key="run")
    config = _run_config(directory, values)
    # Imported only now: a mistyped key is answered at once, not after PyTorch has loaded.
    from coterie.run.evaluate_run import RunEvaluation

    done = RunEvaluation(
        config=config,
        directory=directory,
        checkpoint=options.checkpoint,
        shares=options.labelled_shares,
        epochs=options.fine_tuning_epochs,
        changes=values,
        folder=None if options.out is None else _made(options.out),
    ).run()
    _show(done)
    return 0


def _made(out: str) -> Path:
    """The folder, at once: an evaluation takes time."""
    folder = Path(out).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"out={folder}: it cannot be written ({error}); choose another.") from error
    return folder


def _run_config(directory: RunDirectory, changes: Mapping[str, Any]) -> RunConfig:
    """The run's config with these changes, on the cluster at hand unless they name a backend."""
    cluster = changes.get("cluster", {})
    if isinstance(cluster, Mapping):
        cluster = {"backend": backend_at_hand(cluster), **cluster}
    return load_config(_merged(directory.read_config(), {**changes, "cluster": cluster}))


def _check_changes(changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if key not in RunConfig.model_fields:
            close = nearest(key, [*EvaluateConfig.model_fields, *_CHANGEABLE])
            keys = ", ".join(EvaluateConfig.model_fields)
            hint = f"did you mean {close}?" if close else f"the top has {keys}."
            raise ConfigError(f"{key}={show(value)}: there is no such key; {hint}")
        if key not in _CHANGEABLE:
            raise ConfigError(
                f"{key}={show(value)}: the run has been trained with its own; only keys of "
                f"{', '.join(_CHANGEABLE)} can be set anew."
            )
        if key != "accelerator" and not isinstance(value, Mapping):
            raise ConfigError(
                f"{key}={show(value)}: the run has been trained with its own; only single keys of "
                f"it can be set anew, as {key}.NAME=VALUE."
            )


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values with others in their place, section by section."""
    both = {
        key: _merged(values[key], change)
        for key, change in changes.items()
        if isinstance(change, Mapping) and isinstance(values.get(key), Mapping)
    }
    return {**values, **changes, **both}


def _show(done: "EvaluatedRun") -> None:
    from coterie.tracking.formatting import display_path, scores_table

    console = Console()
    for group in _tables(done.metrics):
        if group:
            console.print(scores_table(group))
    for path in done.outputs:
        console.print(display_path(path), soft_wrap=True, highlight=False)


def _tables(
    metrics: Mapping[str, Mapping[str, float]],
) -> list[dict[str, Mapping[str, float]]]:
    """Three tables: clusters, classifiers, scores without labels."""
    names = {
        "clustering": "clusters",
        "clustering_test": "clusters, test set",
        "kmeans_raw": "k-means on raw samples",
        "linear": "linear probe",
        "knn": "nearest neighbours",
        "unsupervised": "without labels",
        "local": "clients' own models",
    }
    tables: list[dict[str, Mapping[str, float]]] = [{}, {}, {}]
    for group, scores in metrics.items():
        share = group.removeprefix("labels_")
        name = names.get(group, f"fine-tuned, {share} of labels" if share != group else group)
        number = 2 if group == "unsupervised" else 0 if "nmi" in scores else 1
        tables[number][name] = shown(scores)
    return tables


if __name__ == "__main__":
    run_program(main)
