from types import SimpleNamespace

import numpy as np
import pytest
import torch

from secateurs.cli import main
from secateurs.errors import ArgumentError, DataError
from secateurs.proof.networks import read_network
from secateurs.proof.verify import _classes_differ, _inner, _nearest, verify
from secateurs.proof.vnnlib import Question

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


def linear(path, weight, bias, kind=np.float32, shape=None, nodes=None):
    """y = Wx + b."""
    helper, to = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    weight, bias = np.array(weight, kind), np.array(bias, kind)
    nodes = nodes or [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", to, shape or [1, weight.shape[1]])],
        [helper.make_tensor_value_info("y", to, [1, len(weight)])],
        [onnx.numpy_helper.from_array(v, n) for n, v in (("w", weight), ("b", bias))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return path


def ask(folder, box, f, g, outputs=1, sign="", **options):
    """Whether two linear networks of one input differ by more than 0.5 on a box."""
    first, second = linear(folder / "f.onnx", *f, **options), linear(folder / "g.onnx", *g)
    if options:
        linear(second, *g, **options)
    text = "".join(
        f"(declare-network {n} (declare-input X_{n} Real [1,1])"
        f" (declare-output Y_{n} Real [1,{outputs}]))"
        for n in "fg"
    )
    (folder / "q.vnnlib").write_text(
        text + "(assert (== X_f[0] X_g[0]))" + box + f"(assert (or (>{sign} Y_g[0] (+ Y_f[0] 0.5))"
        f" (<{sign} Y_g[0] (- Y_f[0] 0.5))))"
    )
    return verify(first, second, folder / "q.vnnlib", seconds=5)


IDENTITY, MOVED, DOUBLED = ([[1.0]], [0.0]), ([[1.0]], [0.7]), ([[2.0]], [0.0])


def test_a_witness_lies_in_the_box_or_beside_it_where_no_number_does(tmp_path):
    """The box {1 + 2⁻⁴⁰} of float64 has no number of float32, and {0.1} has neither."""
    exact = f"{1 + 2**-40:.40f}"
    box = f"(assert (>= X_f[0] {exact}))(assert (<= X_f[0] {exact}))"
    found = ask(tmp_path, box, IDENTITY, MOVED)
    assert found.answer == "sat" and found.witness[0].item() == 1
    assert found.remarks[-1] == (
        "in 1 of 1 entries no float32 lies in the box: there the witness has the nearest one, and"
        " evaluated in float64 the networks differ within the last digit of the box as well"
    )
    # The same in files of float64, which has it.
    found = ask(tmp_path, box, IDENTITY, MOVED, kind=np.float64)
    assert found.answer == "sat" and found.witness[0].item() == 1 + 2**-40
    assert found.remarks == (
        "sat speaks of float64: both outputs are what a computer answered at the input",
    )
    box = "(assert (>= X_f[0] 0.1))(assert (<= X_f[0] 0.1))"
    found = ask(tmp_path, box, IDENTITY, MOVED, kind=np.float64)
    assert found.answer == "sat" and found.witness[0].item() == 0.1
    assert "no float64 lies in the box" in found.remarks[-1]


def test_entries_without_a_number_are_counted(files):
    first, second, instance = files(1e-6)
    text = instance.read_text()
    instance.write_text(
        text.replace("X_f[0] 1)", "X_f[0] 0.3)").replace("X_f[0] -1)", "X_f[0] 0.3)")
    )
    found = verify(first, second, instance)
    assert found.answer == "sat" and "in 1 of 2 entries no float32" in found.remarks[-1]
    instance.write_text(instance.read_text().replace("X_f[1] 0.7)", "X_f[1] 0.1)"))
    found = verify(first, second, instance)
    assert found.answer == "sat" and "in 2 of 2 entries no float32" in found.remarks[-1]


def test_no_witness_beside_a_box_is_taken_for_one_in_it(tmp_path, monkeypatch):
    """Of 2⁻²⁵ above the middle of two numbers: the nearest float32 is out of the box, on which
    the networks differ by too little; and of a box that is beyond what float32 reaches.
    """
    steep = [[2.0**25]], [-(2.0**25)]
    exact = f"{1 + 2**-25:.40f}"
    box = f"(assert (>= X_f[0] {exact}))(assert (<= X_f[0] {exact}))"
    # At 1, the nearest float32, f answers 0 and g 0; in the box f answers 1.
    found = ask(tmp_path, box, steep, ([[0.0]], [0.0]))
    assert found.answer == "unknown" and found.witness is None
    assert "was found in float64, and not in the networks' own precision" in found.remarks[-1]
    # The other way round: they differ at the nearest float32 alone.
    found = ask(tmp_path, box, steep, ([[0.0]], [1.0]))
    assert found.answer == "unsat"
    # Also where nothing was proved.
    x = torch.tensor([[1 + 2**-25]], dtype=torch.float64)
    open_ = SimpleNamespace(answer="open", worst_input=x, claim=None)
    with monkeypatch.context() as patched:
        patched.setattr("secateurs.proof.verify.certify", lambda *_, **options: open_)
        found = ask(tmp_path, box, steep, ([[0.0]], [1.0]))
    assert found.answer == "unknown" and not found.remarks
    box = "(assert (>= X_f[0] 1e200))(assert (<= X_f[0] 1e200))"
    found = ask(tmp_path, box, IDENTITY, DOUBLED)
    assert found.answer == "unknown" and "no float32 is near it" in found.remarks[-1]


def test_a_witness_does_not_lie_on_an_open_end(tmp_path):
    """The difference is x, largest at the end that the box does not have."""
    box = "(assert (> X_f[0] 0))(assert (< X_f[0] 1))"
    found = ask(tmp_path, box, IDENTITY, DOUBLED)
    assert found.answer == "sat" and 0.5 < found.witness[0].item() < 1
    assert "sat speaks of float32" in found.remarks[-1]
    with pytest.raises(DataError, match="between 1 and 1: an empty box"):
        ask(tmp_path, "(assert (> X_f[0] 1))(assert (< X_f[0] 1))", IDENTITY, DOUBLED)


def test_a_difference_of_exactly_epsilon_counts_where_the_file_says_so(tmp_path):
    box, by = "(assert (>= X_f[0] 0))(assert (<= X_f[0] 0))", ([[1.0]], [0.5])
    assert ask(tmp_path, box, IDENTITY, by).answer != "sat"
    assert ask(tmp_path, box, IDENTITY, by, sign="=").answer == "sat"


def test_outputs_that_the_file_does_not_declare(tmp_path):
    box = "(assert (>= X_f[0] 0))(assert (<= X_f[0] 1))"
    two = [[1.0], [1.0]]
    with pytest.raises(DataError, match=r"f\.onnx returns 2 values; the instance declares 1"):
        ask(tmp_path, box, (two, [0.0, 0.0]), (two, [0.0, 9.0]))


def test_the_answer_says_of_which_numbers_it_speaks(files, tmp_path):
    first, second, _ = files(1)
    assert "unsat speaks of both networks in real numbers" in verify(*files(0.5)).remarks[-1]
    one = tmp_path / "one.vnnlib"
    one.write_text(
        "(declare-const X_0 Real)(declare-const X_1 Real)(declare-const Y_0 Real)"
        "(assert (<= X_0 1))(assert (>= X_0 0))(assert (<= X_1 1))(assert (>= X_1 0))\n"
        "(assert (>= Y_0 0))"
    )
    found = verify(first, second, one, epsilon=1.0)
    assert "(line 2) are about one network and were not read" in found.remarks[0]
    text = INSTANCE.replace("real [1]", "real [2]").replace(
        "(assert (or", "(assert (or (> Y_g[1] (+ Y_f[1] EPS)) (< Y_g[1] (- Y_f[1] EPS))"
    )
    one.write_text(text.replace("EPS", "1"))
    pair = [linear(tmp_path / f"{n}.onnx", [[1, 0], [0, 1]], [0, 9]) for n in "fg"]
    found = verify(*pair, one, claim="top-1")
    assert found.remarks[0] == "the conditions on outputs in the file were not asked: the claim was"


def test_the_inner_box_holds_what_the_box_holds_and_nothing_else():
    random = np.random.default_rng(0)
    lo = random.uniform(-1, 1, 400)
    hi = lo + random.choice([0.0, 1e-9, 1e-8, 1e-3, 1.0], 400)
    exact = np.arange(0, 400, 3)
    lo[exact] = lo[exact].astype(np.float32)
    open_lo, open_hi = (frozenset(np.flatnonzero(random.random(400) < 0.5)) for _ in range(2))
    question = Question(
        lo=tuple(lo),
        hi=tuple(hi),
        epsilon=1.0,
        names=("x", "f", "g"),
        open_lo=open_lo,
        open_hi=open_hi,
    )
    least, most = _inner(question, (20, 20), torch.float32)
    for i, (low, high) in enumerate(zip(least.flatten(), most.flatten(), strict=True)):
        # An oracle that walks from the end, neighbour by neighbour.
        first = np.nextafter(np.float32(lo[i]), np.float32(-9))
        while float(first) < lo[i] or (float(first) == lo[i] and i in open_lo):
            first = np.nextafter(first, np.float32(9))
        last = np.nextafter(np.float32(hi[i]), np.float32(9))
        while float(last) > hi[i] or (float(last) == hi[i] and i in open_hi):
            last = np.nextafter(last, np.float32(-9))
        if first > last:
            assert low.isnan() and high.isnan()
        else:
            assert (low.item(), high.item()) == (first, last)
    assert bool(least.isnan().any()) and not bool(least.isnan().all())


def test_a_point_is_moved_into_the_box():
    least, most = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 2.0])
    inside = _nearest(torch.tensor([[-1.0, 3.0]], dtype=torch.float64), least, most)
    assert inside.tolist() == [0.0, 2.0] and inside.dtype == torch.float32
    kept = _nearest(torch.tensor([[0.25, 1.5]], dtype=torch.float64), least, most)
    assert kept.tolist() == [0.25, 1.5]
    beside = torch.tensor([0.0, torch.nan])
    assert _nearest(torch.tensor([[-1.0, 3.0]]), beside, beside).tolist() == [0.0, 3.0]


