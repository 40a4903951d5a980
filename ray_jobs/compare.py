"""Compare experiments over seeds: `coterie compare experiments=[…] seeds=[…]`."""

from collections.abc import Sequence

from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.studies.plan import EXIT_CODES, CompareConfig, read_comparison, variant_configs

_ABOUT = (
    "Runs experiments over seeds, each run like coterie train, and writes a table (mean ± "
    "standard deviation over the seeds: table.md, table.csv, on W&B with tracking=wandb) and "
    "figures into out=DIR. Other keys apply to all experiments (method.epochs=1), with NAME: "
    "before them to one (fedmcc_digits:method.momentum=0.9). Several values, separated by commas, "
    "make a run for each (partition.p=0,0.5,1). Runs are parallel where CPUs and GPUs allow; a run "
    "that fails does not stop the others. For the experiments and their keys see "
    "coterie train --help."
)


@command(
    _ABOUT,
    "usage: coterie compare experiments=[NAME,...] [seeds=[0,1,2]]\n"
    "         [[NAME:]KEY=VALUE[,VALUE ...] ...]",
    CompareConfig,
    EXIT_CODES,
)
def main(arguments: Sequence[str]) -> int:
    """Run the comparison that the arguments ask for."""
    options, variants = read_comparison(arguments)
    configs = variant_configs(variants, options.seeds[0])
    from coterie.studies.comparison import run_comparison
    from coterie.studies.study import exit_code
    from coterie.studies.study_view import StudyView

    view = StudyView(configs[variants[0]].tracking.progress)
    return exit_code(run_comparison(options, configs, view))


if __name__ == "__main__":
    run_program(main)
