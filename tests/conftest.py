"""What holds for every test."""

from hypothesis import settings

# A deadline per example is an assert on the wall clock: it fails on a busy machine and says nothing about the code.
settings.register_profile("evotrainer", deadline=None)
settings.load_profile("evotrainer")
