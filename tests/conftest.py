"""What holds for every test."""

import os

from hypothesis import settings

# A deadline per example is an assert on the wall clock: it fails on a busy machine and says nothing about the code.
# Examples are the same in every run, so that a red run means a change and not a lucky draw; to look for new ones:
# TEST_EXPLORE=1 pytest.
settings.register_profile("evotrainer", deadline=None, derandomize="TEST_EXPLORE" not in os.environ)
settings.load_profile("evotrainer")
