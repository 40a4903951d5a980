"""What is measured and tested on a machine with GPUs, by `make gpu`."""
