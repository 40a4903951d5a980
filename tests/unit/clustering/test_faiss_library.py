import os
import subprocess
import sys

import pytest
import torch
from threadpoolctl import threadpool_info

from coterie.clustering.kmeans import faiss

SHOWN = """
import os
from coterie.clustering.kmeans import faiss
from threadpoolctl import threadpool_info
print(os.environ.get("OPENBLAS_CORETYPE"), *(
    library["architecture"]
    for library in threadpool_info()
    if library["user_api"] == "blas" and "faiss" in library["filepath"]
))
"""


def shown(**environment):
    keep = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    done = subprocess.run(
        [sys.executable, "-c", SHOWN],
        env=keep | environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.stdout.split()


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512"
    or not any(faiss.__name__ in library["filepath"] for library in threadpool_info()),
    reason="only where FAISS has a BLAS of its own and the CPU AVX-512",
)
def test_faiss_has_the_cpus_kernels_unless_the_user_named_others():
    assert shown() == ["None", "SkylakeX"]
    assert shown(OPENBLAS_CORETYPE="Haswell") == ["Haswell", "Haswell"]
