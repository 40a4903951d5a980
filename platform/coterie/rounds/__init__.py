"""The round loop and its state, without input or output; start reading at `loop`."""
