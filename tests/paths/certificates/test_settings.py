"""Options that would be ignored are refused."""

import pytest
import torch

import secateurs as sc
from paths.certificates.pairs import pair
from secateurs.errors import ArgumentError


def test_options_that_would_be_ignored_are_refused():
    dense, sparse = pair()
    for options in ({"methods": "linear"}, {"rounding": True}):
        with pytest.raises(ArgumentError, match=r"with data= alone.*radius="):
            sc.certify(dense, sparse, data=torch.randn(40, 3), **options)
