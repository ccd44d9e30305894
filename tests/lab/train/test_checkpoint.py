"""Checkpoints: exact round trips, readable by anybody, refused when damaged or foreign, never half
written.
"""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from secateurs.base.safefile import replacing
from secateurs.errors import DataError
from secateurs_lab.models import MODELS, build
from secateurs_lab.train import load_model_, read_checkpoint, save_model


def seeded(name, seed, **options):
    return build(name, generator=torch.Generator().manual_seed(seed), **options)


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(p, q)
        for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight


@pytest.mark.parametrize(
    "name",
    [name for name in MODELS.names() if name not in {"vgg-16", "vgg-19", "resnet-34"}],
)
def test_a_round_trip_is_exact_and_keeps_the_models_own_keys(name, tmp_path):
    model, other = seeded(name, 0), seeded(name, 1)
    path = save_model(model, tmp_path / "m.safetensors", notes={"arch": name})
    assert equal(load_model_(other, path), model)
    assert load_file(path).keys() == model.state_dict().keys()
    assert read_checkpoint(path).notes == {"arch": name, "format": "pt"}


def test_the_same_model_gives_the_same_bytes_on_aligned_tensors(tmp_path):
    notes = {letter: letter for letter in "abcdefgh"}
    paths = [save_model(seeded("lenet-5", 0), tmp_path / name, notes=notes) for name in "ab"]
    blob = paths[0].read_bytes()
    assert blob == paths[1].read_bytes() and int.from_bytes(blob[:8], "little") % 8 == 0


def test_tied_channels_last_and_half_precision(tmp_path):
    path = tmp_path / "m"
    tied, fresh = Tied(), Tied()
    assert list(load_file(save_model(tied, path))) == ["one.weight"]
    load_model_(fresh, path)
    assert torch.equal(fresh.two.weight, tied.one.weight) and fresh.two.weight is fresh.one.weight
    # As other tools write tied weights.
    both = {
        "one.weight": torch.ones(3, 3),
        "two.weight": torch.ones(3, 3),
    }
    save_file(both, path)
    assert load_model_(fresh, path).one.weight.eq(1).all()
    model = seeded("lenet-5", 0).to(memory_format=torch.channels_last)
    assert equal(load_model_(seeded("lenet-5", 1), save_model(model, path)), model)
    half = seeded("lenet-300-100", 0).half()
    assert (
        load_model_(seeded("lenet-300-100", 1), save_model(half, path)).fc1.weight.dtype
        == torch.float32
    )


def test_everything_that_does_not_fit_is_listed_and_nothing_is_changed(tmp_path):
    path = save_model(seeded("lenet-5", 0), tmp_path / "m")
    model, before = seeded("lenet-300-100", 0), seeded("lenet-300-100", 0)
    with pytest.raises(DataError) as caught:
        load_model_(model, path)
    message = str(caught.value)
    assert "does not fit LeNet300100" in message and equal(model, before)
    assert (
        "unexpected 'bn1.bias', 'bn1.num_batches_tracked', " in message and "and 9 more" in message
    )
    assert "'fc1.weight' is [120, 400] in the file and [300, 784] in the model" in message
    path = save_model(seeded("lenet-300-100", 0), path)
    with pytest.raises(DataError, match="missing 'conv1.weight', .* and 9 more"):
        load_model_(seeded("lenet-5", 0), path)
    save_file({"weight": torch.ones(2, 2, dtype=torch.int32)}, path)
    with pytest.raises(
        DataError,
        match=r"'weight' is torch.int32 in the file and torch.float32 in the model",
    ):
        load_model_(nn.Linear(2, 2, bias=False), path)


def test_200_mutated_and_all_truncated_files_are_refused_or_read_never_crash(
    tmp_path,
):
    path = tmp_path / "m"
    save_file(
        {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3)},
        path,
        metadata={"k": "v"},
    )
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=str(path)):
            read_checkpoint(path)
    chance = random.Random(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    refused = 0
    for _ in range(300):
        changed = bytearray(whole)
        changed[chance.randrange(header)] ^= 1 << chance.randrange(8)
        path.write_bytes(bytes(changed))
        try:
            read_checkpoint(path)
        except DataError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 200


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
            "'a' is given twice",
        ),
        (
            '{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}',
            r"'a' claims F32\[9\]",
        ),
        (
            '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,400000000]}}',
            r"'a' claims F32\[1\], but its offsets are",
        ),
        ("[" * 50_000, "the header is not valid JSON"),
        ("not json", "the header is not valid JSON"),
    ],
)
def test_hostile_headers_are_refused(tmp_path, header, message):
    path = tmp_path / "m"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(4))
    with pytest.raises(DataError, match=message):
        read_checkpoint(path)


def test_foreign_and_absent_files_are_refused(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"PK\x03\x04 a zip, as torch.save writes it")
    with pytest.raises(DataError, match="is a pickle"):
        read_checkpoint(path)
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_checkpoint(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_checkpoint(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "m"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with replacing(path) as part:
        part.write_text(json.dumps("new"))
    assert path.read_text() == '"new"' and list(tmp_path.iterdir()) == [path]
    plain = tmp_path / "plain"
    plain.touch()
    # Not the private mode of temporary files.
    assert path.stat().st_mode == plain.stat().st_mode
