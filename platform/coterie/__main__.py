"""`python -m coterie COMMAND …` is the command `coterie`."""

from coterie.jobs.__main__ import main

if __name__ == "__main__":
    main()
