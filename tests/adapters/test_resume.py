"""A pruned run that is stopped and goes on, in the Trainers of Hugging Face and of Lightning.

One run writes a checkpoint after every step; runs that go on from any of them, with a fresh model,
must end with the same bits.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from secateurs import Recipe, load_masks
from secateurs.errors import SecateursError, TrainingError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

STEPS = 24
SHARES = {"start": 0.2, "end": 0.75, "cuts": 4}
"""First step 4, last 18, a cut every 4 steps: after 8, 12, 16 and 18."""
POINTS = (3, 8, 13, 20, 24)
"""Before the first cut, on a cut, between two, after the last, at the end."""


class Net(nn.Module):
    """With dropout, so that the random state counts too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def forward(self, x, labels=None):
        loss = nn.functional.cross_entropy(self.layers(x), labels)
        return {"loss": loss}


def rows():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(96, 6, generator=generator), torch.randint(0, 3, (96,), generator=generator)


def recipe(**changes):
    return Recipe(**{"sparsity": 0.8, **changes})


class HuggingFace:
    """One run of the Trainer in a folder of its own."""

    skips = ("transformers", "accelerate")

    def __init__(self, folder, *, asked=None, seed=0, steps=STEPS, pruned=True, **given):
        from transformers import Trainer, TrainerCallback, TrainingArguments

        from secateurs.adapters import PruningCallback

        class KeepAll(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_save = True

        args = TrainingArguments(
            str(folder),
            max_steps=steps,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            save_strategy="no",
            logging_steps=5,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        torch.manual_seed(seed)
        self.model = Net()
        self.callback = PruningCallback(asked or recipe(), **{**SHARES, **given})
        x, y = rows()
        self.trainer = Trainer(
            model=self.model,
            args=args,
            train_dataset=[{"x": a, "labels": b} for a, b in zip(x, y, strict=True)],
            callbacks=[KeepAll(), *([self.callback] if pruned else [])],
        )

    def run(self, checkpoint=None):
        self.trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        return self

    @staticmethod
    def checkpoint(folder, step):
        return Path(folder) / f"checkpoint-{step}"

    @staticmethod
    def forget(checkpoint):
        """Take the pruning state out of a checkpoint."""
        for file in checkpoint.glob("pruning*"):
            file.unlink()

    @staticmethod
    def change(checkpoint, change):
        """Change the weights of a checkpoint."""
        from safetensors.torch import load_file, save_file

        weights = load_file(checkpoint / "model.safetensors")
        change(weights["layers.0.weight"])
        save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})


class Lightning:
    """The same in the Trainer of Lightning, with momentum and a shuffled order by step."""

    skips = ("lightning",)

    def __init__(self, folder, *, asked=None, seed=0, steps=STEPS, pruned=True, **given):
        import lightning

        from secateurs.adapters import LightningPruning

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = Net()
                self.x, self.y = rows()

            def training_step(self, batch, index):
                # Lightning begins its loader anew in the middle of an epoch: the step decides.
                at = torch.randperm(96, generator=torch.Generator().manual_seed(self.global_step))[
                    :8
                ]
                torch.manual_seed(self.global_step)
                return self.net(self.x[at], self.y[at])["loss"]

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-2)

        keep = lightning.pytorch.callbacks.ModelCheckpoint(
            folder, "checkpoint-{step}", every_n_train_steps=1, save_top_k=-1
        )
        torch.manual_seed(seed)
        self.module = Module()
        self.model = self.module.net
        self.callback = LightningPruning(asked or recipe(), **{**SHARES, **given})
        self.trainer = lightning.Trainer(
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[keep, *([self.callback] if pruned else [])],
        )

    def run(self, checkpoint=None):
        loader = torch.utils.data.DataLoader(torch.arange(12), batch_size=1)
        self.trainer.fit(self.module, loader, ckpt_path=checkpoint and str(checkpoint))
        return self

    @staticmethod
    def checkpoint(folder, step):
        return Path(folder) / f"checkpoint-step={step}.ckpt"

    @staticmethod
    def forget(checkpoint):
        saved = torch.load(checkpoint, weights_only=False)
        saved["callbacks"] = {
            key: state
            for key, state in saved["callbacks"].items()
            if not key.startswith("LightningPruning")
        }
        torch.save(saved, checkpoint)

    @staticmethod
    def change(checkpoint, change):
        saved = torch.load(checkpoint, weights_only=False)
        change(saved["state_dict"]["net.layers.0.weight"])
        torch.save(saved, checkpoint)


