"""What every test gets: the device under test, chosen before pygpukit is imported, and a seeded generator."""

import os

os.environ["PYGPUKIT_DEVICE"] = os.environ.get("PYGPUKIT_TEST_DEVICE", "cpu")

import tempfile
import zlib

import hypothesis
import numpy as np
import pytest

# An account of the device that no other program of this user shares.
_runtime = tempfile.TemporaryDirectory(prefix="pygpukit-test-")
os.environ["PYGPUKIT_RUNTIME_DIR"] = _runtime.name

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=100)
hypothesis.settings.load_profile("fixed")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Seeded by the test's name, so that a failure repeats alone."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
