"""Kernels in Triton are tested in its interpreter, on a processor:

    TRITON_INTERPRET=1 python -m pytest -m "" tests/optim/factorized/test_gpu_step.py

The variable has to be there before anything imports Triton, which reads it then.
"""

import os
from importlib.util import find_spec

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
interpreted = pytest.mark.skipif(
    not INTERPRETED, reason="in Triton's interpreter alone: TRITON_INTERPRET=1"
)


def need() -> None:
    """Skip elsewhere."""
    if not INTERPRETED:
        pytest.skip("in Triton's interpreter alone: TRITON_INTERPRET=1")
