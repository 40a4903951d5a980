"""Run a table or figure of a paper: `coterie study study=ccfc_1 scale=cpu`."""

import re
from collections.abc import Sequence

from coterie.commands.arguments import read_values, separate
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.loading import load_component
from coterie.studies.paper_plan import StudyConfig, read_study_plan
from coterie.studies.plan import EXIT_CODES
from coterie.studies.study_list import study_list
from coterie.tracking.terminal import Terminal

_ABOUT = (
    "Runs a table or figure of a paper, of configs/study, as a comparison. Without study= it lists "
    "them. Completed runs are kept: the same command goes on where it was stopped. Every run's "
    "numbers go to <study>-<scale>.csv. Other keys apply to all runs (cluster=gpu, "
    "data.root=DIR), as in coterie compare. coterie results writes the pages from "
    "the files in docs/results/data."
)
_BARE = re.compile(r"""\[[^\[\]'"\\]*=[^\[\]'"\\]*\]""")
"""A list of names without quotes, of which one has a sign that needs them."""


def _quoted(argument: str) -> str:
    """Quote the names of rows or columns: a shell takes the quotes off columns=['MNIST p=0']."""
    key, _, value = argument.partition("=")
    if key not in ("rows", "columns") or not _BARE.fullmatch(value):
        return argument
    names = (name.strip() for name in value[1:-1].split(","))
    return f"{key}=[{','.join(repr(name) for name in names)}]"


@command(
    _ABOUT,
    "usage: coterie study [study=NAME scale=SCALE] [KEY=VALUE ...]",
    StudyConfig,
    EXIT_CODES,
)
def main(arguments: Sequence[str]) -> int:
    """Run the study that the arguments ask for, or list all."""
    arguments = [_quoted(argument) for argument in arguments]
    own, _ = separate(arguments, set(StudyConfig.model_fields))
    if load_component(StudyConfig, read_values(own)).study in (None, "?"):
        Terminal(soft_wrap=True).print(study_list(), highlight=False)
        return 0
    plan = read_study_plan(arguments)
    plan.check()
    from coterie.studies.paper_run import run_study

    return run_study(plan)


if __name__ == "__main__":
    run_program(main)
