"""Whether installed packages work: files found, a network pruned, held and saved; with the
laboratory, a run of a study.

Command: `make dist` runs it in an empty environment, for each wheel and each sdist.
"""

import tempfile
from importlib import resources, util
from pathlib import Path

import torch
from torch import nn

import secateurs as sc


def main() -> None:
    """The library, and the laboratory where it is installed."""
    try_library()
    if util.find_spec("secateurs_lab") is not None:
        try_laboratory()


def require_files(package: str, wanted: set[str]) -> None:
    files = {path.name for path in resources.files(package).rglob("*") if path.is_file()}
    if missing := wanted - files:
        raise SystemExit(f"{package} lacks {', '.join(sorted(missing))}")


def try_library() -> None:
    """Prune, hold, save and read back; every kind of file of the package is there."""
    require_files("secateurs", {"py.typed", "compiled.cpp", "cut.cpp", "kernels.cpp"})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))
    dense = [parameter.clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruned = sc.prune_(model, "magnitude", sparsity=0.9)
    with sc.hold(model, pruned.masks, optimizer):
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
    if all(torch.equal(a, b) for a, b in zip(dense, model.parameters(), strict=True)):
        raise SystemExit("nothing was trained")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        sc.save_sparse(model, path)
        again = sc.load_sparse(path)
    if not all(torch.equal(again[name], value) for name, value in model.state_dict().items()):
        raise SystemExit("the weights came back changed")
    print(f"secateurs {sc.__version__}: {sc.sparsity_report(model).total.kept} weights kept")


def try_laboratory() -> None:
    """One run of a study on the embedded digits, and its page."""
    import secateurs_lab as lab
    from secateurs_lab.study import Dense, Study, Training, run

    require_files("secateurs_lab", {"py.typed", "page.css", "page.js"})
    if not list(lab.zoo.names()):
        raise SystemExit("the zoo is empty")
    study = Study(methods=Dense(), train=Training(length="1ep"))
    with tempfile.TemporaryDirectory() as folder:
        with run(study, folder, watchers=()) as store:
            (row,) = store.rows()
        if row.state != "done":
            raise SystemExit(f"the run of a study is {row.state}")
    print(f"secateurs-lab {lab.__version__}: a run of a study is {row.state}")


if __name__ == "__main__":
    main()
