"""What to cite for a run: Coterie, and the papers of its method."""

import re
from pathlib import Path

from coterie.version import __version__

_PAPERS = Path(__file__).with_name("papers.bib")
_OWN = f"""@software{{coterie,
  title = {{Coterie: federated representation learning and clustering without labels}},
  author = {{{{The Coterie authors}}}},
  version = {{{__version__}}}
}}"""


def citations(method: str) -> str:
    """The BibTeX of Coterie and of a method's papers.

    Args:
        method: The class of the method, as in `coterie.modules.fedmcc:FedMCC`; of another package
            it is not known.
    """
    place, _, name = method.rpartition(":")
    known = papers().get(name, []) if place.startswith("coterie.modules.") else []
    return "\n\n".join([_OWN, *known])


def papers() -> dict[str, list[str]]:
    """The entries of `papers.bib` by class of the method, without the field that names classes."""
    found: dict[str, list[str]] = {}
    text = _PAPERS.read_text(encoding="utf-8")
    for entry in re.split(r"\n(?=@)", text.strip()):
        names = re.search(r",\n  keywords = \{(.*)\}", entry)
        if names is not None:
            cited = entry.replace(names[0], "")
            for name in names[1].split(", "):
                found.setdefault(name, []).append(cited)
    return found
