"""For all tests: hypothesis draws the same examples every time, however slow the machine is."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("repeatable")
