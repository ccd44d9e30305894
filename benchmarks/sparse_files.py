"""Sizes of sparse files against the entropy, speed of writing and reading, ORT after compaction.

python benchmarks/sparse_files.py [sizes|zoo|onnx]      prints tables (Markdown); one thread
"""

import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from time import process_time

import torch

import shipped_models
from secateurs.channels import compact
from secateurs.files import read_sparse, save_sparse
from secateurs.ship import export, measure

SPARSITIES = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999)
ROUNDS = 3


def row(name, model, folder, values="exact"):
    """Sizes, and the best speed of writing and reading, MB of dense equivalent a CPU second."""
    path, writing, reading = Path(folder) / "m.safetensors", [], []
    for _ in range(ROUNDS):
        start = process_time()
        sizes = save_sparse(model, path, values=values)
        writing.append(process_time() - start)
        start = process_time()
        read_sparse(path)
        reading.append(process_time() - start)
    payload = (sizes.bytes - sizes.header) / sizes.entropy_bytes
    speeds = [f"{sizes.dense_bytes / 1e6 / min(times):.0f}" for times in (writing, reading)]
    shares = (
        f"{sizes.of_entropy:.3f}",
        f"{payload:.3f}",
        f"{sizes.compression:.1f}×",
    )
    cells = (name, values, f"{sizes.kept:,}", f"{sizes.bytes:,}", f"{sizes.header:,}")
    print("|", " | ".join([*cells, *shares, *speeds]), "|", flush=True)


def sizes():
    """The two networks of the figures, then values in fewer bits."""
    heads = (
        "network",
        "values",
        "kept",
        "bytes",
        "of it header",
        "÷ (n·H(s) + 32·nnz)",
    )
    heads += ("without header", "smaller than dense", "writing MB/s", "reading MB/s")
    print("|", " | ".join(heads), "|\n" + "| --- " * len(heads) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for times in (127, 413, 784):
            row(
                f"LeNet-300-100, asked {times}×",
                shipped_models.lenet300(times),
                folder,
            )
        for sparsity in SPARSITIES:
            model = shipped_models.pruned_resnet18(sparsity)
            row(f"ResNet-18, {sparsity:.1%}", model, folder)
        for values in ("bf16", "fp16", "int8"):
            row(
                "ResNet-18, 90.0%",
                shipped_models.pruned_resnet18(0.9),
                folder,
                values,
            )


def zoo():
    """The files of the zoo as they are, and written again: the version of the day they were made,
    and that of today, with the same notes and without.
    """
    print("| network | kept | bytes | header | header without notes | ÷ (n·H(s) + 32·nnz) |")
    print("| --- " * 6 + "|")
    for path in sorted((files("secateurs_lab.zoo") / "networks").glob("*.safetensors")):
        file = read_sparse(path)
        with tempfile.TemporaryDirectory() as folder:
            bare = save_sparse(file.state, f"{folder}/m")
            again = save_sparse(file.state, f"{folder}/m", notes=file.notes)
        old = file.sizes
        cells = [path.stem, f"{old.kept:,}", f"{old.bytes:,} → {again.bytes:,}"]
        cells += [f"{old.header:,} → {again.header:,}", f"{bare.header:,}"]
        print("|", " | ".join(cells), f"| {old.of_entropy:.3f} → {again.of_entropy:.3f} |")


def with_dead_channels(share):
    """ResNet-18 without that share of its channels: what meets in a skip loses the same ones."""
    model, draw = shipped_models.resnet18(), torch.Generator().manual_seed(0)
    alive = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            size = len(module.weight)
            kept = torch.randperm(size, generator=draw)[: round(size * (1 - share))]
            kept = alive.setdefault(name if name.endswith("conv1") else size, kept)
            dead = torch.ones(size, dtype=torch.bool)
            dead[kept] = False
            module.weight.data[dead] = 0
    return model


def onnx():
    """Dense and compacted, in torch and in onnxruntime, in turns."""
    model, example = with_dead_channels(0.7), torch.zeros(1, 3, 32, 32)
    small = compact(model, example)
    with tempfile.TemporaryDirectory() as folder:
        forms = {"torch dense": model, "torch compact": small}
        for name, form in (("ORT dense", model), ("ORT compact", small)):
            done = export(form, Path(folder) / f"{name}.onnx", example)
            print(
                f"{name}: {done.bytes:,} bytes, differs by {done.difference:.1e}\n",
                flush=True,
            )
            forms[name] = done.path
        table = measure(forms, example, batch_sizes=(1, 32), seconds=15)
    heads = (
        "form",
        "parameters",
        "MACs",
        "file",
        "batch 1, ms (p10 to p90)",
        "batch 32, ms",
    )
    print(
        "|",
        " | ".join((*heads, "× torch dense", "× ORT dense")),
        "|\n" + "| --- " * 8 + "|",
    )
    for form in table.forms:
        cells = [
            form.name,
            *(f"{n:,}" if n else "" for n in (form.parameters, form.macs, form.file_bytes)),
        ]
        for took in form.latency.values():
            cells.append(f"{1e3 * took.median:.2f} ({1e3 * took.low:.2f} to {1e3 * took.high:.2f})")
        for base in ("torch dense", "ORT dense"):
            both = [table.speedup(form.name, n) / table.speedup(base, n) for n in (1, 32)]
            cells.append(f"{both[0]:.2f} / {both[1]:.2f}")
        print("|", " | ".join(cells), "|")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for part in sys.argv[1:] or ("sizes", "zoo", "onnx"):
        {"sizes": sizes, "zoo": zoo, "onnx": onnx}[part]()
        print()
