"""Bands around a ReLU: what their rounding is measured by."""

import torch

from secateurs.proof.forms import StreamValues
from secateurs.proof.planes import Band, Plane, band_mass


def test_the_mass_of_a_band_counts_each_of_its_terms():
    """Every term is rounded by its own size, so the sizes add up whatever the signs."""
    plane = Plane(p=torch.tensor(-2.0), q=torch.tensor(3.0), c=torch.tensor(-5.0))
    band = Band(plane=plane, half=torch.tensor(7.0), difference=True)
    mass = StreamValues(m=torch.tensor(10.0), d=torch.tensor(100.0))
    assert band_mass(band, mass) == 2 * 10 + 3 * 100 + 5 + 7
