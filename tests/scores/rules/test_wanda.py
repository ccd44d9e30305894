"""Wanda by hand, of convolutions, of tied weights, of layers called by keyword."""

import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
from scores.two_layers import check, two_layers


def test_wanda():
    """Over the examples (1, 1) and (3, -4): ‖x_1‖ = √10, ‖x_2‖ = √17; h is (0, 4) and relu(11, 5) =
    (11, 5).
    """
    x = torch.tensor([[1.0, 1.0], [3.0, -4.0]], dtype=torch.float64)
    first = [[10**0.5, 2 * 17**0.5], [3 * 10**0.5, 17**0.5]]
    check(sc.score(two_layers(), "wanda", batch=x), first, [[2 * 11.0, 41**0.5]])
    halved = [[v / 2**0.5 for v in row] for row in first]
    check(
        sc.score(two_layers(), "wanda", batch=x, convention="reference"),
        halved,
        [[22 / 2**0.5, (41 / 2) ** 0.5]],
    )


def test_wanda_sees_layers_that_are_called_by_keyword():
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            return self.inner(input=x)

    model, x = ByKeyword(), torch.randn(5, 3)
    plain = sc.score(nn.Sequential(model.inner), "wanda", batch=x)["0.weight"]
    assert torch.equal(sc.score(model, "wanda", batch=x)["inner.weight"], plain)


def test_wanda_of_a_convolution_is_wanda_of_the_unfolded_linear_layer():
    for groups in (1, 2):
        conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=1, groups=groups).double()
        x = torch.randn(3, 4, 7, 7, dtype=torch.float64)
        # [channel·9, example·position].
        columns = F.unfold(x, 3, padding=1, stride=2).transpose(0, 1).flatten(1)
        norms = (
            columns.norm(dim=1)
            .view(groups, 1, 4 // groups, 3, 3)
            .expand(groups, 6 // groups, -1, -1, -1)
        )
        expected = conv.weight.detach().abs() * norms.reshape(conv.weight.shape)
        torch.testing.assert_close(sc.score(conv, "wanda", batch=x)["weight"], expected)


class Toeplitz(nn.Conv1d):
    """A matrix by a convolution, on vectors: as in PESTO's encoder of pitch."""

    def forward(self, x):
        return super().forward(x.unsqueeze(-2)).squeeze(-2)


class PadsItself(nn.Conv2d):
    """As TensorFlow pads; called by keyword."""

    def forward(self, x):
        x = F.pad(x, (0, 1, 0, 1))
        return F.conv2d(input=x, weight=self.weight, bias=self.bias, stride=self.stride)


def test_wanda_of_a_convolution_with_a_forward_of_its_own_is_of_what_it_convolves():
    torch.manual_seed(0)
    net, x = Toeplitz(1, 1, 5, padding=2).double(), torch.randn(3, 8, dtype=torch.float64)
    plain = nn.Conv1d(1, 1, 5, padding=2).double()
    plain.load_state_dict(net.state_dict())
    expected = sc.score(plain, "wanda", batch=x[:, None])["weight"]
    torch.testing.assert_close(sc.score(net, "wanda", batch=x)["weight"], expected)
    net, x = PadsItself(2, 3, 3, stride=2).double(), torch.randn(3, 2, 8, 8, dtype=torch.float64)
    other = nn.Conv2d(2, 3, 3, stride=2).double()
    other.load_state_dict(net.state_dict())
    expected = sc.score(other, "wanda", batch=F.pad(x, (0, 1, 0, 1)))["weight"]
    torch.testing.assert_close(sc.score(net, "wanda", batch=x)["weight"], expected)


def test_wanda_of_transposed_and_reflecting_convolutions():
    """‖x_j‖² is ∂/∂w_ij of the sum of op(x²; w), which each class computes itself."""
    torch.manual_seed(0)
    up = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2)
    around = nn.Conv1d(4, 6, 3, padding=2, padding_mode="reflect", dilation=2)
    for layer, x in ((up, torch.randn(2, 4, 5, 5)), (around, torch.randn(2, 4, 9))):
        layer.double()
        x = x.double()
        (met,) = torch.autograd.grad(layer(x.square()).sum(), [layer.weight])
        expected = met.sqrt() * layer.weight.detach().abs()
        torch.testing.assert_close(sc.score(layer, "wanda", batch=x)["weight"], expected)


def test_wanda_adds_up_over_the_uses_of_a_tied_weight():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    net, x = Twice().double(), torch.randn(5, 3, dtype=torch.float64)
    met = torch.cat([x, net.a(x).detach()]).norm(dim=0)
    torch.testing.assert_close(
        sc.score(net, "wanda", batch=x)["a.weight"], net.a.weight.detach().abs() * met
    )
