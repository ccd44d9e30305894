import math
from decimal import Decimal
from fractions import Fraction
from random import Random

import pytest

from secateurs.errors import DataError
from secateurs.proof.vnnlib import read_vnnlib

PAIR = """
; two networks
(vnnlib-version <2.0>)
(declare-network f
    (declare-input X_f real [2])
    (declare-output Y_f real [2]))
(declare-network g
    (isomorphic-to f)
    (declare-input X_g real [2])
    (declare-output Y_g real [2]))
(assert (and (<= X_f[0] 0.5) (>= X_f[0] -1e-1)))
(assert (<= X_f[1] 2)) (assert (<= (- 0.25) X_f[1]))
(assert (== X_f[0] X_g[0]))
(assert (== X_g[1] X_f[1]))
"""
MEANT = """(assert (or
    (> Y_g[0] (+ Y_f[0] 0.05)) (< Y_g[0] (- Y_f[0] 0.05))
    (> Y_f[1] (+ Y_g[1] 0.05)) (>= Y_g[1] (+ Y_f[1] 0.05))))"""
SLIP = """
(assert (and (> Y_g[0] (+ Y_f[0] 0.05)) (< Y_g[0] (- Y_f[0] 0.05))))
(assert (and (> Y_g[1] (+ Y_f[1] 0.05)) (< Y_g[1] (- Y_f[1] 0.05))))"""


def read(tmp_path, text):
    path = tmp_path / "instance.vnnlib"
    path.write_text(text)
    return read_vnnlib(path)


def test_a_question_about_two_networks(tmp_path):
    found = read(tmp_path, PAIR + MEANT)
    assert (found.lo, found.hi, found.epsilon) == ((-0.1, -0.25), (0.5, 2.0), 0.05)
    assert found.names == ("X_f", "Y_f", "Y_g") and found.remark == ""


@pytest.mark.parametrize(
    "usual",
    [
        "(or (and (> Y_g[{0}] (+ 0.05 Y_f[{0}]))) (and (< Y_g[{0}] (- Y_f[{0}] 0.05))))",
        "(or (> (- Y_g[{0}] Y_f[{0}]) 0.05) (> (- Y_f[{0}] Y_g[{0}]) 0.05))",
        "(or (> Y_g[{0}] (+ 0.02 Y_f[{0}] 0.03)) (> (- 0.05) (- Y_g[{0}] Y_f[{0}])))",
        "(or (< (+ Y_f[{0}] 0.05) Y_g[{0}]) (< (+ Y_g[{0}] 0.05) Y_f[{0}]))",
    ],
)
def test_the_same_question_in_other_words(tmp_path, usual):
    text = PAIR.replace("Y_f real [2]", "Y_f real [1]").replace("Y_g real [2]", "Y_g real [1]")
    found = read(tmp_path, text + f"(assert {usual.format(0)})")
    assert (found.epsilon, found.outputs, found.reached, found.remark) == (0.05, 1, True, "")


def test_a_comment_ends_with_its_line(tmp_path):
    path = tmp_path / "instance.vnnlib"
    path.write_text(PAIR + "; a comment\u2028(assert (<= X_f[1] -0.1)) \x0c goes on\n" + MEANT)
    assert read_vnnlib(path).hi == (0.5, 2.0)


def test_ends_that_the_box_does_not_have(tmp_path):
    strict = PAIR.replace("(<= X_f[0] 0.5)", "(< X_f[0] 0.5)").replace(
        "(<= (- 0.25) X_f[1])", "(< (- 0.25) X_f[1])"
    )
    found = read(tmp_path, strict + "(assert (<= X_f[0] 0.5)) (assert (> X_f[1] -3))" + MEANT)
    # −0.1 is no float64: the box begins above the one that is read.
    assert (found.open_lo, found.open_hi) == ({0, 1}, {0})
    assert found.lo == (-0.1, -0.25) and found.hi == (0.5, 2.0)
    narrower = read(tmp_path, strict + "(assert (<= X_f[0] 0.25))" + MEANT)
    assert narrower.hi == (0.25, 2.0) and narrower.open_hi == frozenset()
    with pytest.raises(DataError, match=r"input 1 .* an empty box"):
        read(tmp_path, strict + "(assert (<= X_f[1] -0.25))" + MEANT)


