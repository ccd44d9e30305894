"""Several processes that train together: their numbers, and tensors that lie in pieces on them, as
FSDP2 (`fully_shard`) and tensor parallelism make them.

Such a parameter is a `DTensor`: it has the shape of the whole tensor, and each process keeps the
rows (or whatever the placement says) that are its own. A mask is cut the same way, so zeros are
held piece by piece, without any communication in a step.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from secateurs.base.parameters import WHOLE_KINDS, is_sharded
from secateurs.base.random import check_generator

# Numbers of every process.


def distributed() -> bool:
    """Whether this process trains together with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(values: Tensor, device: torch.device) -> list[list[int]]:
    """These numbers of every process; the device is that of its model."""
    values = values.to(_moves_from(device))
    gathered = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, values)
    return [ranked.tolist() for ranked in gathered]


def add_(values: Tensor, group: "dist.ProcessGroup") -> None:
    """Add the values of every process of the group, in place."""
    moved = values.to(_moves_from(values.device, group))
    dist.all_reduce(moved, group=group)
    if moved is not values:
        values.copy_(moved)


def take_first_(values: Tensor, group: "dist.ProcessGroup") -> None:
    """The values of the first process of the group, in place."""
    moved = values.to(_moves_from(values.device, group))
    dist.broadcast(moved, dist.get_global_rank(group, 0), group=group)
    if moved is not values:
        values.copy_(moved)


def _moves_from(device: torch.device, group: "dist.ProcessGroup | None" = None) -> torch.device:
    """Where a collective call takes tensors from: NCCL (alone, "cuda:nccl") moves them between GPUs
    only; every other backend, and pairs such as "cpu:gloo,cuda:nccl", take those of the CPU.
    """
    backend = str(dist.get_backend(group))
    return device if "nccl" in backend and "cpu:" not in backend else torch.device("cpu")


# Tensors in pieces.


def any_sharded(tensors: Iterable[Tensor]) -> bool:
    """Whether this process has only a piece of any of these tensors."""
    # Asked of all at once, since a step of a small network is as long as what Python does in it.
    tensors = tensors if isinstance(tensors, list) else list(tensors)
    return not WHOLE_KINDS.issuperset(map(type, tensors)) and any(map(is_sharded, tensors))


def local(tensor: Tensor) -> Tensor:
    """The piece of a sharded tensor that this process holds, sharing its memory; any other tensor
    itself.
    """
    if not is_sharded(tensor):
        return tensor
    # Without gradients it is the tensor itself that is handed out; with them, a new one at each
    # call.
    with torch.no_grad():
        piece: Any = tensor.to_local()  # type: ignore[attr-defined]
    # What is still on its way from other processes is waited for: kernels of ours read addresses.
    piece = piece.wait() if hasattr(piece, "trigger_wait") else piece
    found: Tensor = piece.detach()
    return found


