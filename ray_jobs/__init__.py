"""Entry points, each short: `coterie train …`, or `python -m ray_jobs.train …` in a clone.

A command imports PyTorch inside its function, after it has read its arguments, so that a mistyped
key is refused at once.
"""

import sys
from pathlib import Path

# `python -m` puts the current folder on the path, where a stranger's file would be imported for an
# installed package, or for one that a library looks for. A class that a config names is found
# there all the same (`config/component.py`).
if sys.path and sys.path[0] == str(Path.cwd()):
    del sys.path[0]
