"""How the golden files were written, once. Run it for a new format version only, with new names."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from architectures import lenet_5
from docs.test_format import digest
from files.random_models import random_state
from heads import Heads
from secateurs.base.sizes import keep_blocks_
from secateurs.channels import compact
from secateurs.files import load_sparse, read_sparse, save_sparse

HERE = Path(__file__).parent


def keep(name, state, **options):
    path = HERE / f"{name}.safetensors"
    if path.exists():
        raise SystemExit(f"{path} exists, and golden files are never written anew")
    save_sparse(state, path, **options)
    file = read_sparse(path)
    known = {
        "tensors": {name: digest(tensor) for name, tensor in file.state.items()},
        "ties": file.ties,
    }
    known |= {"certificate": file.certificate, "notes": file.notes}
    if file.changed:
        known["changed"] = file.changed.as_dict()
    path.with_suffix(".json").write_text(json.dumps(known, indent=1), encoding="utf-8")


def main():
    model = lenet_5()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data[parameter.abs() < parameter.abs().quantile(0.95)] = 0
            parameter.data[: len(parameter) // 4] = 0
    keep(
        "lenet-5-exact",
        model,
        notes={"arch": "lenet-5"},
        certificate={"bound": 0.25, "method": "by hand"},
    )
    keep("lenet-5-int8", model, values="int8")
    keep("lenet-5-bf16", model, values="bf16")
    state = {}
    for seed in range(12):
        state |= {f"{seed}.{name}": value for name, value in random_state(seed).items()}
    keep("many-dtypes", state)


def with_sizes():
    """Version 2, written later than the others."""
    torch.manual_seed(0)
    model = Heads().eval()
    for block in model.blocks:
        # Two of four heads: their values, and what reads them.
        block.qkv.weight.data[20:] = 0
        block.qkv.bias.data[20:] = 0
    small = compact(model, torch.zeros(1, 5, 3))
    keep_blocks_(small, "blocks", [0, 3])
    keep("heads-and-blocks", small, notes={"arch": "heads"})


def compact_ones():
    """Version 3, written later still: the same networks, read from the files of before."""
    for before in ("lenet-5-exact", "lenet-5-int8", "heads-and-blocks"):
        file = read_sparse(HERE / f"{before}.safetensors")
        values = "int8" if before.endswith("int8") else "exact"
        kept = {"notes": file.notes, "certificate": file.certificate or None, "values": values}
        if not file.changed:
            keep(before.removesuffix("-exact") + "-compact", file.state, **kept)
            continue
        small = load_sparse(HERE / f"{before}.safetensors", into=Heads().eval())
        keep(f"{before}-compact", small, **kept)
    state = {}
    for seed in range(12, 16):
        state |= {f"{seed}.{name}": value for name, value in random_state(seed).items()}
    keep("dtypes-compact", state)


if __name__ == "__main__":
    main()
