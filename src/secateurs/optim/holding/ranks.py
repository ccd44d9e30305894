"""The same mask bits on every process of a distributed run, checked."""

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from secateurs.errors import MaskError
from secateurs.parameters import Params


def distributed() -> bool:
    """Whether this process trains together with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def check_ranks(
    model: nn.Module, masks: Params, problems: Sequence[str], *, prefix: str = ""
) -> None:
    """Compare a digest of every mask with those of all other ranks; raise the same `MaskError` on
    each rank.

    A collective call: every rank must make it, also one whose masks do not fit (it passes its
    `problems`), or the others would wait for it. `prefix` is what a wrapper put in front of the
    names of the masks.
    """
    names = [
        name.removeprefix(prefix)
        for name, _ in model.named_parameters(remove_duplicate=False)
    ]
    device = _device(model)
    # First what every rank can send whatever has happened to it: the tensor gathered
    # next has as many entries as there are names, and differing lengths would hang or
    # crash the collective.
    status = _gather(torch.tensor([len(names), len(problems)]), device)
    failed = [rank for rank, (_, count) in enumerate(status) if count]
    if problems or failed:
        own = (
            "; ".join(problems)
            or f"the masks of rank {failed} do not fit; see the error there"
        )
        raise MaskError(f"{own}. Nothing is held on any rank.")
    if len({count for count, _ in status}) > 1:
        raise MaskError(
            f"the models of the ranks have {[count for count, _ in status]} parameter names; hold"
            " needs the same model on every rank, or same_on_ranks=False where ranks train"
            " different models."
        )
    digests = _gather(
        torch.tensor([_digest(masks.get(name)) for name in names], dtype=torch.int64),
        device,
    )
    _compare(names, digests)


def _compare(names: Sequence[str], digests: Sequence[Sequence[int]]) -> None:
    apart = [
        name
        for name, column in zip(names, zip(*digests, strict=True), strict=True)
        if len(set(column)) > 1
    ]
    if apart:
        raise MaskError(
            f"the masks of {', '.join(map(repr, apart))} are not the same on all {len(digests)}"
            " ranks. Draw them from generators with the same seed and from scores of the same"
            " batch, or broadcast them from rank 0."
        )


def _digest(mask: Tensor | None) -> int:
    """63 bits that stand for a mask; 0 for none."""
    if mask is None:
        return 0
    flat = mask.detach().flatten().to("cpu", torch.uint8)
    # Eight booleans to a byte: an eighth is left to hash.
    padded = torch.cat([flat, flat.new_zeros(-flat.numel() % 8)]).view(-1, 8)
    packed = (padded << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)
    digest = hashlib.blake2b(f"{tuple(mask.shape)}".encode(), digest_size=8)
    digest.update(packed.numpy().tobytes())
    # Shifted to fit a signed int64; the last bit is set, so that no mask looks like the
    # 0 of none.
    return (int.from_bytes(digest.digest(), "little") >> 1) | 1


def _gather(values: Tensor, device: torch.device) -> list[list[int]]:
    values = values.to(device)
    gathered = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, values)
    return [ranked.tolist() for ranked in gathered]


def _device(model: nn.Module) -> torch.device:
    """NCCL moves tensors between GPUs only; every other backend takes those of the CPU."""
    if dist.get_backend() == "nccl":
        return next(model.parameters()).device
    return torch.device("cpu")
