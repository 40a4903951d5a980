"""The installed version."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("coterie")
except PackageNotFoundError:  # a submitted Ray job runs from the source tree
    __version__ = "0+source"
