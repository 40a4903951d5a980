"""The round loop and its state, without input or output; `loop` is the place to start reading."""
