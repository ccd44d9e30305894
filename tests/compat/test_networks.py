import numpy as np
import pytest
import torch

from secateurs.compat.networks import read_network, read_nnet, read_onnx
from secateurs.errors import DataError

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def write(path, nodes, weights, shape, output="y"):
    """A model of these nodes."""
    helper = onnx.helper
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
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
        ([("Constant", [], "y", {"value_float": 1.0})], "an attribute that cannot be read"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path, nodes, message):
    made = [node(kind, reads, to, **fields) for kind, reads, to, fields in nodes]
    path = write(tmp_path / "net.onnx", made, {"w": drawn(5, 5)}, [1, 5])
    with pytest.raises(DataError, match=message):
        read_onnx(path)


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
    path.write_text(NNET)
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