@pytest.mark.parametrize(
    ("epsilon", "sign", "reached"),
    [
        ("0.5", ">=", True),
        ("0.5", ">", False),
        # The float64 nearest to 0.05 is above it, that nearest to 0.7 below.
        ("0.05", ">", True),
        ("0.7", ">=", False),
    ],
)
def test_whether_epsilon_itself_is_one_too_many(tmp_path, epsilon, sign, reached):
    text = MEANT.replace(">=", ">").replace("0.05", epsilon).replace("(> Y_g[0]", f"({sign} Y_g[0]")
    found = read(tmp_path, PAIR + text)
    assert (found.epsilon, found.reached) == (float(epsilon), reached)


def test_decimals_are_read_outwards(tmp_path):
    """The box holds that of the file, and no float64 lies between."""
    random = Random(0)
    for _ in range(200):
        digits = random.randrange(1, 30)
        low = Fraction(random.randrange(-(10**digits), 10**digits), 10**digits)
        high = low + Fraction(random.randrange(1, 10**digits), 10**digits)
        words = [f"{Decimal(x.numerator) / x.denominator:.{digits}f}" for x in (low, high)]
        low, high = map(Fraction, words)
        text = "(declare-const X_0 Real)"
        text += f"(assert (>= X_0 {words[0]})) (assert (<= X_0 {words[1]}))"
        found = read(tmp_path, text)
        (lo,), (hi,) = found.lo, found.hi
        assert lo <= low < math.nextafter(lo, math.inf)
        assert math.nextafter(hi, -math.inf) < high <= hi
        assert (0 in found.open_lo) == (lo != low) and (0 in found.open_hi) == (hi != high)


def test_the_slip_is_read_as_it_is_meant_and_told(tmp_path):
    found = read(tmp_path, PAIR + SLIP)
    assert found.epsilon == 0.05 and "as it is meant" in found.remark


def test_entries_of_images_are_counted_row_by_row(tmp_path):
    text = PAIR.replace("X_f real [2]", "X_f real [1,2,2]").replace(
        "X_g real [2]", "X_g real [1,2,2]"
    )
    ends = {"0,0,0": 0.0, "0,0,1": 1.0, "0,1,0": 2.0, "0,1,1": 3.0}
    text = text[: text.index("(assert")]
    for index, value in ends.items():
        text += f"(assert (== X_f[{index}] {value})) (assert (== X_f[{index}] X_g[{index}]))"
    found = read(tmp_path, text + MEANT)
    assert found.lo == found.hi == (0.0, 1.0, 2.0, 3.0)


