"""FedAvg whose first actors crash while they start."""

import os
from pathlib import Path

from coterie.modules.fedavg import FedAvg


class Crashes(FedAvg):
    """It ends the process that builds it, other than the driver's, as often as there are fuses."""

    class Config(FedAvg.Config):
        """As the base, with a folder of fuses and the driver's process."""

        fuses: str = ""
        driver: int = 0

    def __init__(self, config, task):
        super().__init__(config, task)
        for fuse in Path(config.fuses).iterdir() if os.getpid() != config.driver else ():
            try:
                fuse.unlink()
            except FileNotFoundError:  # another actor has taken it
                continue
            os._exit(1)
