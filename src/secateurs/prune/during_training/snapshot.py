"""The state of a model at one moment, to go back to."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateurs.errors import TrainingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Copies of every parameter, buffer (batch-norm statistics, counters) and gradient, and each
    module's mode.
    """

    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    modes: Mapping[str, bool]

    @classmethod
    @torch.no_grad()
    def of(cls, model: nn.Module) -> "Snapshot":
        """The state of the model now."""
        return cls(
            parameters={
                name: p.detach().clone() for name, p in model.named_parameters()
            },
            buffers={name: b.clone() for name, b in model.named_buffers()},
            gradients={
                n: p.grad.clone()
                for n, p in model.named_parameters()
                if p.grad is not None
            },
            modes={name: module.training for name, module in model.named_modules()},
        )

    @torch.no_grad()
    def restore_(self, model: nn.Module) -> None:
        """Put parameters, buffers and modes back, in place; no gradients are left."""
        # Checked before anything is written: half a restored model would be worse than
        # an error.
        problems = self._changed(model)
        if problems:
            raise TrainingError(
                f"{', '.join(map(repr, problems))} appeared, vanished or changed shape since the"
                " snapshot, so the model cannot be put back: run one forward pass before, and"
                " replace no tensors in training."
            )
        self.undo_(model)
        model.zero_grad(set_to_none=True)

    @torch.no_grad()
    def undo_(self, model: nn.Module) -> None:
        """Put back all that is still there, gradients too: after an error."""
        # Never raises: it runs while another error is on its way, and that one is the
        # news.
        changed = self._changed(model)
        for name, parameter in model.named_parameters():
            if name not in changed:
                # In place: optimizers and users hold references to these very
                # parameters.
                parameter.copy_(self.parameters[name])
                gradient = self.gradients.get(name)
                parameter.grad = None if gradient is None else gradient.clone()
        for name, buffer in model.named_buffers():
            if name not in changed:
                buffer.copy_(self.buffers[name])
        for name, module in model.named_modules():
            module.training = self.modes.get(name, module.training)

    def _changed(self, model: nn.Module) -> list[str]:
        """Names that were not there, are not there any more, or have another shape."""
        saved = {
            name: value.shape
            for name, value in (*self.parameters.items(), *self.buffers.items())
        }
        current = {
            name: value.shape
            for name, value in (*model.named_parameters(), *model.named_buffers())
        }
        return [
            name
            for name in sorted(saved | current)
            if saved.get(name) != current.get(name)
        ]
