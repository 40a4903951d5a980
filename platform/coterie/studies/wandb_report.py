"""Send a comparison to Weights & Biases: one run with the table and the figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.config.schema import WandbConfig
from coterie.studies.comparison_table import ComparisonTable
from coterie.tracking.wandb_logger import WandbRunLogger, send_to_wandb


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

    Raises:
        ConfigError: If W&B is to be online and no API key is known.
    """
    name = f"comparison-{directory.name}"

    def fill(logger: WandbRunLogger) -> None:
        logger.log_table("comparison", columns=comparison.head, data=comparison.lines)
        if figures:
            logger.log_image("figures", [str(path) for path in figures])

    own = config.model_copy(update={"group": config.group or name, "job_type": "compare"})
    send_to_wandb(own, directory, name, plan, fill)