def laid_as(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor in the pieces of another. Gradients may lie otherwise than their parameters:
    tensor parallelism leaves sums over processes to be made. Every process calls this.
    """
    if not is_sharded(tensor):
        return tensor
    laid: Any = tensor
    placements = like.placements  # type: ignore[attr-defined]
    if laid.placements != placements:
        laid = laid.redistribute(placements=placements)
    found: Tensor = laid
    return found


def local_gradient(parameter: Tensor) -> Tensor | None:
    """Of the gradient of a parameter, what belongs to the piece that is here."""
    grad = parameter.grad
    return None if grad is None else local(laid_as(grad, parameter))


def version(tensor: Tensor) -> int:
    """Torch's count of the changes of a tensor; of a sharded one, of changes to it and to the piece
    that is here, which torch counts apart.
    """
    return tensor._version + (local(tensor)._version if is_sharded(tensor) else 0)


def versions(tensors: list[Tensor]) -> list[int]:
    """That of each."""
    return [*map(version, tensors)] if any_sharded(tensors) else [t._version for t in tensors]


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor, gathered from its pieces, which every process calls; any other itself."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        found: Tensor = tensor.detach().full_tensor()  # type: ignore[attr-defined]
    return found


def whole_mask(piece: Tensor, like: Tensor) -> Tensor:
    """The mask of a whole parameter, gathered from the pieces."""
    # As bytes, which every backend sends.
    return whole(joined(piece.to(torch.uint8), like)).bool() if is_sharded(like) else piece


def local_mask(mask: Tensor, like: Tensor) -> Tensor:
    """The piece of a whole mask, or of other values, for the piece of the parameter that this
    process holds. There may be more dimensions in front, of which each process has all.
    """
    if not is_sharded(like):
        return mask
    if is_sharded(mask):
        return local(mask)
    # Every process has the whole mask, so nothing is sent.
    front = mask.ndim - like.ndim
    for at, dim in _cuts(like):
        mask = _cut_here(mask, like, at, dim + front)
    return mask.clone(memory_format=torch.contiguous_format)


def _cut_here(values: Tensor, like: Any, at: int, dim: int) -> Tensor:
    """The part of this process, where the dimension `at` of the processes of `like` cuts `dim`."""
    pieces = values.chunk(like.device_mesh.size(at), dim)
    number = like.device_mesh.get_local_rank(at)
    # Of few rows the last processes have none.
    return pieces[number] if number < len(pieces) else values.narrow(dim, 0, 0)


def whole_places(places: Tensor, like: Tensor) -> Tensor:
    """Where entries of the piece that is here, by their places in row-major order, lie in the whole
    tensor. They rise together, since every cut keeps what it takes in order.
    """
    here = [torch.arange(size, device=places.device) for size in like.shape]
    for at, dim in _cuts(like):
        here[dim] = _cut_here(here[dim], like, at, 0)
    found, step = torch.zeros_like(places), 1
    for size, indices in zip(reversed(like.shape), reversed(here), strict=True):
        many = max(1, len(indices))  # of an empty piece there are no places either
        found += step * indices[places % many]
        places, step = places // many, step * size
    return found


def joined(piece: Tensor, like: Tensor, shape: Sequence[int] = ()) -> Tensor:
    """The piece as this process's part of a tensor that lies in pieces as `like` does; the piece
    itself where that one is whole.

    A piece may have more dimensions in front, of which each process has all; or be one of a tensor
    of another `shape`.
    """
    if not is_sharded(like):
        return piece
    from torch.distributed.tensor import DTensor

    placements: list[Any] = list(like.placements)  # type: ignore[attr-defined]
    if shape:
        stride = torch.empty(shape, device="meta").stride()
    else:
        front = piece.shape[: piece.ndim - like.ndim]
        shape, step, stride = (*front, *like.shape), like.numel(), like.stride()
        for size in reversed(front):
            stride = (step, *stride)
            step *= size
        for at, dim in _cuts(like) if front else ():
            # What fully_shard has cut after tensor parallelism says how many pieces there were.
            more = {k: v for k in ("split_factor",) if (v := getattr(placements[at], k, None))}
            placements[at] = type(placements[at])(dim + len(front), **more)
    made: Tensor = DTensor.from_local(
        piece,
        like.device_mesh,  # type: ignore[attr-defined]
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=stride,
    )
    return made


def _cuts(tensor: Any) -> list[tuple[int, int]]:
    """Over which dimensions of its processes a tensor is cut, and along which of its own, in this
    order: fully_shard cuts the pieces that tensor parallelism has made, which stand to the right.
    """
    found: list[tuple[int, int]] = []
    for at, placement in reversed([*enumerate(tensor.placements)]):
        if hasattr(placement, "dim"):
            late = len(found) if hasattr(placement, "split_factor") else 0
            found.insert(late, (at, placement.dim))
    return found


def strange_placements(tensor: Any) -> str:
    """Why the pieces of a tensor cannot be worked on one by one; empty if they can, or if it is
    whole.
    """
    if not is_sharded(tensor):
        return ""
    for at, placement in enumerate(tensor.placements):
        before = [
            tensor.device_mesh.size(i)
            for i, dim in _cuts(tensor)
            if i > at and dim == getattr(placement, "dim", None)
        ]
        known = type(placement).__name__ in ("Shard", "_StridedShard", "Replicate")
        if not known or getattr(placement, "split_factor", math.prod(before)) != math.prod(before):
            return (
                f"lies on several processes as {tuple(tensor.placements)}, of which {placement} is"
                " neither Shard nor Replicate: shard it by fully_shard, by tensor parallelism or by"
                " both"
            )
    return ""


# Numbers of whole tensors, from those of pieces. Every process calls these, with tensors in the
# same order.


def sums(counts: Mapping[str, int], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Of each tensor, the sum of what every process has counted in its own piece."""
    found = dict(counts)
    alike: dict[tuple[Any, tuple[int, ...]], list[str]] = {}
    for name in counts:
        tensor: Any = tensors[name]
        if is_sharded(tensor):
            cut = tuple(sorted(at for at, _ in _cuts(tensor)))
            alike.setdefault((tensor.device_mesh, cut), []).append(name)
    for (mesh, cut), names in alike.items():
        device = local(tensors[names[0]]).device
        numbers = torch.tensor([counts[n] for n in names], dtype=torch.int64, device=device)
        for dim in cut:
            add_(numbers, mesh.get_group(dim))
        found.update(zip(names, numbers.tolist(), strict=True))
    return found


def count_each_whole(tensors: Iterable[Tensor], count: Callable[[Tensor], Tensor]) -> list[int]:
    """What is counted in each tensor, entry by entry: of a sharded one, in all of its pieces."""
    named = {str(number): tensor for number, tensor in enumerate(tensors)}
    here = [count(local(tensor.detach())) for tensor in named.values()]
    if not here:
        return []
    # One wait for all of them.
    numbers = torch.stack([number.to(here[0].device, torch.int64) for number in here]).tolist()
    return [*sums(dict(zip(named, numbers, strict=True)), named).values()]


def agree(flags: Sequence[bool], tensors: Iterable[Tensor]) -> list[bool]:
    """Of each flag, whether any of the processes that hold pieces of these tensors has set it."""
    meshes = meshes_of(tensors)
    if not meshes:
        return list(flags)
    numbers = torch.tensor(flags, dtype=torch.int64, device=meshes[0][1])
    for mesh, _ in meshes:
        for group in mesh.get_all_groups():
            add_(numbers, group)
    return [bool(number) for number in numbers.tolist()]


def meshes_of(tensors: Iterable[Tensor]) -> list[tuple[Any, torch.device]]:
    """The processes over which these tensors lie, each with a device of theirs."""
    found: dict[Any, torch.device] = {}
    tensors = list(tensors)
    for tensor in tensors if any_sharded(tensors) else ():
        if is_sharded(tensor):
            mesh = tensor.device_mesh  # type: ignore[attr-defined]
            if mesh not in found:
                found[mesh] = local(tensor).device
    return list(found.items())


@contextmanager
def one_source(
    parameters: Iterable[Tensor], generator: torch.Generator | None
) -> Iterator[torch.Generator | None]:
    """The generator; where parameters lie in pieces on several processes, one that draws there what
    the first of them draws.
    """
    meshes = meshes_of(parameters)
    if not meshes:
        yield generator
        return
    check_generator(generator)
    device = meshes[0][1]
    own = _default(device) if generator is None else generator
    before = own.get_state()
    state = before.clone()
    for mesh, _ in meshes:
        for group in mesh.get_all_groups():
            take_first_(state, group)
    source = torch.Generator(own.device)
    source.set_state(state)
    yield source
    # Where it was the same, it goes on as it would in one process.
    if torch.equal(state, before):
        own.set_state(source.get_state())


def _default(device: torch.device) -> torch.Generator:
    """Torch's own generator of a device."""
    if device.type == "cpu":
        return torch.default_generator
    found: torch.Generator = torch.get_device_module(device).default_generators[device.index or 0]
    return found
