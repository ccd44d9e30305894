"""Sizes that pruning changed travel with the modules and with files."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from files.forging import with_text
from heads import Config, Heads
from secateurs import compact, load_sparse, prune_channels_, read_sparse, save_sparse
from secateurs.base.resized import resize_attribute_
from secateurs.base.sizes import Blocks, ChangedSizes, changed_sizes, keep_blocks_, read_sizes
from secateurs.errors import SparseFileError

X = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))


def trained(seed=0):
    torch.manual_seed(seed)
    return Heads().eval()


def smaller():
    """Half of the heads of each block, and two of four blocks."""
    model = trained()
    prune_channels_(model, X, channels=0.5)
    small = compact(model, X)
    keep_blocks_(small, "blocks", [0, 3])
    return small


def test_a_resized_model_is_loaded_and_runs(tmp_path):
    small = smaller()
    save_sparse(small, tmp_path / "m")
    again = load_sparse(tmp_path / "m", into=trained(seed=1))
    assert torch.equal(again(X), small(X))
    assert [block.num_heads for block in again.blocks] == [2, 2]
    assert again.config.num_hidden_layers == 2 and again.config.layer_types == ["a", "d"]
    save_sparse(again, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "m").read_bytes()


def test_a_model_made_with_fewer_blocks_takes_the_file_too(tmp_path):
    small = smaller()
    save_sparse(small, tmp_path / "m")
    config = Config(num_hidden_layers=2, layer_types=["a", "d"])
    again = load_sparse(tmp_path / "m", into=Heads(config).eval())
    assert torch.equal(again(X), small(X))
    assert changed_sizes(again) == changed_sizes(small)


def test_notes_follow_copies_submodules_and_wrappers(tmp_path):
    small = smaller()
    whole = changed_sizes(small)
    assert whole.blocks == {"blocks": Blocks(total=4, kept=(0, 3))}
    assert whole.resized["blocks.1.num_heads"] == (4, 2)
    assert changed_sizes(copy.deepcopy(small)) == whole
    assert changed_sizes(small.blocks[1]).resized["num_heads"] == (4, 2)
    assert changed_sizes(nn.Sequential(small)).resized["0.blocks.1.num_heads"] == (4, 2)
    save_sparse(nn.Sequential(small), tmp_path / "m")
    again = load_sparse(tmp_path / "m", into=nn.Sequential(trained(1)))
    assert torch.equal(again(X), small(X))


def test_blocks_that_go_in_two_steps_are_one_note():
    model = trained()
    keep_blocks_(model, "blocks", [0, 2, 3])
    keep_blocks_(model, "blocks", [1, 2])
    assert changed_sizes(model).blocks == {"blocks": Blocks(total=4, kept=(2, 3))}
    assert [block.layer_idx for block in model.blocks] == [0, 1]
    assert model.config.layer_types == ["c", "d"]


def test_a_configuration_shared_with_another_model_stays():
    config = Config()
    model, other = Heads(config), Heads(config)
    keep_blocks_(model, "blocks", [0])
    assert other.config is config and config.num_hidden_layers == 4
    assert model.config.num_hidden_layers == 1


def test_the_decoder_of_two_stacks_is_counted_by_itself():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = Config(num_hidden_layers=3)
            self.config.num_decoder_layers, self.config.is_encoder_decoder = 3, True
            self.encoder = nn.ModuleList(nn.Linear(1, 1) for _ in range(3))
            self.decoder = nn.ModuleList(nn.Linear(1, 1) for _ in range(3))

    model = Pair()
    keep_blocks_(model, "decoder", [0])
    assert (model.config.num_hidden_layers, model.config.num_decoder_layers) == (3, 1)
    keep_blocks_(model, "encoder", [0, 1])
    assert (model.config.num_hidden_layers, model.config.num_decoder_layers) == (2, 1)


def test_lists_of_blocks_inside_of_blocks(tmp_path):
    def stages():
        torch.manual_seed(0)
        parts = [nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))) for _ in range(3)]
        return nn.Sequential(*parts)

    model = stages()
    keep_blocks_(model, "2", [1])
    keep_blocks_(model, "", [0, 2])
    assert changed_sizes(model).blocks == {
        "": Blocks(total=3, kept=(0, 2)),
        "1": Blocks(total=3, kept=(1,)),
    }
    save_sparse(model, tmp_path / "m")
    again = load_sparse(tmp_path / "m", into=stages())
    assert repr(again) == repr(model)
    x = torch.randn(4, 2)
    assert torch.equal(again(x), model(x))


def test_names_before_and_after():
    sizes = ChangedSizes(
        blocks={"a": Blocks(total=4, kept=(1, 3)), "a.1.b": Blocks(total=2, kept=(1,))}
    )
    assert sizes.name_after("a.3.b.1.weight") == "a.1.b.0.weight"
    assert sizes.name_after("a.2.weight") is None and sizes.name_after("a.3.b.0.weight") is None
    assert sizes.name_before("a.1.b.0.weight") == "a.3.b.1.weight"
    assert sizes.name_after("c.2.weight") == "c.2.weight" == sizes.name_before("c.2.weight")


def untouched(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return state, changed_sizes(model), len(model.blocks), model.blocks[0].num_heads


MISFITS = {
    "another number of blocks": (
        lambda: Heads(Config(num_hidden_layers=3)),
        "'blocks' has 3 blocks in the model, and the file keeps 2 of 4",
    ),
    "no such attribute": (
        lambda: without("split_size"),
        "there is no size 'blocks.1.split_size'",
    ),
    "another size": (
        lambda: with_attribute("num_heads", 3),
        "'blocks.0.num_heads' is 3 in the model, but the file changed it from 4 to 2",
    ),
}


def without(name):
    model = trained(1)
    delattr(model.blocks[3], name)
    return model


def with_attribute(name, value):
    model = trained(1)
    setattr(model.blocks[0], name, value)
    return model


@pytest.mark.parametrize("case", MISFITS)
def test_a_model_that_sizes_do_not_fit_stays_as_it_is(case, tmp_path):
    make, message = MISFITS[case]
    save_sparse(smaller(), tmp_path / "m")
    model = make()
    before = untouched(model)
    with pytest.raises(SparseFileError, match=message):
        load_sparse(tmp_path / "m", into=model)
    after = untouched(model)
    assert all(torch.equal(before[0][name], after[0][name]) for name in before[0])
    assert before[1:] == after[1:]


def test_sizes_are_not_set_where_the_model_must_not_become_smaller(tmp_path):
    save_sparse(smaller(), tmp_path / "m")
    with pytest.raises(SparseFileError, match="narrow=False leaves as they are"):
        load_sparse(tmp_path / "m", into=trained(), narrow=False)


PLAIN = {"resized": {"a.b": [4, 2]}, "blocks": {"c": [4, [0, 3]]}}
LIES = (
    None,
    [],
    {"resized": {}},
    PLAIN | {"more": {}},
    PLAIN | {"resized": []},
    PLAIN | {"resized": {"a.__class__": [4, 2]}},
    PLAIN | {"resized": {"a.b c": [4, 2]}},
    PLAIN | {"resized": {"a.": [4, 2]}},
    PLAIN | {"resized": {"a.b": [4]}},
    PLAIN | {"resized": {"a.b": [4, 4]}},
    PLAIN | {"resized": {"a.b": [4, 0]}},
    PLAIN | {"resized": {"a.b": [4, -2]}},
    PLAIN | {"resized": {"a.b": [4, 2**40]}},
    PLAIN | {"resized": {"a.b": [4, True]}},
    PLAIN | {"resized": {"a.b": [4, "2"]}},
    PLAIN | {"blocks": {"c": [4, []]}},
    PLAIN | {"blocks": {"c": [4, [3, 0]]}},
    PLAIN | {"blocks": {"c": [4, [0, 0]]}},
    PLAIN | {"blocks": {"c": [4, [0, 4]]}},
    PLAIN | {"blocks": {"c": [2**30, [0]]}},
    PLAIN | {"blocks": {"c": [0]}},
    PLAIN | {"blocks": {"c\x00": [4, [0]]}},
)


@pytest.fixture(scope="module")
def blob(tmp_path_factory):
    """The file of a smaller model."""
    path = tmp_path_factory.mktemp("sizes") / "m"
    save_sparse(smaller(), path)
    return path.read_bytes()


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: json.dumps(lie)[:60])
def test_sizes_that_cannot_be_are_refused(lie, blob, tmp_path):
    assert read_sizes(PLAIN).as_dict() == PLAIN
    with pytest.raises(ValueError):
        read_sizes(lie)

    def change(text):
        *lines, about = text.split("\n")
        return "\n".join([*lines, json.dumps(json.loads(about) | {"sizes": lie})])

    (tmp_path / "lie").write_bytes(with_text(blob, change))
    model = trained()
    before = untouched(model)
    with pytest.raises(SparseFileError):
        load_sparse(tmp_path / "lie", into=model)
    assert before[1:] == untouched(model)[1:]


def test_read_sparse_says_what_was_changed(tmp_path):
    small = smaller()
    save_sparse(small, tmp_path / "m")
    assert read_sparse(tmp_path / "m").changed == changed_sizes(small)
    assert not read_sparse_of(trained(), tmp_path).changed


def read_sparse_of(model, folder):
    save_sparse(model, folder / "plain")
    return read_sparse(folder / "plain")


def test_a_size_set_back_is_no_change():
    model = trained()
    resize_attribute_(model.blocks[0], "num_heads", 2)
    resize_attribute_(model.blocks[0], "num_heads", 4)
    assert not changed_sizes(model)
    assert replace(changed_sizes(model)) == ChangedSizes()
