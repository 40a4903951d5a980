"""A comparison on Weights & Biases: one run with the table and the figures."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.config.schema import WandbConfig
from coterie.studies.comparison_table import Comparison
from coterie.tracking.wandb_logger import build_wandb_logger

_log = logging.getLogger(__name__)


def send_comparison(
    comparison: Comparison,
    figures: Sequence[Path],
    *,
    config: WandbConfig,
    directory: Path,
    plan: Mapping[str, Any],
) -> None:
    """Log the table `comparison` and the images `figures`; each run has its own page besides.

    An outage is reported and costs nothing else: the files have everything.

    Args:
        comparison: The table.
        figures: PNG files.
        config: The project, the account and whether to go online.
        directory: The comparison's folder; W&B's files go to `wandb/` in it.
        plan: What W&B shows as the run's config.

    Raises:
        ConfigError: If it shall be online and no API key is known.
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
        _log.warning("W&B has no table of the comparison (%s): table.md has it.", reason)
