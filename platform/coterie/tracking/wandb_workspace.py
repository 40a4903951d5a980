"""A W&B workspace that shows Coterie's runs: scores, losses by stage, bytes, clients, figures."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError
from coterie.tracking.atomic import write_text_atomically

_STEP = "trainer/global_step"
_PANELS = {
    "Scores": ("clustering/acc", "clustering/nmi", "clustering/ari", "linear/acc", "knn/acc"),
    "Training": ("loss", "stage", "participants", "failures", "dropped", "seconds"),
    "Bytes": ("bytes/down", "bytes/up", "bytes/peer"),
}
_TOTALS = ("total/bytes/up", "total/bytes/down", "total/seconds/total", "total/failures")
_MEDIA = ("figures/curves", "figures/confusion", "figures/tsne", "figures/partition")


def coterie_workspace(project: str, entity: str, name: str) -> Any:
    """Define the workspace; nothing is sent.

    Args:
        project: The project's name.
        entity: The team or user.
        name: The workspace's name.

    Returns:
        A `wandb_workspaces.workspaces.Workspace`.

    Raises:
        ConfigError: If the package wandb-workspaces is not installed.
    """
    try:
        workspaces = import_module("wandb_workspaces.workspaces")
        panels = import_module("wandb_workspaces.reports.v2")
    except ImportError as error:
        raise ConfigError(
            "coterie dashboard needs the package wandb-workspaces; pip install wandb-workspaces."
        ) from error
    sections = [
        workspaces.Section(
            name=title,
            is_open=title == "Scores",
            panels=[panels.LinePlot(title=metric, x=_STEP, y=[metric]) for metric in metrics],
        )
        for title, metrics in _PANELS.items()
    ]
    totals = [panels.BarPlot(title=metric, metrics=[metric]) for metric in _TOTALS]
    tables = [panels.WeavePanelSummaryTable(table_name="clients")]
    media = [panels.MediaBrowser(title=key, media_keys=[key]) for key in _MEDIA]
    sections += [
        workspaces.Section(name="Totals", panels=totals),
        workspaces.Section(name="Clients", panels=tables),
        workspaces.Section(name="Figures", panels=media),
    ]
    return workspaces.Workspace(name=name, entity=entity, project=project, sections=sections)


def write_workspace(workspace: Any, path: Path) -> None:
    """Write a workspace as the JSON that W&B stores for it."""
    view = json.loads(workspace._to_model().model_dump_json(by_alias=True, exclude_none=True))
    write_text_atomically(path, json.dumps(view, indent=2) + "\n")