def test_a_file_that_is_read_otherwise_than_it_runs_is_refused(files, monkeypatch):
    """As a rule that misreads an operator would."""
    from secateurs.proof import networks

    monkeypatch.setitem(networks._OPERATORS, "Relu", lambda fields, known: torch.neg)
    with pytest.raises(DataError, match="is read otherwise than onnxruntime reads it"):
        verify(*files(0.5))


def test_values_that_are_not_finite(tmp_path):
    box = "(assert (>= X_f[0] 0))(assert (<= X_f[0] 1))"
    with pytest.raises(DataError, match="NaN or infinite values"):
        ask(tmp_path, box, ([[np.nan]], [0.0]), IDENTITY)


def test_one_input_in_the_shapes_of_both_files(tmp_path):
    """An image that is flattened first may come as a row; one that is folded may not."""
    helper = onnx.helper
    flat = [
        helper.make_node("Flatten", ["x"], ["r"]),
        helper.make_node("Gemm", ["r", "w", "b"], ["y"], transB=1),
    ]
    weight, bias = np.ones((2, 4)), np.zeros(2)
    first = linear(tmp_path / "f.onnx", weight, bias, shape=[1, 1, 2, 2], nodes=flat)
    second = linear(tmp_path / "g.onnx", weight, bias + 1, shape=[1, 4], nodes=flat)
    box = tmp_path / "box.vnnlib"
    box.write_text(
        "".join(
            f"(declare-const X_{i} Real)(assert (>= X_{i} 0))(assert (<= X_{i} 1))"
            for i in range(4)
        )
    )
    assert verify(first, second, box, epsilon=0.5).answer == "sat"
    relu = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Flatten", ["a"], ["r"])]
    linear(second, weight, bias, shape=[1, 4], nodes=[*relu, flat[1]])
    with pytest.raises(
        DataError, match=r"g\.onnx takes inputs of shape \(4,\), which mean another"
    ):
        verify(first, second, box, epsilon=0.5)
