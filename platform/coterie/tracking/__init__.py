"""Record a run: run directory, metrics, loggers, terminal; read runs back. The driver writes."""
