"""Models of transformers in folders: what is loaded answers as what was saved, bit for bit."""

import json

import pytest
import torch

import secateurs as sc
from secateurs.base.hashing import CERTIFICATE_FORMAT, state_hash
from secateurs.base.sizes import keep_blocks_
from secateurs.errors import ArgumentError, SecateursError, ShipError, SparseFileError
from secateurs.llm.card import with_tags

transformers = pytest.importorskip("transformers")
from transformers import (  # noqa: E402
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

TOKENS = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 4}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2():
    config = GPT2Config(n_embd=16, n_layer=3, n_head=4, vocab_size=97, n_positions=32, **ENDS)
    return GPT2LMHeadModel(config), {"input_ids": TOKENS}, "transformer.h"


def llama():
    config = LlamaConfig(**SIZES, **HEADS, num_key_value_heads=2, vocab_size=97, **ENDS)
    return LlamaForCausalLM(config), {"input_ids": TOKENS}, "model.layers"


def bert():
    config = BertConfig(**SIZES, **HEADS, vocab_size=97)
    return BertForSequenceClassification(config), {"input_ids": TOKENS}, "bert.encoder.layer"


def vit():
    config = ViTConfig(**SIZES, **HEADS, image_size=8, patch_size=4)
    model = ViTForImageClassification(config)
    blocks = next(n for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList))
    return model, {"pixel_values": PIXELS}, blocks


def t5():
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_heads": 4}
    config = T5Config(**sizes, num_layers=3, vocab_size=97, decoder_start_token_id=0)
    given = {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :5]}
    return T5ForConditionalGeneration(config), given, "decoder.block"


KINDS = [gpt2, llama, bert, vit, t5]


def made(kind, seed=0):
    torch.manual_seed(seed)
    model, given, blocks = kind()
    return model.eval(), given, blocks


@pytest.fixture(scope="module")
def smaller():
    """Each kind, pruned and compacted, once."""
    done = {}

    def make(kind):
        if kind not in done:
            model, given, blocks = made(kind)
            sc.prune_channels_(model, given, channels=0.5)
            done[kind] = sc.compact(model, given), given, blocks
        return done[kind]

    return make


def same_answers(one, other, given):
    with torch.no_grad():
        assert torch.equal(one(**given).logits, other(**given).logits)
    if one.can_generate():
        told = {name: t for name, t in given.items() if name == "input_ids"}
        lengths = {"max_new_tokens": 8, "do_sample": False}
        assert torch.equal(one.generate(**told, **lengths), other.generate(**told, **lengths))


@pytest.mark.parametrize("kind", KINDS)
def test_a_compacted_model_loads_from_its_folder_and_answers_alike(kind, smaller, tmp_path):
    small, given, _ = smaller(kind)
    sc.llm.save_pretrained(small, tmp_path)
    again = sc.llm.from_pretrained(tmp_path)
    assert type(again) is type(small) and not again.training
    same_answers(small, again, given)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_cut_behind_its_norms_loads_and_answers_alike(kind, tmp_path):
    model, given, _ = made(kind)
    pruned = sc.prune_channels_(model, given, channels=0.5, exact=False)
    assert pruned.entries[0] < 0.45 * pruned.entries[1]
    sc.llm.save_pretrained(model, tmp_path)
    same_answers(model, sc.llm.from_pretrained(tmp_path), given)
    sc.save_sparse(model, tmp_path / "m")
    same_answers(model, sc.load_sparse(tmp_path / "m", into=made(kind, 1)[0]), given)


@pytest.mark.parametrize("kind", KINDS)
def test_its_sparse_file_loads_into_the_class_with_nothing_set_by_hand(kind, smaller, tmp_path):
    small, given, _ = smaller(kind)
    sc.save_sparse(small, tmp_path / "m")
    same_answers(small, sc.load_sparse(tmp_path / "m", into=made(kind, 1)[0]), given)


