"""Compiled loops are tested wherever there is a compiler, and nowhere skipped in silence."""

import shutil

import pytest


def need(kernel: object) -> None:
    """Skip where there is no compiler; fail where there is one and yet no kernel."""
    if kernel is None:
        assert not any(map(shutil.which, ("g++", "clang++", "c++"))), (
            "the compiler is there: why was it refused?"
        )
        pytest.skip("no C++ compiler on this machine")
