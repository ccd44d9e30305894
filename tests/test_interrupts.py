"""Ctrl-C inside a long call: at every step that it reports, the models, their modes and the files
are afterwards what they were."""

import copy
import os
import signal
import sys
import tempfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import secateurs as sc
from secateurs.base.progress import silent
from secateurs.channels import compact
from secateurs.errors import DataError
from secateurs.llm import prune_file, unpack_bitmasks
from secateurs.ship import export, latency_table, measure

pytestmark = pytest.mark.usefixtures("heard")


class Blocks(nn.Module):
    """Three blocks, of which the last two share a weight."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3))
        self.blocks[2][0].weight = self.blocks[1][0].weight

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def chain(*, pruned=False):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 40), nn.ReLU(), nn.Linear(40, 3)
    ).eval()
    if pruned:
        sc.prune_(model, "magnitude", sparsity=0.8)
    return model


def certify(folder, progress):
    f, g = chain(), chain(pruned=True)
    x = torch.rand(2, 1, 8, 8)
    return (f, g), lambda: sc.certify(f, g, around=x, radius=0.05, progress=progress)


def certify_until_a_target(folder, progress):
    f, g = chain(), chain(pruned=True)
    box = torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), 1e-3)
    return (f, g), lambda: sc.certify(f, g, box=box, target=0, seconds=2, progress=progress)


def recheck(folder, progress):
    f, g = chain(), chain(pruned=True)
    kept = sc.certify(f, g, around=torch.rand(1, 1, 8, 8), radius=0.05, methods="linear").to_json()
    return (f, g), lambda: sc.proof.recheck(kept, f, g, progress=progress)


def accelerate(folder, progress):
    model = chain(pruned=True)
    return (model,), lambda: sc.accelerate(model, torch.zeros(1, 1, 8, 8), progress=progress)


def time_layers(folder, progress):
    model = nn.Sequential(nn.Embedding(9, 64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    sc.prune_(model.eval(), "magnitude", sparsity=0.9, where=["1.*", "3.*"])
    example = torch.zeros(2, 5, dtype=torch.long)
    return (model,), lambda: sc.accelerate(model, example, progress=progress)


def cut_channels(folder, progress):
    model = chain(pruned=True)
    model[0].weight.data[1] = 0
    return (model,), lambda: compact(model, torch.zeros(1, 1, 8, 8), progress=progress)


def reconstruct(folder, progress):
    dense, model = chain(), chain(pruned=True)
    x = torch.rand(200, 1, 8, 8)
    return (dense, model), lambda: sc.reconstruct_(model, dense, batch=x, progress=progress)


def by_blocks(score, **fields):
    def begin(folder, progress):
        torch.manual_seed(0)
        model, x = Blocks(), torch.randn(64, 8)
        return (model,), lambda: sc.prune_blocks_(
            model, score, sparsity=0.5, batch=x, progress=progress, **fields
        )

    return begin


def write(folder, progress):
    model = chain(pruned=True)
    (folder / "m.pt2").write_bytes(b"earlier")
    return (model,), lambda: export(
        model, folder / "m.pt2", torch.zeros(1, 1, 8, 8), progress=progress
    )


def prune_a_file(folder, progress):
    save_file(
        {"a.weight": torch.rand(8, 8), "b.weight": torch.rand(8, 8)}, folder / "m.safetensors"
    )
    (folder / "s.safetensors").write_bytes(b"earlier")
    return (), lambda: prune_file(
        folder / "m.safetensors",
        folder / "s.safetensors",
        sparsity=0.5,
        masks_out=folder / "masks.safetensors",
        progress=progress,
    )


def unpack_a_file(folder, progress):
    held = torch.tensor([[1.0, 0.0, 2.0, 0.0]])
    save_file(
        {
            "a.compressed": held[held != 0],
            "a.bitmask": torch.tensor([[0b101]], dtype=torch.uint8),
            "a.shape": torch.tensor([1, 4]),
            "a.row_offsets": torch.tensor([[0]]),
        },
        folder / "packed.safetensors",
    )
    return (), lambda: unpack_bitmasks(
        folder / "packed.safetensors", folder / "plain.safetensors", progress=progress
    )


def time_forms(folder, progress):
    model = chain()
    forms, example = {"one": model, "two": model}, torch.zeros(1, 1, 8, 8)
    return (model,), lambda: measure(forms, example, seconds=0.05, progress=progress)


def time_channels(folder, progress):
    model = chain()
    example = torch.zeros(1, 1, 8, 8)
    return (model,), lambda: latency_table(
        model, example, kind="channels", densities=(1, 0.5), progress=progress
    )


CALLS = {
    "certify": certify,
    "certify, target": certify_until_a_target,
    "recheck": recheck,
    "accelerate": accelerate,
    "accelerate, layers": time_layers,
    "compact": cut_channels,
    "reconstruct_": reconstruct,
    "prune_blocks_, wanda": by_blocks("wanda", scope="row"),
    "prune_blocks_, global": by_blocks("magnitude"),
    "prune_blocks_, reconstruct": by_blocks("wanda", scope="row", reconstruct=True),
    "prune_blocks_, sparsegpt": by_blocks("sparsegpt"),
    "prune_blocks_, owl": by_blocks("wanda", scope="row", amounts="owl"),
    "export": write,
    "prune_file": prune_a_file,
    "unpack_bitmasks": unpack_a_file,
    "measure": time_forms,
    "latency_table": time_channels,
}


def everything_of(models):
    """Values, modes, hooks and gradients of the models."""
    return [
        (
            name,
            module.training,
            len(module._forward_hooks) + len(module._forward_pre_hooks),
            sorted(vars(module)),
            {key: (id(p), p.requires_grad, p.detach().clone()) for key, p in own.items()},
        )
        for model in models
        for name, module in model.named_modules()
        for own in [module._parameters | module._buffers]
    ]


def same(before, after):
    return len(before) == len(after) and all(
        a[:4] == b[:4]
        and a[4].keys() == b[4].keys()
        and all(
            a[4][key][:2] == b[4][key][:2] and torch.equal(a[4][key][2], b[4][key][2])
            for key in a[4]
        )
        for a, b in zip(before, after, strict=True)
    )


def files_of(*folders):
    return {path: path.read_bytes() for at in folders for path in at.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_leaves_models_and_files_as_they_were(name, tmp_path, monkeypatch):
    # Timings that earlier steps remembered would spare later ones.
    monkeypatch.setenv("SECATEURS_TUNING", "0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    # At the first step, then at the second, until the call ends; of a long proof the first are
    # enough.
    for last in range(1, 13):
        folder = tmp_path / str(last)
        folder.mkdir()
        models, run = CALLS[name](folder, stopper(last))
        before, files = everything_of(models), files_of(folder)
        try:
            run()
        except KeyboardInterrupt:
            assert same(before, everything_of(models))
            assert files_of(folder) == files and not files_of(tmp_path / "tmp")
        else:
            break
    assert last > 1, "the call reported no step"


# Two instructions lie between the end of a call and what makes a Ctrl-C wait: not tried. Nor is
# torch's own switch of gradients, which stays off where a Ctrl-C comes as it is turned on again.
UNTRIED = ("interrupts.py", "contextlib.py", "signal.py", "threading.py", "grad_mode.py")


def presser(last):
    """For `sys.setprofile`: Ctrl-C as this call of a Python function begins, and how many began."""
    begun = []

    def see(frame, event, argument):
        if event == "call" and not frame.f_code.co_filename.endswith(UNTRIED):
            begun.append(frame.f_code.co_name)
            if len(begun) == last:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    return see, begun


@pytest.mark.parametrize(
    "name",
    [
        "certify",
        pytest.param("accelerate, layers", marks=pytest.mark.slow),  # a minute and more
        "reconstruct_",
        "prune_blocks_, wanda",
        "prune_file",
    ],
)
def test_ctrl_c_at_any_moment(name, tmp_path, monkeypatch):
    """Between steps, too: what is found is as before, or whole."""
    monkeypatch.setenv("SECATEURS_TUNING", "0")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()

    def begin(last):
        folder = tmp_path / str(last)
        folder.mkdir()
        torch.manual_seed(0)
        models, run = CALLS[name](folder, silent)
        return models, run, folder

    def press(run, last):
        see, begun = presser(last)
        sys.setprofile(see)
        try:
            run()
        finally:
            sys.setprofile(None)
        return len(begun)

    begin(-2)[1]()  # what a first call imports and keeps
    models, run, folder = begin(-1)
    count, whole = press(run, 0), everything_of(models)
    files = {path.name: content for path, content in files_of(folder).items()}
    stopped = 0
    for last in range(1, count, max(1, count // 30)):
        models, run, folder = begin(last)
        before, earlier = everything_of(models), files_of(folder)
        try:
            press(run, last)
        except KeyboardInterrupt:
            stopped += 1
            after, found = everything_of(models), files_of(folder)
            assert not files_of(tmp_path / "tmp")
            undone = same(before, after) and found == earlier
            assert undone or (
                {path.name: content for path, content in found.items()} == files
                and same_values(whole, after)
            )
    assert stopped > 10 and torch.is_grad_enabled()


def same_values(these, others):
    """As `same`, of two models."""
    return all(
        a[:4] == b[:4] and all(torch.equal(a[4][key][2], b[4][key][2]) for key in a[4])
        for a, b in zip(these, others, strict=True)
    )


def stopper(last):
    """Something to be told of steps that does not survive this one."""
    told = []

    def tell(text):
        told.append(text)
        if len(told) == last:
            raise KeyboardInterrupt

    return tell


def test_an_error_in_a_later_block_leaves_the_earlier_ones_as_they_were():
    model, x = Blocks(), torch.randn(64, 8)
    before = copy.deepcopy(model.state_dict())
    model.blocks[2].register_forward_pre_hook(lambda block, given: 1 / 0 if pruned() else None)

    def pruned():
        return (model.blocks[0][0].weight == 0).any()

    with pytest.raises(ZeroDivisionError):
        sc.prune_blocks_(model, "wanda", scope="row", sparsity=0.5, batch=x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no disk that is always full")
def test_where_the_disk_is_full_nothing_changes(monkeypatch):
    model, x = Blocks(), torch.randn(64, 8)
    before = copy.deepcopy(model.state_dict())

    def full(buffering):
        return open("/dev/full", "r+b", buffering=buffering)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(DataError, match=r"\(No space left on device\), and nothing was changed"):
        sc.prune_blocks_(model, "magnitude", sparsity=0.5, batch=x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_weights_that_do_not_lie_in_one_piece_come_back(dtype):
    model, x = Blocks().to(dtype), torch.randn(64, 8, dtype=dtype)
    for block in model.blocks[:2]:
        block[0].weight.data = block[0].weight.data.T
    before = copy.deepcopy(model.state_dict())
    strides = [p.stride() for p in model.parameters()]

    def stop(name):
        if name == "blocks.2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sc.prune_blocks_(model, "magnitude", sparsity=0.5, batch=x, progress=stop)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert strides == [p.stride() for p in model.parameters()]


@pytest.mark.parametrize("what", ["save_sparse", "save_masks", "save"])
def test_a_file_that_is_being_replaced_is_the_old_one(what, tmp_path, monkeypatch):
    model, path = chain(), tmp_path / "file"
    masks = sc.prune_(model, "magnitude", sparsity=0.5).masks
    x = torch.rand(1, 1, 8, 8)
    certificate = sc.certify(model, model, around=x, radius=0.1, methods="interval")
    save = {
        "save_sparse": lambda: sc.save_sparse(model, path),
        "save_masks": lambda: sc.save_masks(masks, path),
        "save": lambda: certificate.save(path),
    }[what]
    save()
    files = files_of(tmp_path)

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, call, stop)
            save()
        assert files_of(tmp_path) == files
