"""Data sets as LightningDataModules, and the partitions that spread them over clients."""
