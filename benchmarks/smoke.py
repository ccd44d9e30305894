"""Whether an installed package works: files found, C++ included, a net pruned, held and saved.

Command: `make dist` runs it in an empty environment, once for the wheel and once for the sdist.
"""

import tempfile
from importlib import resources
from pathlib import Path

import torch

import secateurs as sc
import secateurs_lab as lab


def main() -> None:
    """Prune, hold, save and read back; every data file of the package is there."""
    files = {path.name for path in resources.files("secateurs").rglob("*") if path.is_file()}
    missing = {"py.typed", "compiled.cpp", "cut.cpp"} - files
    if missing:
        raise SystemExit(f"the package lacks {', '.join(sorted(missing))}")
    model = lab.models.build("lenet-300-100", size=8, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruned = sc.prune_(model, "magnitude", sparsity=0.9)
    with sc.hold(model, pruned.masks, optimizer):
        model(torch.randn(4, 1, 8, 8)).square().mean().backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "masks.safetensors"
        sc.save_masks(pruned.masks, path)
        again = sc.load_masks(path)
    if not all(torch.equal(again[name], mask) for name, mask in pruned.masks.items()):
        raise SystemExit("masks came back changed")
    print(f"secateurs {sc.__version__}: {sc.sparsity_report(model).total.kept} weights kept")


if __name__ == "__main__":
    main()
