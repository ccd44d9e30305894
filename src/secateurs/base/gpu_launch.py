"""A kernel in Triton that is launched in every step, or for every input."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from triton.compiler import CompiledKernel


class Repeated:
    """A kernel on one device. Triton finds out in every call which kernel to launch, which takes
    the host longer than the launch; here what it has compiled is kept, and launched at once for
    other arguments of the same kind.
    """

    def __init__(self, kernel: Any, **options: object) -> None:
        self._kernel, self._options = kernel, options
        self._ready: dict[object, Callable[..., object]] = {}
        self._takes_constants = True

    def __call__(
        self,
        programs: int,
        arguments: Sequence[object],
        constants: Mapping[str, object],
        kind: object = None,
    ) -> None:
        """Launch it, on the current device.

        Args:
            programs: how many.
            arguments: in the order in which the kernel takes them.
            constants: its constants, in that order, after all others.
            kind: what Triton asks of the arguments, as far as it differs between calls: whole
                numbers, the dtypes of tensors, whether they begin at multiples of 16 bytes.
        """
        key = programs, kind, *constants.values()
        if self._takes_constants and (ready := self._ready.get(key)) is not None:
            try:
                ready(*arguments, *constants.values())
                return
            except TypeError:  # a Triton that takes no constants here launches as it does
                self._takes_constants = False
        grid = programs, 1, 1
        compiled = self._kernel[grid](*arguments, **constants, **self._options)
        # Its interpreter compiles nothing.
        if isinstance(compiled, CompiledKernel):
            self._ready[key] = compiled[grid]
