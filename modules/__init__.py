"""One file per method: its LightningModule, its client and server halves, its config."""
