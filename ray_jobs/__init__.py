"""Entry points, each short: `coterie train …`, or `python -m ray_jobs.train …` in a clone."""

import sys
from pathlib import Path

# `python -m` puts the current folder first on the path, where a stranger's file would take the
# place of an installed package. A user's own method is found there all the same.
if sys.path and sys.path[0] == str(Path.cwd()):
    sys.path.append(sys.path.pop(0))
