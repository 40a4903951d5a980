"""What holds for all tests."""

from hypothesis import settings

# A single example may be slow on a busy machine; whether it is says nothing about the code.
settings.register_profile("coterie", deadline=None)
settings.load_profile("coterie")
