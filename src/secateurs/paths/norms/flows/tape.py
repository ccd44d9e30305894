"""The tape of a mass flow, and the way back along it: the mass of every weight and bias."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from secateurs.graph import Affine, Graph
from secateurs.paths.norms.flows.pulling import pull_affine, pull_through
from secateurs.paths.norms.flows.steps import Mass, Step
from secateurs.paths.norms.scaled import Scaled, added, rescaled


@dataclass(slots=True)
class Tape:
    """What `MassFlow` recorded."""

    graph: Graph
    steps: dict[str, Step] = field(default_factory=dict)
    flow_in: dict[str, Scaled] = field(default_factory=dict)
    marks_only: bool = False

    def pull(
        self, output: Scaled, *, visit: Callable[[str, Scaled], None] | None = None
    ) -> dict[str, Mass]:
        """Run backward from the sum of the output: the mass of every affine node.

        visit: called with each node's name and flow-out ∂‖Φ‖_q^q/∂(flow-in).
        """
        # The norm is a sum over outputs, so the gradient at each is 1.
        flow_out = {self.graph.output: Scaled(torch.ones_like(output.value), 0)}
        masses: dict[str, Mass] = {}
        for node in reversed(self.graph.nodes):
            # Popped, so that nothing is held longer than it is needed.
            out = flow_out.pop(node.name, None)
            step = self.steps.pop(node.name, None)
            if out is None:
                continue
            # Marked at each node: entries far below the largest would be lost in the
            # end.
            out = marked(out) if self.marks_only else out
            if visit is not None:
                visit(node.name, out)
            if step is None:
                continue
            if isinstance(node, Affine):
                masses[node.name], pulled = pull_affine(node, step, out)
            else:
                pulled = pull_through(step, out)
            for name, gradient in pulled:
                flow_out[name] = (
                    added(flow_out[name], gradient) if name in flow_out else gradient
                )
        return masses


def marked(scaled: Scaled) -> Scaled:
    """1 where the value is positive."""
    return rescaled((scaled.value > 0).to(scaled.value.dtype))
