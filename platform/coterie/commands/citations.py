"""The works to cite for a run: Coterie, and the papers of its method and strategy."""

import re
from pathlib import Path

from coterie.version import __version__

_PAPERS = Path(__file__).with_name("papers.bib")
_OWN = f"""@software{{coterie,
  title = {{Coterie: federated representation learning and clustering without labels}},
  author = {{{{The Coterie authors}}}},
  version = {{{__version__}}}
}}"""


def citations(*targets: str) -> str:
    """Return the BibTeX of Coterie and of the papers behind a method and its strategy.

    Args:
        targets: Their classes, as in `coterie.modules.fedmcc:FedMCC`; those of another package
            are not known.
    """
    known = papers()
    cited = [_OWN]
    for place, _, name in (target.rpartition(":") for target in targets):
        cited += known.get(name, []) if place.startswith("coterie.modules.") else []
    return "\n\n".join(cited)


def papers() -> dict[str, list[str]]:
    """Return the entries of `papers.bib`, by method class."""
    found: dict[str, list[str]] = {}
    text = _PAPERS.read_text(encoding="utf-8")
    for entry in re.split(r"\n(?=@)", text.strip()):
        names = re.search(r",\n  keywords = \{(.*)\}", entry)
        if names is not None:
            cited = entry.replace(names[0], "")
            for name in names[1].split(", "):
                found.setdefault(name, []).append(cited)
    return found
