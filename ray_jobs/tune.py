"""Search for hyperparameters: `coterie tune experiment=orchestra_digits space=…`."""

from collections.abc import Sequence
from importlib.util import find_spec

from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.errors import ConfigError
from coterie.studies.plan import variant_configs
from coterie.studies.tune_plan import TuneConfig, read_tuning

_EXIT_CODES = {
    "0": "all trials completed, or were stopped because they were behind",
    "1": "a trial failed",
    "2": "the arguments were refused",
    "3": "all trials completed or were stopped, but clients were dropped",
    "130": "interrupted; the trials under way stopped after a checkpoint",
}
_ABOUT = (
    "Trains an experiment with values drawn from a space, each trial a run like coterie train, "
    "side by side where CPUs and GPUs allow, stops those that are behind, and names the best by an "
    "objective; the default one needs no labels. Writes trials.csv and a figure into run_dir=DIR; "
    "the same command goes on there. Other keys apply to all trials (method.epochs=1)."
)
_NEEDED = ("pandas", "tensorboardX")
"""Packages that Ray Tune needs besides Ray."""


@command(
    _ABOUT,
    "usage: coterie tune experiment=NAME space=FILE [objective=NAME]\n         [KEY=VALUE ...]",
    TuneConfig,
    _EXIT_CODES,
)
def main(arguments: Sequence[str]) -> int:
    """Run the search that the arguments ask for."""
    options, trials = read_tuning(arguments)
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise ConfigError(
            f"coterie tune needs Ray Tune, and {missing[0]} is not installed; install it with "
            "pip install 'coterie[tune]'."
        )
    configs = variant_configs(tuple(trials), options.seed)
    from coterie.studies.study_view import StudyView
    from coterie.studies.tuning import run_tuning

    progress = next(iter(configs.values())).tracking.progress
    return run_tuning(options, trials, configs, StudyView(progress))


if __name__ == "__main__":
    run_program(main)