@pytest.fixture(params=[HuggingFace, Lightning], ids=["huggingface", "lightning"], scope="module")
def loop(request):
    for package in request.param.skips:
        pytest.importorskip(package)
    return request.param


@pytest.fixture(scope="module")
def whole(loop, tmp_path_factory):
    """An uninterrupted run: its folder, final weights and masks."""
    folder = tmp_path_factory.mktemp("whole")
    done = loop(folder).run()
    return folder, bits(done.model), done.callback.masks


@pytest.fixture
def copied(loop, whole, tmp_path):
    """The checkpoint of a step, in the folder of the new run."""

    def copy(step):
        source = loop.checkpoint(whole[0], step)
        target = loop.checkpoint(tmp_path, step)
        remove(target)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        return target

    return copy


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def bits(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(value, second[name]) for name, value in first.items()
    )


def zeros(model):
    weights = [layer.weight for layer in model.layers if isinstance(layer, nn.Linear)]
    return 1 - sum(int(w.count_nonzero()) for w in weights) / sum(w.numel() for w in weights)


def test_the_whole_run_is_pruned(whole):
    _, weights, masks = whole
    total = sum(mask.numel() for mask in masks.values())
    assert sum(int(mask.sum()) for mask in masks.values()) == round(0.2 * total)
    assert any(
        len(w.shape) > 1 and 0 < int(w.count_nonzero()) < w.numel() for w in weights.values()
    )


@pytest.mark.parametrize("step", POINTS)
def test_a_resumed_run_ends_with_the_same_bits(loop, whole, copied, tmp_path, step):
    _, weights, masks = whole
    again = loop(tmp_path, seed=7).run(copied(step))
    assert same(bits(again.model), weights)
    assert same(again.callback.masks, masks)


@pytest.mark.slow
def test_twenty_random_steps(loop, whole, copied, tmp_path):
    """Also resumed twice: at a random step of the resumed run."""
    _, weights, masks = whole
    dice = random.Random(5)
    for step in dice.choices(range(1, STEPS), k=20):
        again = loop(tmp_path, seed=step).run(copied(step))
        assert same(bits(again.model), weights) and same(again.callback.masks, masks)
        later = dice.randrange(step, STEPS + 1)
        twice = loop(tmp_path, seed=99).run(loop.checkpoint(tmp_path, later))
        assert same(bits(twice.model), weights) and same(twice.callback.masks, masks)
        for left in tmp_path.iterdir():
            remove(left)


def test_random_masks_go_on_with_their_generator(loop, tmp_path):
    asked = recipe(score="random")
    first, second = tmp_path / "first", tmp_path / "second"
    done = loop(first, asked=asked, generator=torch.Generator().manual_seed(3)).run()
    again = loop(second, asked=asked, generator=torch.Generator().manual_seed(8))
    # From another folder: the Trainer of Hugging Face tells its callbacks the step alone.
    checkpoint = loop.checkpoint(first, 13)
    if loop is HuggingFace:
        again.callback._resume_from = checkpoint
    again.run(checkpoint)
    assert same(again.callback.masks, done.callback.masks)


