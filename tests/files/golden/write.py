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
from secateurs.files import read_sparse, save_sparse

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
        "lenet-5-compact",
        model,
        notes={"arch": "lenet-5"},
        certificate={"bound": 0.25, "method": "by hand"},
    )
    keep("lenet-5-int8-compact", model, values="int8")
    keep("lenet-5-bf16-compact", model, values="bf16")
    for name, seeds in (("many-dtypes-compact", range(12)), ("dtypes-compact", range(12, 16))):
        state = {}
        for seed in seeds:
            state |= {f"{seed}.{key}": value for key, value in random_state(seed).items()}
        keep(name, state)
    torch.manual_seed(0)
    heads = Heads().eval()
    for block in heads.blocks:
        # Two of four heads: their values, and what reads them.
        block.qkv.weight.data[20:] = 0
        block.qkv.bias.data[20:] = 0
    small = compact(heads, torch.zeros(1, 5, 3))
    keep_blocks_(small, "blocks", [0, 3])
    keep("heads-and-blocks-compact", small, notes={"arch": "heads"})


if __name__ == "__main__":
    main()
