"""Records a run: directory, metrics, loggers, terminal. Only the driver writes."""
