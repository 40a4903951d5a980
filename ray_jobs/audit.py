"""Audit what a run reveals about its samples: `coterie audit run=DIR`."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from coterie.commands.changed_config import CHANGEABLE, changed_config, read_changes
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.trust import Trust
from coterie.tracking.formatting import display_path
from coterie.tracking.paths import local_path, make_writable
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.terminal import Terminal


class AuditConfig(Component):
    """Which run to audit, and how."""

    run: NotEmpty
    """The run's folder."""
    out: str | None = None
    """Where to write `audit.json`; by default into the run's folder."""
    samples: Annotated[int, Field(ge=50)] = 1000
    """Maximum number of training samples, and of held-out samples, for the attack on the model."""
    trust: Trust = ()
    """Packages that the run's config may import, in addition to Coterie's own."""


@command(
    "Shows what left each client of a run, key by key, with the fewest samples that a vector "
    "stands for, and attacks the model: how well it tells training samples from held-out ones. "
    f"Keys of {', '.join(CHANGEABLE)} can be changed, such as data.root. See docs/privacy.md.",
    "usage: coterie audit run=DIR [KEY=VALUE ...]",
    AuditConfig,
)
def main(arguments: Sequence[str]) -> int:
    """Audit the run that the arguments name."""
    options, changes = read_changes(AuditConfig, arguments)
    directory = RunDirectory.open(options.run, key="run")
    config = changed_config(directory, changes, options.trust)
    from coterie.run.audit import audit_run
    from coterie.run.audit_tables import attacks_table, messages_table

    folder = directory.path if options.out is None else local_path("out", options.out)
    make_writable("run" if options.out is None else "out", folder)
    done = audit_run(config, directory, options.samples, folder / directory.audit.name)
    console = Terminal()
    console.print(messages_table(done.keys, console.width))
    if done.attacks:
        console.print(attacks_table(done.attacks, console.width))
    for sentence in done.conclusions:
        console.print(sentence, highlight=False)
    if done.note:
        console.print(done.note, highlight=False)
    path = folder / directory.audit.name
    console.print(display_path(path), soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    run_program(main)
