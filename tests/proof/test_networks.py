import numpy as np
import pytest
import torch

from secateurs.errors import DataError
from secateurs.proof.networks import read_network, read_nnet, read_onnx

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def write(path, nodes, weights, shape, output="y", change=lambda model: None, kind="FLOAT"):
    """A model of these nodes, changed before it is written."""
    helper, kind = onnx.helper, getattr(onnx.TensorProto, kind)
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(output, kind, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def node(kind, reads, to, **fields):
    return onnx.helper.make_node(kind, reads, [to], **fields)


def drawn(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def acas(path):
    """As ACAS Xu is written: a mean taken away, products and sums apart."""
    nodes = [
        node("Sub", ["x", "mean"], "s"),
        node("Flatten", ["s"], "f", axis=1),
        node("MatMul", ["f", "w"], "m"),
        node("Add", ["m", "b"], "a"),
        node("Relu", ["a"], "r"),
        node("Gemm", ["r", "v", "c"], "y", transB=1),
    ]
    weights = {"mean": drawn(1, 1, 1, 5), "w": drawn(5, 7), "b": drawn(7), "v": drawn(3, 7)}
    return write(path, nodes, {**weights, "c": drawn(3)}, [1, 1, 1, 5])


def image(path):
    nodes = [
        node("Conv", ["x", "k", "kb"], "c", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "g", "h", "mu", "var"], "n"),
        node("Relu", ["n"], "r"),
        node("Reshape", ["r", "shape"], "f"),
        node("MatMul", ["f", "w"], "m"),
        node("Identity", ["m"], "y"),
    ]
    weights = {
        "k": drawn(4, 1, 3, 3),
        "kb": drawn(4),
        "g": drawn(4),
        "h": drawn(4),
        "mu": drawn(4),
        "var": np.ones(4, np.float32),
        "shape": np.array([1, -1]),
        "w": drawn(36, 2),
    }
    return write(path, nodes, weights, [1, 1, 6, 6])


def vector(path):
    """Matrices to the left of one vector without a batch."""
    nodes = [
        node("MatMul", ["w", "x"], "m"),
        node("Add", ["m", "b"], "a"),
        node("Relu", ["a"], "r"),
        node("MatMul", ["v", "r"], "y"),
    ]
    return write(path, nodes, {"w": drawn(7, 5), "b": drawn(7), "v": drawn(3, 7)}, [5])


@pytest.mark.parametrize(
    ("make", "shape"), [(acas, (1, 1, 1, 5)), (image, (1, 1, 6, 6)), (vector, (5,))]
)
def test_a_network_answers_as_in_onnxruntime(tmp_path, make, shape):
    path = make(tmp_path / "net.onnx")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    model = read_network(path)
    for seed in range(3):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        (wanted,) = session.run(None, {"x": x.numpy()})
        with torch.no_grad():
            answer = model(x) if len(shape) > 1 else model(x.unsqueeze(0))[0]
            assert torch.allclose(answer, torch.from_numpy(wanted), atol=1e-5)


def test_a_product_and_its_sum_are_one_layer(tmp_path):
    import secateurs as sc

    graph = sc.capture(read_onnx(acas(tmp_path / "net.onnx")), torch.zeros(1, 1, 1, 5))
    kinds = [type(one).__name__ for one in graph.nodes]
    assert kinds == ["Input", "Affine", "Structural", "Affine", "Activation", "Affine"]
    graph = sc.capture(read_onnx(vector(tmp_path / "other.onnx")), torch.zeros(1, 5))
    assert [type(one).__name__ for one in graph.nodes] == [
        "Input",
        "Affine",
        "Activation",
        "Affine",
    ]


def test_a_softmax_at_the_end_is_left_out_where_asked(tmp_path):
    nodes = [node("MatMul", ["x", "w"], "m"), node("Softmax", ["m"], "y", axis=-1)]
    path = write(tmp_path / "net.onnx", nodes, {"w": drawn(5, 3)}, [1, 5])
    with pytest.raises(DataError, match=r"uses Softmax; supported are .*logits=True"):
        read_onnx(path)
    x = torch.ones(1, 5)
    with torch.no_grad():
        assert torch.allclose(read_network(path, logits=True)(x), x @ torch.from_numpy(drawn(5, 3)))
    early = [node("Softmax", ["x"], "s"), node("MatMul", ["s", "w"], "y")]
    path = write(tmp_path / "early.onnx", early, {"w": drawn(5, 3)}, [1, 5])
    with pytest.raises(DataError, match="is supported only as the last node, over the classes"):
        read_onnx(path, logits=True)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([("Softmax", ["x"], "y", {})], "uses Softmax; supported are Add"),
        ([("Gemm", ["x", "w"], "y", {"alpha": 2.0})], "Gemm 'y' scales its product"),
        ([("Flatten", ["x"], "y", {"axis": 0})], "flattens across the batch"),
        ([("Relu", ["z"], "y", {})], "reads 'z', which no node produces"),
        ([("Relu", ["x"], "z", {})], "no node produces the output 'y'"),
        ([("Reshape", ["x", "w"], "y", {})], "changes the batch size"),
        (
            [("MatMul", ["w", "x"], "y", {})],
            "multiplies from the left, which is supported only where",
        ),
        ([("MatMul", ["x"], "y", {})], "takes 1 values and returns 1"),
        ([("Relu", ["x", "w"], "y", {})], "takes 2 values"),
        ([("Constant", [], "y", {"value_float": 1.0})], "'value_float', which is not read"),
        ([("Constant", [], "y", {})], "an attribute that cannot be read"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path, nodes, message):
    made = [node(kind, reads, to, **fields) for kind, reads, to, fields in nodes]
    path = write(tmp_path / "net.onnx", made, {"w": drawn(5, 5)}, [1, 5])
    with pytest.raises(DataError, match=message):
        read_onnx(path)


def _declare_a_function(model):
    body = [onnx.helper.make_node("Neg", ["a"], ["b"])]
    opset = onnx.helper.make_opsetid("", 13)
    model.functions.append(onnx.helper.make_function("own", "Relu", ["a"], ["b"], body, [opset]))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    model.graph.node[0].domain = "own"


def _move_weights_out(model):
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")


def _hide_where_weights_lie(model):
    model.graph.initializer[0].external_data.add(key="location", value="w.bin")


def _set_opset(version):
    def change(model):
        model.opset_import[0].version = version

    return change


def _set_domain(model):
    model.graph.node[0].domain = "com.microsoft"
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))


