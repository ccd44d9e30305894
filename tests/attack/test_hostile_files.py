"""Hostile ONNX files and folders of models, drawn at random: answered as onnxruntime answers, or
refused by an error of this library; a canary outside stays as it was."""

import json
import os
import random

import numpy as np
import pytest
import torch

import secateurs as sc
from secateurs.errors import SecateursError
from secateurs.proof.networks import read_onnx

pytestmark = pytest.mark.slow
onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
transformers = pytest.importorskip("transformers")


def _nodes(drawn, weights):
    """Up to five operators, each of what is known so far."""
    known, nodes = ["x"], []
    numbers = np.random.default_rng(drawn.randrange(2**32))
    for i in range(drawn.randint(1, 5)):
        kind = drawn.choice(["Relu", "Add", "Sub", "MatMul", "Gemm", "Flatten", "Reshape"])
        reads, fields = [drawn.choice(known)], {}
        if kind in ("Add", "Sub", "MatMul", "Gemm"):
            shape = drawn.choice([(4, 4), (4,), (1, 4), (4, 1), (1,), (1, 1, 4), (2, 1)])
            weights[f"w{i}"] = numbers.standard_normal(shape).astype(np.float32)
            reads.insert(drawn.choice([0, 1, 1]), f"w{i}")
        if kind == "Gemm":
            fields = {"transB": drawn.choice([0, 1]), "alpha": drawn.choice([1.0, 1.0, 2.0])}
        if kind == "Reshape":
            sizes = drawn.choice([[0, -1], [1, 0], [1, 4], [-1, 4], [1, 2, 2], [4, 1], [0, 0]])
            weights[f"w{i}"] = np.array(sizes)
            reads.append(f"w{i}")
        if kind == "Flatten":
            fields = {"axis": drawn.choice([0, 1, 1, 2])}
        nodes.append(onnx.helper.make_node(kind, reads, [f"v{i}"], **fields))
        known.append(f"v{i}")
    nodes[-1].output[0] = "y"
    return nodes


def _spoil(drawn, model, canary):
    """One lie, or none."""
    helper, graph = onnx.helper, model.graph
    lie = drawn.choice(
        ["none", "none", "external", "domain", "function", "graph", "twice", "opset"]
    )
    node = drawn.choice(graph.node)
    if lie == "external" and graph.initializer:
        weight = drawn.choice(graph.initializer)
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        place = drawn.choice(["w.bin", "link.bin", str(canary), f"../{canary.name}"])
        weight.external_data.add(key="location", value=place)
    elif lie in ("domain", "function"):
        node.domain = "own"
        model.opset_import.append(helper.make_opsetid("own", 1))
        if lie == "function":
            names = [f"i{i}" for i in range(len(node.input))]
            body = [helper.make_node("Neg", names[:1], ["o"])]
            opset = helper.make_opsetid("", 13)
            model.functions.append(
                helper.make_function("own", node.op_type, names, ["o"], body, [opset])
            )
    elif lie == "graph":
        inner = helper.make_graph([], "inner", [], [])
        node.attribute.append(helper.make_attribute("body", inner))
    elif lie == "twice" and graph.initializer:
        again = graph.initializer.add()
        again.CopyFrom(graph.initializer[0])
    elif lie == "opset":
        model.opset_import[0].version = drawn.choice([1, 6, 7, 9, 12, 18, 99])


def test_onnx_files(tmp_path, monkeypatch):
    drawn, answered, refused = random.Random(0), 0, 0
    canary = tmp_path / "canary.bin"
    canary.write_bytes(np.ones(16, np.float32).tobytes())
    here = tmp_path / "here"
    here.mkdir()
    (here / "w.bin").write_bytes(np.full(16, 2, np.float32).tobytes())
    (here / "link.bin").symlink_to(canary)
    monkeypatch.chdir(here)
    folder = tmp_path / "files"
    folder.mkdir()
    path, kind = folder / "net.onnx", onnx.TensorProto.FLOAT
    for number in range(600):
        weights = {}
        nodes = _nodes(drawn, weights)
        value = onnx.helper.make_tensor_value_info
        shape = drawn.choice([[1, 4], [1, 4], ["n", 4], [4], [2, 4], [1, 2, 2]])
        graph = onnx.helper.make_graph(
            nodes,
            "net",
            [value("x", kind, shape)],
            [value("y", kind, None)],
            [onnx.numpy_helper.from_array(v, n) for n, v in weights.items()],
        )
        opset = onnx.helper.make_opsetid("", 13)
        model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
        _spoil(drawn, model, canary)
        path.write_bytes(model.SerializeToString())
        try:
            network = read_onnx(path)
        except SecateursError:
            refused += 1
            continue
        sizes = [1 if size == "n" else size for size in shape]
        x = np.random.default_rng(number).uniform(-2, 2, sizes).astype(np.float32)
        try:
            options = runtime.SessionOptions()
            options.log_severity_level = 4
            session = runtime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
            (wanted,) = session.run(None, {"x": x})
        # What does not run there has no meaning that could be read wrongly.
        except Exception:
            continue
        given = torch.from_numpy(x if len(sizes) > 1 else x[None])
        with torch.no_grad():
            ours = network(given).numpy()
        assert ours.size == wanted.size, (number, model)
        assert np.allclose(ours.ravel(), wanted.ravel(), atol=1e-4), (number, model)
        answered += 1
    assert answered > 15 and refused > 300, (answered, refused)
    assert canary.read_bytes() == np.ones(16, np.float32).tobytes()


def test_folders_of_models(tmp_path):
    drawn = random.Random(0)
    canary = tmp_path / "canary"
    canary.write_text("theirs")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 97}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.arange(3, 12)[None]
    wanted = model(tokens, use_cache=False).logits
    values = [0, 1, 3, -1, 2**20, 2**40, 1.5, "big", None, [], {"a": 1}]
    same = refused = 0
    for number in range(120):
        folder = tmp_path / str(number)
        sc.llm.save_pretrained(model, folder)
        name = drawn.choice(["config.json", "sparse.safetensors.index.json"])
        fields = json.loads((folder / name).read_text())
        key = drawn.choice([*sizes, "num_attention_heads", "rms_norm_eps", "architectures"])
        if name == "config.json":
            fields[key] = drawn.choice(values)
        else:
            (only,) = fields["files"]
            outside = drawn.choice(["../canary", str(canary), only, "config.json"])
            fields["files"] = {outside: fields["files"][only]}
        (folder / name).write_text(json.dumps(fields))
        if drawn.random() < 0.2:
            weights = next(folder.glob("sparse-*.safetensors"))
            weights.unlink()
            weights.symlink_to(canary)
        try:
            loaded = sc.llm.from_pretrained(folder)
        except SecateursError:
            refused += 1
            continue
        assert loaded(tokens, use_cache=False).logits.shape == wanted.shape
        same += torch.equal(loaded(tokens, use_cache=False).logits, wanted)
    assert refused > 60 and same > 5, (same, refused)
    assert canary.read_text() == "theirs" and os.listdir(tmp_path).count("canary") == 1
