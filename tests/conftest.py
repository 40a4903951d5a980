"""What holds for all tests."""

from hypothesis import settings
from jaxtyping import install_import_hook

from tests.shape_checks import CHECKED

# Before any import of coterie: shapes in annotations are checked, which production never does.
install_import_hook(CHECKED, "tests.shape_checks.check_after_call")

# A single example may be slow on a busy machine; whether it is says nothing about the code.
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")