def _put_a_graph_inside(model):
    inner = onnx.helper.make_graph([], "inner", [], [])
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("then_branch", inner))


def _give_a_weight_twice(model):
    model.graph.initializer.append(onnx.numpy_helper.from_array(drawn(5, 5) * 3, "w"))


def _overwrite_a_weight(model):
    model.graph.node.append(node("Relu", ["x"], "w"))


def _give_an_attribute_twice(model):
    for axis in (1, 0):
        model.graph.node[0].attribute.append(onnx.helper.make_attribute("axis", axis))


def _take_a_weight_of_half_precision(model):
    half = onnx.numpy_helper.from_array(drawn(5, 5).astype(np.float16), "w")
    model.graph.initializer[0].CopyFrom(half)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("Relu", _declare_a_function, r"defines functions of its own \('Relu'\)"),
        ("Relu", _set_domain, "uses 'Relu' of the domain 'com.microsoft'"),
        ("Relu", _move_weights_out, "the weight 'w' lies in another file"),
        ("Relu", _hide_where_weights_lie, "the weight 'w' lies in another file"),
        ("Relu", _set_opset(6), "operators of opset 6; those of one from 7 to 28"),
        ("Relu", _set_opset(99), "operators of opset 99; those of one from 7 to 28"),
        ("Relu", lambda model: model.ClearField("opset_import"), "operators of opset none"),
        ("Relu", _put_a_graph_inside, "an attribute 'then_branch', which is not read"),
        ("Flatten", _give_an_attribute_twice, "the attribute 'axis' twice"),
        ("Relu", _give_a_weight_twice, "two weights of the name 'w'"),
        ("Relu", _overwrite_a_weight, "returns 'w', which another value of the file is called"),
        ("Relu", _take_a_weight_of_half_precision, "holds torch.float16"),
    ],
)
def test_what_gives_an_operator_another_meaning_is_refused(
    tmp_path, monkeypatch, kind, change, message
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "w.bin").write_bytes(drawn(5, 5).tobytes())
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = write(tmp_path / "net.onnx", [node(kind, ["x"], "y")], {"w": drawn(5, 5)}, [1, 5])
    assert isinstance(read_onnx(path), torch.nn.Module)
    write(path, [node(kind, ["x"], "y")], {"w": drawn(5, 5)}, [1, 5], change=change)
    with pytest.raises(DataError, match=message):
        read_onnx(path)


@pytest.mark.parametrize(
    ("nodes", "weights", "shape", "message"),
    [
        ([("Add", ["x", "c"], {})], {"c": drawn(2, 1)}, [1, 5], "gives .2, 5. for an input of"),
        ([("Add", ["x", "c"], {})], {"c": drawn(1, 7, 5)}, [1, 5], "gives .1, 7, 5. for an"),
        ([("MatMul", ["x", "c"], {})], {"c": drawn(4, 5)}, [1, 5], "does not run on an input"),
        ([("Gemm", ["c", "x"], {})], {"c": drawn(1, 1)}, [1, 5], "other than weights"),
        ([("Gemm", ["x", "c"], {})], {"c": drawn(5, 2)}, [1, 3, 5], "Gemm multiplies matrices"),
        ([("Flatten", ["x"], {})], {}, [5], "only where inputs have a batch dimension"),
        ([("Relu", ["x"], {})], {}, [3, 5], "takes 3 inputs at once"),
        ([("Add", ["x", "c"], {})], {"c": drawn(2**15, 1)}, [1, 1, 2**15], "2.28 values"),
        (
            [("Reshape", ["x", "c"], {"allowzero": 1})],
            {"c": np.array([1, 0])},
            [1, 5],
            "sizes of 0 that are meant",
        ),
        (
            [("Conv", ["x", "c"], {"kernel_shape": [1]})],
            {"c": drawn(2, 1, 3)},
            [1, 1, 5],
            "a kernel_shape of .1. and another kernel",
        ),
        (
            [("BatchNormalization", ["x", *"cccc"], {"spatial": 0})],
            {"c": np.ones(5, np.float32)},
            [1, 5],
            "counts every position as a channel",
        ),
    ],
)
def test_operators_that_mix_inputs_or_do_not_fit_are_refused(
    tmp_path, nodes, weights, shape, message
):
    made = [node(kind, reads, "y", **fields) for kind, reads, fields in nodes]
    with pytest.raises(DataError, match=message):
        read_onnx(write(tmp_path / "net.onnx", made, weights, shape))