@pytest.mark.parametrize("kind", KINDS)
def test_dropped_blocks_stay_dropped(kind, tmp_path):
    model, given, blocks = made(kind)
    keep_blocks_(model, blocks, [0, 2])
    sc.llm.save_pretrained(model, tmp_path / "folder")
    same_answers(model, sc.llm.from_pretrained(tmp_path / "folder"), given)
    sc.save_sparse(model, tmp_path / "m")
    same_answers(model, sc.load_sparse(tmp_path / "m", into=made(kind, 1)[0]), given)


def test_a_large_model_is_shared_out_among_files(tmp_path):
    model, given, _ = made(gpt2)
    assert len(sc.llm.save_pretrained(model, tmp_path, shard_bytes=10_000)) > 3
    same_answers(model, sc.llm.from_pretrained(tmp_path), given)
    assert len(sc.llm.save_pretrained(model, tmp_path)) == 1
    assert len(list(tmp_path.glob("sparse-*"))) == 1, "files of the earlier save are gone"
    same_answers(model, sc.llm.from_pretrained(tmp_path), given)


def test_half_precision_and_settings_of_generation_come_back(tmp_path):
    model, given, _ = made(llama)
    model.bfloat16()
    model.generation_config.max_new_tokens = 3
    sc.llm.save_pretrained(model, tmp_path)
    again = sc.llm.from_pretrained(tmp_path)
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert [b.dtype for b in again.buffers()] == [b.dtype for b in model.buffers()]
    assert again.generation_config.max_new_tokens == 3
    same_answers(model, again, given)


def test_tokenizers_pass_through(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"<unk>": 0, "prune": 1, "here": 2}, unk_token="<unk>")
    own = tokenizers.Tokenizer(words)
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>")
    model, _, _ = made(gpt2)
    sc.llm.save_pretrained(model, tmp_path / "one", tokenizer=tokenizer)
    sc.llm.save_pretrained(model, tmp_path / "two", tokenizer=tmp_path / "one")
    for folder in ("one", "two"):
        read = AutoTokenizer.from_pretrained(tmp_path / folder)
        assert read("prune here")["input_ids"] == [1, 2]


def test_saving_and_loading_leave_the_user_s_things_alone(tmp_path):
    model, _, _ = made(llama)
    before = model.config.to_dict()
    sc.llm.save_pretrained(model, tmp_path)
    assert model.config.to_dict() == before
    torch.manual_seed(3)
    wanted = torch.rand(1)
    torch.manual_seed(3)
    sc.llm.from_pretrained(tmp_path)
    assert torch.equal(torch.rand(1), wanted)


def test_what_is_not_a_model_of_transformers_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="save_sparse"):
        sc.llm.save_pretrained(torch.nn.Linear(1, 1), tmp_path / "no")
    with pytest.raises(ArgumentError, match="none of the files of a tokenizer"):
        sc.llm.save_pretrained(made(gpt2)[0], tmp_path / "no", tokenizer=tmp_path)
    with pytest.raises(ArgumentError, match="neither a tokenizer"):
        sc.llm.save_pretrained(made(gpt2)[0], tmp_path / "no", tokenizer=3)
    with pytest.raises(ArgumentError, match="shard_bytes"):
        sc.llm.save_pretrained(made(gpt2)[0], tmp_path / "no", shard_bytes=0)
    assert not (tmp_path / "no").exists()


def change_index(folder, change):
    index = folder / "sparse.safetensors.index.json"
    index.write_text(json.dumps(change(json.loads(index.read_text()))))


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cut_off(folder):
    file = next(folder.glob("sparse-*"))
    file.write_bytes(file.read_bytes()[:-5])