def test_of_version_1_the_box_is_read(tmp_path):
    text = """
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(assert (>= X_0 -1)) (assert (<= X_0 1))
(assert (>= X_1 0.25)) (assert (<= X_1 0.5)) (assert (<= X_1 0.4))
(assert (<= Y_0 3.9))"""
    found = read(tmp_path, text)
    assert (found.lo, found.hi, found.epsilon) == ((-1.0, 0.25), (1.0, 0.4), None)
    assert "(line 7) are about one network and were not read" in found.remark
    assert not read(tmp_path, text.replace("(assert (<= Y_0 3.9))", "")).remark


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no input is declared"),
        ("(assert", "line 1: a parenthesis is never closed"),
        ("\n)", "line 2: a parenthesis is closed but was never opened"),
        ("word", "line 1: 'word' stands outside"),
        ("(" * 100, "more than 64 parentheses"),
        ("()", "an empty pair"),
        ("(check-sat)", "line 1: 'check-sat' is not a known statement"),
        ("(declare-const Z_0 Real)", "neither X_i nor Y_i"),
        ("(declare-const X_99999999999 Real)", "neither X_i nor Y_i"),
        (PAIR.replace("(assert (<= X_f[1] 2))", "") + MEANT, "input 1 of 2 has no lower or no"),
        (PAIR.replace("(<= X_f[1] 2)", "(<= X_f[1] -3)") + MEANT, "an empty box"),
        (PAIR.replace("(<= X_f[1] 2)", "(<= X_f[1] nan)"), "line 12: 'nan' is not a number"),
        (PAIR.replace("(<= X_f[1] 2)", "(<= X_f[1] 1e400)"), "that float64 reaches"),
        (PAIR.replace("(<= X_f[1] 2)", "(<= X_f[1] 1e-999999999)"), "that float64 reaches"),
        (PAIR.replace("(<= X_f[1] 2)", "(<= X_f[7] 2)"), "line 12: X_f.7. is not an entry"),
        (PAIR.replace("(<= X_f[1] 2)", "(<= X_f[0,1] 2)"), "X_f.0,1. is not an entry"),
        (
            PAIR.replace("(<= X_f[1] 2)", f"(<= X_f[{'9' * 5000}] 2)"),
            "about inputs or about outputs",
        ),
        (PAIR.replace("(<= X_f[1] 2)", "(or (<= X_f[1] 2) (<= X_f[0] 1))"), "'or' of inputs"),
        (PAIR.replace("(assert (== X_f[0] X_g[0]))", "") + MEANT, "nothing ties entry 0"),
        # As a network that is asked to be monotonic.
        (PAIR + "(assert (<= X_f[0] X_g[0]))", "'<=' compares two inputs; the question is about"),
        (PAIR + "(assert (<= X_f[0] Y_f[0]))", "about inputs or about outputs, not both"),
        (PAIR, "not asked whether each of them differs"),
        (PAIR + "(assert (> Y_g[0] (+ Y_f[0] 0.05)))", "not asked whether each"),
        (PAIR + "(assert (> Y_g[0] (* Y_f[0] 2)))", "another one plus a number"),
        (PAIR + "(assert (> Y_g[0] (+ Y_f[1] 0.05)))", "the same output of both"),
        (PAIR + "(assert (> Y_g[0] (- Y_f[0] 0)))", "ε must be a positive number"),
        # A pair is equivalent where this holds, and a counterexample is asked for.
        (
            PAIR + "(assert (> Y_g[0] (- Y_f[0] 0.05)))",
            "agree to within 0.05; what is looked for are inputs at which they do not, as"
            " (> Y_g.0. (. Y_f.0. 0.05))",
        ),
        (PAIR + "(assert (<= Y_g[0] (+ Y_f[0] 0.05)))", "agree to within 0.05"),
        (PAIR + "(assert (<= Y_f[0] (+ Y_g[0] 0.05)))", "agree to within 0.05"),
        (PAIR + MEANT + SLIP, "not one 'or'"),
        # A point would have to break both: the answer `sat` would be wrong.
        (
            PAIR
            + "(assert (or (> Y_g[0] (+ Y_f[0] 1)) (< Y_g[0] (- Y_f[0] 1))))"
            + "(assert (or (> Y_g[1] (+ Y_f[1] 1)) (< Y_g[1] (- Y_f[1] 1))))",
            "not one 'or'",
        ),
        (PAIR + MEANT.replace("0.05)) (<", "0.06)) (<"), "by more than one ε"),
        (PAIR + "(declare-network h (declare-input X_f real [2]))", "X_f is declared twice"),
    ],
)
def test_what_is_no_such_question_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message.replace("(", r"\(").replace(")", r"\)")):
        read(tmp_path, text)


def test_files_that_are_not_there_or_no_text(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_vnnlib(tmp_path / "none.vnnlib")
    (tmp_path / "bytes.vnnlib").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        read_vnnlib(tmp_path / "bytes.vnnlib")