def test_a_checkpoint_without_the_state_is_proved_or_refused(loop, whole, copied, tmp_path):
    """Where just as many weights are left as the last cut kept, the zeros are the masks."""
    _, weights, masks = whole
    for step in (3, 13):
        checkpoint = copied(step)
        loop.forget(checkpoint)
        again = loop(tmp_path, seed=7).run(checkpoint)
        assert same(bits(again.model), weights) and same(again.callback.masks, masks)
    checkpoint = copied(14)
    loop.forget(checkpoint)
    loop.change(checkpoint, lambda weight: weight.fill_(0.5))
    with pytest.raises(TrainingError, match=r"step 14, but its checkpoint has no pruning state"):
        loop(tmp_path).run(checkpoint)


def test_a_dense_run_does_not_become_a_pruned_one_half_way(loop, tmp_path):
    loop(tmp_path, pruned=False).run()
    with pytest.raises(TrainingError, match="no pruning state: by that step .* are nonzero"):
        loop(tmp_path).run(loop.checkpoint(tmp_path, 12))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w.fill_(0.5),
            r"layers.0.weight' has \d+ weights that its mask drops",
        ),
        (
            lambda w: w.zero_(),
            r"layers.0.weight' is sparser than it was saved \(0 weights",
        ),
    ],
)
def test_other_weights_than_the_masks_are_refused(loop, copied, tmp_path, change, message):
    checkpoint = copied(13)
    loop.change(checkpoint, change)
    with pytest.raises(TrainingError, match=message):
        loop(tmp_path).run(checkpoint)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"end": 0.9},
            "was pruned with .*'?end'?=0.75.* this callback has .*end=0.9",
        ),
        (
            {"asked": recipe(sparsity=0.9)},
            "its recipe was sparsity=0.8, this one is sparsity=0.9",
        ),
        ({"steps": 15}, "its last cut is due at step 18, but this run ends at 15"),
    ],
)
def test_another_schedule_is_refused(loop, copied, tmp_path, given, message):
    checkpoint = copied(13)
    with pytest.raises(TrainingError, match=message):
        loop(tmp_path, **given).run(checkpoint)


def test_a_longer_run_keeps_the_cuts_that_were_planned(loop, whole, copied, tmp_path):
    again = loop(tmp_path, steps=STEPS + 8).run(copied(13))
    assert zeros(again.model) == pytest.approx(0.8, abs=0.01)
    assert same(again.callback.masks, whole[2])


def test_a_damaged_state_is_a_typed_error(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    HuggingFace(tmp_path, steps=14).run()
    folder = HuggingFace.checkpoint(tmp_path, 13)
    file = folder / "pruning.json"
    text = file.read_text(encoding="utf-8")
    for wrong in ("", "[]", text[:-9], text.replace('"span"', '"spam"')):
        file.write_text(wrong, encoding="utf-8")
        with pytest.raises(TrainingError, match=r"pruning.json: the pruning state"):
            HuggingFace(tmp_path).run(folder)
    file.write_text(text, encoding="utf-8")
    (folder / "pruning.safetensors").write_bytes(b"")
    with pytest.raises(SecateursError, match=r"pruning.safetensors"):
        HuggingFace(tmp_path).run(folder)


def test_the_masks_of_a_checkpoint_are_a_mask_file(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    done = HuggingFace(tmp_path).run()
    folder = HuggingFace.checkpoint(tmp_path, STEPS)
    assert same(load_masks(folder / "pruning.safetensors"), done.callback.masks)
    assert json.loads((folder / "pruning.json").read_text(encoding="utf-8"))["iteration"] == STEPS


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_resume as t
made = getattr(t, sys.argv[2])(sys.argv[3])
counted, step = [], made.callback._pruner.step
def kill():
    step()
    counted.append(1)
    if len(counted) == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
made.callback._pruner.step = kill
made.run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 9, 19])
def test_killed_and_resumed(loop, whole, tmp_path, step):
    here = str(Path(__file__).parent)
    command = [
        sys.executable,
        "-c",
        KILLED,
        here,
        loop.__name__,
        str(tmp_path),
        str(step),
    ]
    ended = subprocess.run(command, env=os.environ, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    again = loop(tmp_path, seed=7).run(loop.checkpoint(tmp_path, step - 1))
    assert same(bits(again.model), whole[1])
