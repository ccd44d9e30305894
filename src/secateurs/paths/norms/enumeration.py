"""The path lifting itself, path by path: the slow oracle of everything else in this package.

Every path is enumerated, so this is for tiny networks only. Products are exact rationals.
"""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

from secateurs.graph import Example, Graph
from secateurs.graph import capture as read
from secateurs.graph.propagate import propagate
from secateurs.naming import renamed
from secateurs.paths.norms.edges import Path
from secateurs.paths.norms.enumerated import Enumeration, size_of
from secateurs.paths.norms.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifting:
    """Φ(θ) and A(θ, x) of one sample.

    Attributes:
        phi: One entry per path.
        starts, ends: Of each path; −1 starts in a bias.
        active: The path activations a_p.
        sample: The flattened input.
    """

    paths: tuple[Path, ...]
    phi: Tensor
    starts: Tensor
    ends: Tensor
    active: Tensor
    sample: Tensor
    outputs: int

    @property
    def activations(self) -> Tensor:
        """A(θ, x): a row per path, a column per input coordinate, the last for biases."""
        matrix = torch.zeros(
            len(self.paths), self.sample.numel() + 1, dtype=torch.float64
        )
        columns = torch.where(self.starts < 0, self.sample.numel(), self.starts)
        matrix[torch.arange(len(self.paths)), columns] = self.active.double()
        return matrix

    def realisation(self) -> Tensor:
        """⟨Φ, A·(x, 1)⟩ per output: what the network computes."""
        fed = self.activations @ torch.cat(
            [self.sample, torch.ones(1, dtype=torch.float64)]
        )
        return torch.zeros(self.outputs, dtype=torch.float64).index_add(
            0, self.ends, self.phi * fed
        )

    def norm(self, q: float = 1) -> float:
        """‖Φ‖_q."""
        return float((self.phi.abs() ** q).sum() ** (1 / q))

    def exact_norm(self) -> Fraction:
        """‖Φ‖₁ in exact rational arithmetic, of the effective weights as float64 holds them."""
        return sum((abs(path.product) for path in self.paths), Fraction(0))


@renamed(x="example")
def lifting(
    model: nn.Module, example: Example, *, graph: Graph | None = None
) -> Lifting:
    """Enumerate all paths of a tiny network, with their activations at the first sample of x.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1, bias=False))
    >>> for value, parameter in zip([2.0, 1.0, -3.0], model.parameters()):
    ...     _ = parameter.data.fill_(value)
    >>> lifting(model, torch.ones(1, 1)).phi.sort().values
    tensor([-6., -3.], dtype=torch.float64)

    Reference: Path-metrics, pruning, and generalization, Definitions A.5 and A.6.
    """
    graph = graph or read(model, example)
    state = {name: value.detach() for name, value in graph.state(model).items()}
    several = example.values() if isinstance(example, dict) else example
    sample = [example] if isinstance(example, Tensor) else list(several)
    # Activations are decided in float64, as everywhere else in this package.
    fed = [tensor[:1].double() for tensor in sample]
    recorder = Recorder()
    propagate(graph, recorder, fed, state)
    paths = tuple(Enumeration(graph, state, recorder.values).paths())
    return Lifting(
        paths=paths,
        phi=torch.tensor(
            [float(path.product) for path in paths], dtype=torch.float64
        ),
        starts=torch.tensor([path.start for path in paths], dtype=torch.int64),
        ends=torch.tensor([path.end for path in paths], dtype=torch.int64),
        active=torch.tensor([path.active for path in paths], dtype=torch.bool),
        sample=torch.cat([tensor.flatten() for tensor in fed]),
        outputs=size_of(graph.by_name[graph.output]),
    )
