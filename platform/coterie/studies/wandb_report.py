"""Send a comparison to Weights & Biases: one run with the table and the figures."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.config.schema import WandbConfig
from coterie.studies.comparison_table import ComparisonTable
from coterie.tracking.wandb_logger import build_wandb_logger

_log = logging.getLogger(__name__)


def send_comparison(
    comparison: ComparisonTable,
    figures: Sequence[Path],
    *,
    config: WandbConfig,
    directory: Path,
    plan: Mapping[str, Any],
) -> None:
    """Log the table `comparison` and the images `figures`; each run has its own page as well.

    An outage causes a warning only: the files have everything.

    Args:
        comparison: The table.
        figures: PNG files.
        config: The project, the account and whether to go online.
        directory: The comparison's folder; W&B's files go to `wandb/` in it.
        plan: The config that W&B shows for this run.

    Raises:
        ConfigError: If W&B is to be online and no API key is known.
    """
    logger = build_wandb_logger(config, directory, f"comparison-{directory.name}", plan)
    try:
        logger.save()
        logger.log_table("comparison", columns=comparison.head, data=comparison.lines)
        if figures:
            logger.log_image("figures", [str(path) for path in figures])
        logger.finalize("success")
    except Exception as error:  # noqa: BLE001 - trackers raise whatever their libraries do
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        _log.warning("W&B did not take the comparison (%s); see table.md.", reason)