@pytest.mark.parametrize("sizes", [[0, -1], [1, 0, 3, 2], [-1, 4, 6], [0, 0, 0, 0]])
def test_reshape_keeps_the_sizes_that_are_zero(tmp_path, sizes):
    nodes = [node("Reshape", ["x", "s"], "y")]
    path = write(tmp_path / "net.onnx", nodes, {"s": np.array(sizes)}, [1, 4, 3, 2])
    x = drawn(1, 4, 3, 2)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    assert np.array_equal(read_onnx(path)(torch.from_numpy(x)).numpy(), wanted)


def test_a_softmax_over_something_else_than_the_classes_is_not_left_out(tmp_path):
    # Up to opset 12 everything from the axis on is one row, from 13 on only the axis itself.
    nodes = [node("Softmax", ["r"], "y", axis=1)]
    nodes.insert(0, node("Relu", ["x"], "r"))
    path = write(tmp_path / "net.onnx", nodes, {}, [1, 3, 5])
    with pytest.raises(DataError, match="is not over one row of classes"):
        read_onnx(path, logits=True)
    path = write(tmp_path / "net.onnx", nodes, {}, [5])
    with pytest.raises(DataError, match="only as the last node, over the classes"):
        read_onnx(path, logits=True)


def test_a_sum_beside_the_output_stays_apart_from_its_product(tmp_path):
    nodes = [node("MatMul", ["x", "w"], "y"), node("Add", ["y", "b"], "z")]
    path = write(tmp_path / "net.onnx", nodes, {"w": drawn(5, 3), "b": drawn(3)}, [1, 5])
    x = torch.ones(1, 5)
    assert torch.allclose(read_onnx(path)(x), x @ torch.from_numpy(drawn(5, 3)))


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x00garbage" * 9)
    with pytest.raises(DataError, match="is not an ONNX file"):
        read_network(path)
    with pytest.raises(DataError, match=r"no format of networks '\.onxx'.*\.nnet\.$"):
        read_network(tmp_path / "net.onxx")
    text = tmp_path / "net.nnet"
    text.write_bytes(b"2,2,1,3,\n2,3,\xff\n")
    with pytest.raises(DataError, match="line 2: cannot be read as UTF-8"):
        read_network(text)
    with pytest.raises(DataError, match="there is no such file"):
        read_network(tmp_path / "absent.onnx")


NNET = """// a comment
2,2,1,3,
2,3,1,
0,
-1.0,-1.0,
1.0,1.0,
0.5,0.0,7.0,
2.0,1.0,4.0,
1.0,0.0,
0.0,1.0,
-1.0,1.0,
0.0,
0.5,
0.0,
1.0,1.0,2.0,
-0.25,
"""


def test_nnet(tmp_path):
    path = tmp_path / "net.nnet"
    # A comment ends with its line, whatever a reader takes for the end of one.
    path.write_text(NNET.replace("a comment", "a\u2028comment"), "utf-8")
    model = read_nnet(path)
    x = torch.tensor([[2.5, 0.25]])
    # ((2.5 - 0.5) / 2, 0.25) = (1, 0.25): hidden (1, 0.75, 0), output 1.75 - 0.25 = 1.5, times 4
    # plus 7.
    assert model(x).item() == pytest.approx(13.0)
    # Ranges of inputs are not used, and published files write that there is none.
    path.write_text(NNET.replace("-1.0,-1.0,\n1.0,1.0,\n", "-inf,-inf,\ninf,inf,\n", 1))
    assert read_nnet(path)(x).item() == pytest.approx(13.0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2,3,1,\n", "2,x,1,\n", "line 3: '2,x,1,' is not a list of numbers"),
        ("2,3,1,\n", "2,99999999,1,\n", "states 2 layers"),
        ("2.0,1.0,4.0,\n", "2.0,0.0,4.0,\n", "divided by zero"),
        ("1.0,1.0,2.0,\n-0.25,\n", "1.0,1.0\n", "expected 3 finite numbers, got 2"),
        ("1.0,0.0,\n", "nan,0.0,\n", "2 finite numbers"),
        ("-0.25,\n", "-0.25,\n\n7.0,\n", "line 18: '7.0,' comes after the last layer"),
    ],
)
def test_damaged_nnet(tmp_path, old, new, message):
    path = tmp_path / "net.nnet"
    path.write_text(NNET.replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        read_nnet(path)
