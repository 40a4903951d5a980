"""Data sets as LightningDataModules, and partitions of their samples over clients."""
