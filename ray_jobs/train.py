"""Train an experiment: `coterie train experiment=fedmcc_digits [key=value …]`."""

from coterie.commands.program import run_program
from coterie.commands.train import main

if __name__ == "__main__":
    run_program(main)