FAULTS = {
    "no index": (
        lambda folder: (folder / "sparse.safetensors.index.json").unlink(),
        SparseFileError,
        "cannot be read",
    ),
    "another format": (
        lambda folder: change_index(folder, lambda held: held | {"format": "x"}),
        SparseFileError,
        "not an index",
    ),
    "a list": (lambda folder: change_index(folder, lambda held: []), SparseFileError, "not an ind"),
    "a way out of the folder": (
        lambda folder: change_index(folder, lambda held: held | {"files": {"../m": "0"}}),
        SparseFileError,
        "not a file beside it",
    ),
    "a damaged file": (cut_off, SparseFileError, "was damaged"),
    "no such class": (
        lambda folder: change_config(folder, architectures=["NoSuchModel"]),
        ShipError,
        "model_class=",
    ),
    "a class that is no model": (
        lambda folder: change_config(folder, architectures=["AutoTokenizer"]),
        ShipError,
        "not a model",
    ),
    "another kind of model": (
        lambda folder: change_config(folder, model_type="nothing", auto_map={"AutoConfig": "x.Y"}),
        ShipError,
        "cannot be read",
    ),
    "another size": (lambda folder: change_config(folder, n_embd=8), SparseFileError, "not fit"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_folders_with_faults_are_refused(fault, tmp_path):
    sc.llm.save_pretrained(made(gpt2)[0], tmp_path)
    break_, kind, message = FAULTS[fault]
    break_(tmp_path)
    with pytest.raises(kind, match=message) as caught:
        sc.llm.from_pretrained(tmp_path)
    assert isinstance(caught.value, SecateursError) and str(tmp_path) in str(caught.value)


def _places(name):
    """Models whose blocks depend on their places."""
    sizes = {**SIZES, **HEADS, "num_hidden_layers": 4, "vocab_size": 97, "initializer_range": 0.3}
    sizes["num_key_value_heads"] = 4
    if name == "gpt2":
        more = {"scale_attn_by_inverse_layer_idx": True, "initializer_range": 0.4}
        kind, config = "GPT2LMHeadModel", GPT2Config(n_embd=16, n_layer=4, n_head=4, vocab_size=97)
        config.update({**more, **ENDS})
    elif name == "diffllama":
        kind, config = "DiffLlamaForCausalLM", transformers.DiffLlamaConfig(**sizes, **ENDS)
    else:
        experts = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
        experts |= {"num_experts": 4, "num_experts_per_tok": 2, "decoder_sparse_step": 2}
        kind, config = (
            "Qwen2MoeForCausalLM",
            transformers.Qwen2MoeConfig(**sizes, **experts, **ENDS),
        )
    torch.manual_seed(0)
    return getattr(transformers, kind)(config).eval()


@pytest.mark.parametrize("name", ["gpt2", "diffllama", "qwen2_moe"])
def test_blocks_that_depend_on_their_places_come_back(name, tmp_path):
    model = _places(name)
    blocks = "transformer.h" if name == "gpt2" else "model.layers"
    keep_blocks_(model, blocks, [0, 2, 3])
    # In two steps: places are those of the model as it was at first.
    keep_blocks_(model, blocks, [0, 2])
    wanted = model(TOKENS, use_cache=False).logits
    for _ in range(2):
        sc.llm.save_pretrained(model, tmp_path)
        model = sc.llm.from_pretrained(tmp_path)
        assert torch.equal(model(TOKENS, use_cache=False).logits, wanted)
        assert model.config.num_hidden_layers == len(model.get_submodule(blocks)) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 4_000_000_000}, r"asks for over 1,073,741,824 bytes.*at_most="),
        ({"num_hidden_layers": 200_000}, r"asks for over .* modules, and the files hold"),
        (
            {"before_dropping_blocks": {"num_hidden_layers": 200_000}},
            "asks for over .* modules, and the files hold",
        ),
        ({"num_attention_heads": 0}, "the configuration cannot be read"),
        ({"num_hidden_layers": 4}, "does not fit LlamaForCausalLM"),
    ],
)
def test_a_configuration_that_asks_for_another_size_is_refused(changes, message, tmp_path):
    """Before anything is allocated: the model is made without memory first."""
    import time
    import tracemalloc

    sc.llm.save_pretrained(made(llama)[0], tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    begun = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(ShipError, match=message):
            sc.llm.from_pretrained(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - begun < 60


def test_a_card_has_tags_and_a_table_and_keeps_the_users_text(tmp_path):
    model, _, _ = made(bert)
    sc.prune_(model, "magnitude", sparsity=0.75)
    own = "---\nlicense: mit\ntags:\n  - mine\n  - sparse\n---\n\n# My model | é\n\nWords.\n"
    own = own.replace("\n", "\r\n")
    (tmp_path / "README.md").write_bytes(own.encode())
    sc.llm.save_pretrained(model, tmp_path, how="by magnitude | 75 %")
    text = (tmp_path / "README.md").read_bytes().decode()
    assert text.count("sparse\r\n") == 1 and "  - pruned\n" in text and "license: mit\r\n" in text
    assert "# My model | é\r\n\r\nWords.\r\n" in text
    assert "| sparsity | 75.0" in text and "| made by | by magnitude \\| 75 % |" in text
    assert "certificate" not in text
    # Written again: one table, of the model as it is now, and the text around it as it was.
    (tmp_path / "README.md").write_bytes((text + "More.\n").encode())
    sc.prune_(model, "magnitude", sparsity=0.875)
    sc.llm.save_pretrained(model, tmp_path)
    again = (tmp_path / "README.md").read_bytes().decode()
    assert again.endswith("More.\n") and again.count("| sparsity |") == 1
    assert "| sparsity | 87.5" in again and "made by" not in again


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("", "---\ntags:\n- a\n- b\n---\n\n"),
        ("---\nx: 1\n---\n", "---\nx: 1\ntags:\n- a\n- b\n---\n"),
        ("---\ntags: [b, c]\n---\n", "---\ntags: [b, c, a]\n---\n"),
        ("---\ntags: []\n---\n", "---\ntags: [a, b]\n---\n"),
        ("---\ntags:\n- 'a'\ny: 2\n---\n", "---\ntags:\n- 'a'\n- b\ny: 2\n---\n"),
        ("---\ntags: &t\n- q\n---\n", "---\ntags: &t\n- q\n---\n"),
    ],
)
def test_tags_go_where_a_hub_reads_them(front, expected):
    once = with_tags(front + "Text --- here\n---\n", ["a", "b"])
    assert once == expected + "Text --- here\n---\n"
    assert with_tags(once, ["a", "b"]) == once


