import numpy as np
import pytest
import torch

from secateurs.cli import main
from secateurs.compat.networks import read_network
from secateurs.compat.verify import _classes_differ, verify
from secateurs.errors import ArgumentError, DataError

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

INSTANCE = """
(vnnlib-version <2.0>)
(declare-network f (declare-input X_f real [2]) (declare-output Y_f real [1]))
(declare-network g (isomorphic-to f) (declare-input X_g real [2]) (declare-output Y_g real [1]))
(assert (and (<= X_f[0] 1) (>= X_f[0] -1) (<= X_f[1] 0.7) (>= X_f[1] 0.1)))
(assert (and (== X_f[0] X_g[0]) (== X_f[1] X_g[1])))
(assert (or (> Y_g[0] (+ Y_f[0] EPS)) (< Y_g[0] (- Y_f[0] EPS))))
"""


def network(path, by=0.0):
    helper = onnx.helper
    random = np.random.default_rng(3)
    weights = {"w": (2, 6), "b": (6,), "v": (6, 1), "c": (1,)}
    values = {n: random.standard_normal(s).astype(np.float32) for n, s in weights.items()}
    values["w"] = values["w"] + np.float32(by)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["a"]),
            helper.make_node("Relu", ["a"], ["r"]),
            helper.make_node("Gemm", ["r", "v", "c"], ["y"]),
        ],
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 1])],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


@pytest.fixture
def files(tmp_path):
    def made(epsilon):
        instance = tmp_path / "instance.vnnlib"
        instance.write_text(INSTANCE.replace("EPS", str(epsilon)))
        first, second = (network(tmp_path / f"{i}.onnx", by) for i, by in enumerate((0.0, 0.01)))
        return first, second, instance

    return made


def largest(first, second, points=40_000):
    """Of differences at random inputs, by onnxruntime."""
    x = np.random.default_rng(0).uniform((-1, 0.1), (1, 0.7), (points, 2)).astype(np.float32)
    outputs = []
    for path in (first, second):
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        outputs.append(
            np.concatenate([session.run(None, {"x": x[i : i + 1]})[0] for i in range(300)])
        )
    return float(np.abs(outputs[0] - outputs[1]).max())


def test_both_answers(files):
    first, second, instance = files(0.5)
    found = verify(first, second, instance)
    assert found.answer == "unsat" and str(found) == "unsat"
    assert largest(first, second) <= found.certificate.bound
    close = 0.8 * largest(first, second)
    found = verify(*files(close))
    assert found.answer == "sat"
    x, f, g = found.witness
    assert float((f - g).abs().max()) > close
    inside = (x.double() >= torch.tensor([-1, 0.1]).double()) & (
        x.double() <= torch.tensor([1, 0.7])
    )
    assert bool(inside.all())
    lines = str(found).splitlines()
    assert lines[0] == "sat" and lines[1].startswith("((X_f[0] ") and lines[-1].endswith("))")


def test_a_file_that_does_not_say_how_far(files, tmp_path):
    first, second, _ = files(1)
    one = tmp_path / "one.vnnlib"
    one.write_text(
        "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
        "(assert (<= X_0 1))(assert (>= X_0 0))(assert (<= X_1 1))(assert (>= X_1 0))"
    )
    with pytest.raises(ArgumentError, match="give epsilon"):
        verify(first, second, one)
    assert verify(first, second, one, epsilon=1.0).answer == "unsat"
    with pytest.raises(ArgumentError, match="epsilon=-1.0"):
        verify(first, second, one, epsilon=-1.0)


def test_an_instance_of_another_size(files, tmp_path):
    first, second, instance = files(1)
    instance.write_text("(declare-const X_0 Real)(assert (<= X_0 1))(assert (>= X_0 0))")
    with pytest.raises(DataError, match="has 1 entries"):
        verify(first, second, instance, epsilon=1.0)


def classifier(path, by=0.0, softmax=True):
    """Three classes of one vector, as probabilities."""
    helper = onnx.helper
    random = np.random.default_rng(5)
    weights = {"w": (6, 2), "b": (6,), "v": (3, 6)}
    values = {n: random.standard_normal(s).astype(np.float32) for n, s in weights.items()}
    values["v"] = values["v"] + np.float32(by) * random.standard_normal((3, 6)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["w", "x"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["v", "r"], ["l" if softmax else "y"]),
    ]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["l"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3])],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


def test_one_class_in_both(tmp_path, capsys):
    first, second = (classifier(tmp_path / f"c{i}.onnx", by) for i, by in enumerate((0.0, 0.05)))
    box = tmp_path / "box.vnnlib"
    box.write_text(
        "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
        "(assert (<= X_0 1))(assert (>= X_0 -1))(assert (<= X_1 1))(assert (>= X_1 -1))"
    )
    found = verify(first, second, box, claim="top-1")
    assert found.answer == "sat"
    x, f, g = found.witness
    sessions = [
        runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        for path in (first, second)
    ]
    for session, told in zip(sessions, (f, g), strict=True):
        assert np.allclose(session.run(None, {"x": x.numpy()})[0], told.numpy())
    assert int(f.argmax()) != int(g.argmax()) and float(f.sum()) == pytest.approx(1)
    # A lead that no change of g can make up for.
    assert verify(first, second, box, claim="top-1", margin=1.0).answer == "unsat"
    # The margin is one of logits, whatever the file returns: at this witness f leads by less.
    top = f.double().log().topk(2).values
    assert not _classes_differ(
        (first, second),
        [read_network(path, logits=True) for path in (first, second)],
        [f, g],
        float(top[0] - top[1]) + 1e-6,
    )
    with pytest.raises(ArgumentError, match="one question at a time"):
        verify(first, second, box, claim="top-1", epsilon=0.1)
    with pytest.raises(DataError, match="uses Softmax"):
        verify(first, second, box, epsilon=0.1)
    kept, pair = str(tmp_path / "cert.json"), [str(first), str(second)]
    with pytest.raises(SystemExit):
        main(["verify", *pair, str(box), "--claim", "top-1", "--margin", "1", "--save", kept])
    assert capsys.readouterr().out.strip() == "unsat"
    # Of the logits, as then.
    with pytest.raises(SystemExit):
        main(["recheck", kept, *pair])
    assert capsys.readouterr().out.startswith("holds: proved again")


def test_a_difference_of_vectors_is_replayed(tmp_path):
    first, second = (
        classifier(tmp_path / f"c{i}.onnx", by, softmax=False) for i, by in enumerate((0.0, 0.05))
    )
    box = tmp_path / "box.vnnlib"
    box.write_text(
        "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
        "(assert (<= X_0 1))(assert (>= X_0 -1))(assert (<= X_1 1))(assert (>= X_1 -1))"
    )
    assert verify(first, second, box, epsilon=0.01).answer == "sat"


def test_the_command(files, capsys, tmp_path):
    first, second, instance = map(str, files(0.5))
    kept = tmp_path / "cert.json"
    with pytest.raises(SystemExit) as done:
        main(["verify", first, second, instance, "--save", str(kept)])
    assert not done.value.code
    assert capsys.readouterr().out.strip() == "unsat" and kept.exists()
    for pair, code in (((first, second), None), ((first, first), 1)):
        with pytest.raises(SystemExit) as done:
            main(["recheck", str(kept), *pair])
        assert (done.value.code or None) == code
        assert capsys.readouterr().out.startswith("holds: proved again") == (code is None)
