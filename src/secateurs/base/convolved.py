"""What a convolution's weight is multiplied with. A layer of somebody else's may compute in a
forward of its own before it convolves (pad as TensorFlow does, add a dimension), so that its input
is another one than the convolution's.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

Arguments = dict[str, Any]
"""The arguments of a convolution by name."""


def convolves_plainly(module: nn.Module) -> bool:
    """Whether the module is a convolution that computes as torch's own, so that its input is what
    is convolved.
    """
    for kind in CONVOLUTIONS:
        if isinstance(module, kind):
            own = type(module)
            return own.forward is kind.forward and own._conv_forward is kind._conv_forward
    return False


class Convolving(TorchFunctionMode):
    """Calls `see` with the name of a weight, the function and its arguments, wherever torch
    convolves with that very weight.
    """

    def __init__(
        self,
        weights: Mapping[str, object],
        see: Callable[[str, Callable[..., Any], Arguments], None],
    ) -> None:
        super().__init__()
        self.names = {id(weight): name for name, weight in weights.items()}
        self.see = see

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ARGUMENTS:
            given = dict(zip(_ARGUMENTS[func], args, strict=False)) | kwargs
            name = self.names.get(id(given["weight"]))
            if name is not None:
                self.see(name, func, given)
        return func(*args, **kwargs)


_FIRST = ("input", "weight", "bias", "stride", "padding")
_TRANSPOSING = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_ARGUMENTS: dict[object, tuple[str, ...]] = {
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), (*_FIRST, "dilation", "groups")),
    **dict.fromkeys(_TRANSPOSING, (*_FIRST, "output_padding", "groups", "dilation")),
}
