"""Make a W&B workspace for Coterie's runs: `coterie dashboard entity=TEAM`."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from coterie.commands.arguments import read_values
from coterie.commands.help_text import command_help
from coterie.commands.program import run_command, run_program
from coterie.config.component import Component
from coterie.config.loading import load_component
from coterie.config.schema import WandbConfig
from coterie.errors import ConfigError
from coterie.tracking.formatting import display_path
from coterie.tracking.paths import local_path
from coterie.tracking.terminal import Terminal

_Name = Annotated[str, Field(min_length=1)]


class DashboardConfig(Component):
    """Which workspace to make."""

    entity: _Name | None = None
    """The team or user on W&B; only out=FILE goes without."""
    project: _Name = "coterie"
    """The project, as tracking.wandb.project."""
    name: _Name = "Coterie"
    """The workspace's name."""
    out: _Name | None = None
    """File to write the workspace to as JSON, instead of saving it on W&B."""


def main(arguments: Sequence[str]) -> int:
    """Make the workspace that the arguments ask for.

    Returns:
        The exit code: 0 done; 1 failed; 2 arguments refused, or no API key is known.
    """
    return run_command(_dashboard, arguments, _help)


def _help(*arguments: str) -> str:
    return command_help(
        "Makes a workspace on Weights & Biases with scores, losses, bytes, clients and figures of "
        "all runs in a project. It needs the package wandb-workspaces.",
        "usage: coterie dashboard entity=TEAM [KEY=VALUE ...]",
        DashboardConfig,
    )


def _dashboard(arguments: Sequence[str]) -> int:
    options = load_component(DashboardConfig, read_values(arguments))
    from coterie.tracking.wandb_logger import resolve_mode
    from coterie.tracking.wandb_workspace import coterie_workspace, write_workspace

    if options.entity is None and options.out is None:
        raise ConfigError("entity: a value is needed; give entity=TEAM, or out=FILE.")
    workspace = coterie_workspace(options.project, options.entity or "", options.name)
    console = Terminal(soft_wrap=True)
    if options.out is not None:
        path = local_path("out", options.out)
        write_workspace(workspace, path)
        console.print(display_path(path), highlight=False)
    elif resolve_mode(WandbConfig()) != "online":
        raise ConfigError(
            "No API key for W&B is known: run wandb login, set WANDB_API_KEY, or write the "
            "workspace to a file with out=FILE."
        )
    else:
        workspace.save()
        console.print(workspace.url, highlight=False)
    return 0


if __name__ == "__main__":
    run_program(main)
