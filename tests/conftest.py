"""What every test process needs before anything is imported."""

import os

# Workers of pytest-xdist share the cores with each other and with engines: thread pools that spin would starve them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from hypothesis import settings

# A busy machine is no failure: examples have no deadline of their own, tests have their timeout.
settings.register_profile("roundhouse", deadline=None)
settings.load_profile("roundhouse")
