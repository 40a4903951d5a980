"""What devices exchange with each other: over which links, chosen how, at what cost."""
