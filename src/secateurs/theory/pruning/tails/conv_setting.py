"""The network of Theorem 3: its sizes, checked."""

import math
from dataclasses import dataclass

from secateurs.errors import ArgumentError
from secateurs.theory.checks import check_depth, check_positive, check_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvSetting:
    """The network of Theorem 3: l layers, d channels, q×q kernels, p×p maps, input of d0 channels
    p0×p0 in [−1, 1].

    `outputs` is the height of the linear layer; only `theorem_3_explicit` uses it.
    """

    depth: int
    channels: int
    kernel: int
    map_size: int
    input_channels: int = 3
    input_size: int | None = None
    lipschitz: float = 1.0
    outputs: int = 10

    @property
    def input_norm(self) -> float:
        """p0 √d0 ≥ ‖x‖₂ (print says √d in some lines)."""
        return (
            self.map_size if self.input_size is None else self.input_size
        ) * math.sqrt(self.input_channels)


def check_setting(setting: ConvSetting, **positive: float) -> None:
    """A depth of at least three, whole sizes, and a kernel no larger than the maps."""
    check_whole(
        **{
            name: value
            for name, value in _sizes(setting).items()
            if value is not None
        }
    )
    check_depth(setting.depth)
    check_positive(lipschitz=setting.lipschitz, **positive)
    least = min(
        setting.map_size,
        setting.map_size if setting.input_size is None else setting.input_size,
    )
    if setting.kernel > least:
        raise ArgumentError(
            f"kernel = {setting.kernel} is larger than the {least} x {least} map it slides over:"
            " give a smaller one."
        )


def _sizes(setting: ConvSetting) -> dict[str, int | None]:
    names = (
        "depth",
        "channels",
        "kernel",
        "map_size",
        "input_channels",
        "input_size",
        "outputs",
    )
    return {name: getattr(setting, name) for name in names}
