"""Bounds of networks whose weights are computed, against 300 bits."""

import pytest
import torch

import secateurs as sc
from attack.computed import draw, exact
from secateurs.proof.methods import METHODS


def violations(seed: int) -> list[str]:
    """What a certificate of one pair says wrongly."""
    dtype = (torch.float32, torch.float64)[seed % 2]
    f, g = draw(seed, dtype)
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1, f.inputs, generator=generator).to(dtype).double()
    half = 10.0 ** -int(torch.randint(5, (), generator=generator))
    box = (centre - half, centre + half)
    found = []
    for rounding in ("auto", True):
        cert = sc.certify(f, g, box=box, methods=METHODS.names(), rounding=rounding, steps=3)
        points = [cert.worst_input.flatten()]
        share = torch.rand(6, f.inputs, generator=generator).double()
        share[:3] = share[:3].round()
        points += [box[0][0] + s * (box[1] - box[0])[0] for s in share]
        for place, x in enumerate(points):
            if rounding is True:
                # The networks as they run, on an input that they can hold.
                x = x.to(dtype)
                if not bool(((x >= box[0][0]) & (x <= box[1][0])).all()):
                    continue
                with torch.no_grad():
                    gaps = (f(x[None]).double() - g(x[None]).double()).abs().flatten().tolist()
            else:
                gaps = [abs(a - b) for a, b in zip(exact(f, x), exact(g, x), strict=True)]
            # Unequal signs may leave a named method out; each of the others holds alone.
            for name, bound in cert.bounds.items():
                if max(gaps) > bound:
                    found.append(f"seed {seed} {rounding} {name}: {float(max(gaps))} > {bound}")
            if place == 0 and rounding == "auto" and max(gaps) < cert.lower_bound:
                found.append(f"seed {seed}: found {cert.lower_bound}, is {float(max(gaps))}")
    return found


@pytest.mark.parametrize("seed", range(6))
def test_computed_weights_are_bounded_with_their_rounding(seed):
    assert violations(seed) == []


@pytest.mark.slow
def test_two_hundred_networks_of_computed_weights():
    assert [text for seed in range(6, 206) for text in violations(seed)] == []
