"""Folders of classes that remember which process of which node read them."""

import os

import ray

from coterie.datamodules.folders import ClassFolders


class Watched(ClassFolders):
    class Config(ClassFolders.Config):
        """The same."""

    def open_half(self, half):
        source = super().open_half(half)
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "serial"
        with (self.path / ".reads").open("a") as file:
            file.write(f"{os.getpid()} {node}\n")
        return source