def test_a_certificate_lies_beside_the_weights_it_is_about(tmp_path):
    model, _, _ = made(bert)
    record = {"format": CERTIFICATE_FORMAT, "states": {"g": state_hash(model)}, "bound": 0.25}
    sc.llm.save_pretrained(model, tmp_path, certificate=record)
    assert json.loads((tmp_path / "certificate.json").read_text()) == record
    assert "by at most 0.25: [certificate.json]" in (tmp_path / "README.md").read_text()
    again = sc.llm.from_pretrained(tmp_path)
    assert state_hash(again) == record["states"]["g"]
    with pytest.raises(ArgumentError, match="rounds the weights"):
        sc.llm.save_pretrained(model, tmp_path / "n", certificate=record, values="bf16")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(ArgumentError, match="not about these weights"):
        sc.llm.save_pretrained(model, tmp_path / "n", certificate=record)
    assert not (tmp_path / "n").exists()
    # What was proven about other weights does not stay beside new ones.
    sc.llm.save_pretrained(model, tmp_path)
    assert not (tmp_path / "certificate.json").exists()


def test_files_of_others_in_the_folder_stay(tmp_path):
    model, _, _ = made(bert)
    (tmp_path / "README.md").write_bytes(b"# Gr\xfc\xdfe\r\n")
    for text in (b'{"issuer": "me"}', b"\xff{", b"[]"):
        (tmp_path / "certificate.json").write_bytes(text)
        sc.llm.save_pretrained(model, tmp_path)
        assert (tmp_path / "certificate.json").read_bytes() == text
    assert b"# Gr\xfc\xdfe\r\n" in (tmp_path / "README.md").read_bytes()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    record = {"format": CERTIFICATE_FORMAT, "states": {"g": state_hash(model)}, "bound": 0.25}
    with pytest.raises(SparseFileError, match="no certificate of this library"):
        sc.llm.save_pretrained(model, tmp_path, certificate=record)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_no_sparsity_config_is_written(tmp_path):
    model, _, _ = made(llama)
    model.config.sparsity_config = {"format": "sparse-bitmask"}
    sc.llm.save_pretrained(model, tmp_path)
    assert "sparsity_config" not in (tmp_path / "config.json").read_text()
