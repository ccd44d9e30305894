"""A kept certificate: what its text holds, and how it is proved again."""

import base64
import copy
import dataclasses
import inspect
import json
import math
import sys

import pytest
import torch
from torch import nn

import secateurs as sc
from secateurs.base.random import generator as seeded
from secateurs.errors import ArgumentError, DomainError
from secateurs.proof import recheck, record
from secateurs.proof.certificate import COVERED
from secateurs.proof.certify import CertifyOptions, CertifySettings
from secateurs.proof.kept import read_record
from secateurs.proof.record import pack_tensor
from tiny_networks import fully_connected, randomize, tuned


@pytest.fixture
def networks():
    g = seeded(0, "recheck")
    dense = randomize(fully_connected(), g)
    return dense, tuned(dense, g, size=0.01)


@pytest.fixture
def ball():
    return {
        "around": torch.randn(5, 5, generator=seeded(1, "recheck")),
        "radius": 0.01,
    }


@pytest.mark.parametrize("options", [{}, {"norm": 2, "methods": "interval"}, {"rounding": True}])
def test_proved_again_from_the_text_alone(options, networks, ball):
    text = sc.certify(*networks, **ball, **options).to_json()
    again = recheck(text, *(copy.deepcopy(m) for m in networks))
    assert again.holds and again.bound == pytest.approx(again.stated, rel=1e-12)
    assert str(again).startswith("holds: proved again")


def test_other_weights_or_another_graph_do_not_hold(networks, ball):
    dense, sparse = networks
    text = sc.certify(dense, sparse, **ball).to_json()
    other = copy.deepcopy(sparse)
    next(other.parameters()).data.view(-1)[0] += 1e-7
    result = recheck(text, dense, other)
    assert not result.holds
    assert result.problems == ("the weights of the sparse network are not those certified",)


TAMPERED = {
    "bound": (lambda v: v * 0.9, "the bound proved now"),
    "per_output": (lambda v: [v[0] * 0.9, *v[1:]], "the bound of output 0"),
    "bounds": (lambda v: v | {"interval": 1e-9}, "the bound by interval"),
    "lower_bound": (lambda v: v * 1.01, "at the worst input"),
    "tightness": (lambda v: 1.0, "bound / found"),
    "norm": (lambda v: "1", "the norm is 'inf', not '1.0'"),
    "domain": (lambda v: "all of space", "the domain is"),
    "method": (lambda v: "magic", "the method 'magic' proves nothing"),
    "rounding": (lambda v: COVERED, "the rounding is"),
    "assumptions": (lambda v: v[1:], "is missing"),
    "output_range": (lambda v: v * 10, "the output range is"),
    "smallest_margin": (lambda v: v * 2, "the smallest margin is"),
    "certified": (lambda v: {"kept": 5, "of": 5}, "boxes are certified"),
    "verdict": (lambda v: "certifies 5 of 5", "the verdict is"),
}


@pytest.mark.parametrize("field", TAMPERED)
def test_every_claim_of_the_text_is_compared(field, networks, ball):
    """Whatever was edited afterwards shows: no line of a record is believed."""
    dense, sparse = networks
    where = {"around": ball["around"], "radius": 0.4, "methods": "interval"}
    told = json.loads(sc.certify(dense, sparse, **where, restarts=1).to_json())
    assert recheck(json.dumps(told), dense, sparse).holds
    change, said = TAMPERED[field]
    result = recheck(json.dumps(told | {field: change(told[field])}), dense, sparse)
    assert not result.holds and any(said in text for text in result.problems)


def leaves(value, at=()):
    """The places of everything that is neither an object nor a list, and of empty ones."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    inner = [place for key, part in items for place in leaves(part, (*at, key))]
    return inner or [at]


def edits(value, *, bytes_=False):
    """Other values of the same kind, and of others."""
    if bytes_:
        # The sign of the last number: a point moved by its last digits differs as much as before.
        content = bytearray(base64.b64decode(value))
        content[-1] ^= 0x80
        return [base64.b64encode(content).decode(), value[:-4], value + "=", "", None]
    if isinstance(value, bool):
        return [not value, None, 1]
    if isinstance(value, int | float):
        return [value * 1.01 + 0.01, value * 100 + 1, -1, None, "x", str(value)]
    if isinstance(value, str):
        # One letter in the middle: of a hash, of base64, of a sentence.
        half = len(value) // 2
        other = "B" if value[half : half + 1] == "A" else "A"
        return [value[:half] + other + value[half + 1 :], value + "x", "", None, 1]
    return [1, 0.5, "x", True, ["x"], {"x": 1}]


def edited(record, place, value):
    record = copy.deepcopy(record)
    part = record
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    return record


def additions(value, at=()):
    """The record with one key more in each object, and with one line more in each list."""
    if isinstance(value, dict):
        yield at, value | {"note": "checked by an auditor"}
        for key, part in value.items():
            yield from additions(part, (*at, key))
    elif isinstance(value, list):
        yield at, [*value, "checked by an auditor"]
        yield at, [*value, *value[:1]] if value else ["x"]
        yield at, value[:-1]


def seen(record, networks, folder, domain=None):
    """What a recheck says of a record, refusals included; None where it says nothing."""
    text = json.dumps(record)
    if folder is not None:
        (folder / "cert.json").write_text(text)
    try:
        result = recheck(text if folder is None else folder / "cert.json", *networks, domain=domain)
    except sc.errors.SecateursError as error:
        return str(error)
    return result.problems or (result.open, result.weaker)


RECORDS = {
    "balls": {"around": 5, "radius": 0.01, "clip": (-9, 9.0)},
    "one box": {"box": (-0.25, 1 / 3), "example": 1, "norm": 2, "rounding": True},
    "a limit of time": {"around": 1, "radius": 0.1, "seconds": 1e-9},
    "boxes in a file": {"around": 2, "radius": 0.01},
    "no boxes": {"around": 2, "radius": 0.01},
}


@pytest.mark.parametrize(
    "kind",
    [
        "balls",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in RECORDS if kind != "balls"),
    ],
)
def test_an_edit_of_any_leaf_is_noticed(kind, networks, tmp_path, monkeypatch):
    """Of every leaf of a record, one after the other: refused, no longer true, or named."""
    options = RECORDS[kind] | {"restarts": 1, "steps": 1}
    for name in ("example", "around"):
        if name in options:
            given = torch.randn(options[name], 5, generator=seeded(2, "leaves"))
            options[name] = given.clamp(-1, 1)
    if "seconds" not in options:
        options["methods"] = ["interval", "path-metric", "two-stream"]
    cert = sc.certify(*networks, **options)
    folder, domain = None, None
    told = json.loads(cert.to_json(boxes=kind != "no boxes"))
    if kind == "no boxes":
        domain = cert.region
    if kind == "boxes in a file":
        monkeypatch.setattr(record, "INLINE", 1)
        folder = tmp_path
        cert.save(folder / "cert.json")
        told = json.loads((folder / "cert.json").read_text())
    # The networks are the same all along: read once for each way to read them.
    # `certificates.recheck` is the function; its module is found by name.
    keeping_recheck = sys.modules["secateurs.proof.recheck"]
    read, kept = keeping_recheck.read_problem, {}

    def read_once(dense, sparse, example, *, clock, **ways):
        key = tuple(ways.items())
        if key not in kept:
            kept[key] = read(dense, sparse, example, clock=clock, **ways)
        return kept[key]

    monkeypatch.setattr(keeping_recheck, "read_problem", read_once)
    untouched = seen(told, networks, folder, domain)
    assert isinstance(untouched, tuple) and len(untouched) == 2, untouched
    passed = [
        (".".join(map(str, place)), value)
        for place in leaves(told)
        for value in edits(value_at(told, place), bytes_=place[-1] == "data")
        if seen(edited(told, place, value), networks, folder, domain) == untouched
    ]
    assert passed == []
    passed = [
        (".".join(map(str, place)), value)
        for place, value in additions(told)
        if value != value_at(told, place)
        and seen(edited(told, place, value) if place else value, networks, folder, domain)
        == untouched
    ]
    assert passed == []


def value_at(record, place):
    for key in place:
        record = record[key]
    return record


def test_a_deviation_above_the_bound_is_no_fact(networks, ball):
    """Without the input nothing can be evaluated; a fact lies below the bound all the same."""
    told = json.loads(sc.certify(*networks, **ball).to_json(boxes=False))
    told |= {"lower_bound": 100 * told["bound"], "tightness": 0.01}
    domain = sc.certify(*networks, **ball, methods="interval").region
    result = recheck(json.dumps(told), *networks, domain=domain)
    assert not result.holds and "above the bound proved now" in str(result)


def test_a_key_given_twice_is_refused(networks, ball):
    text = sc.certify(*networks, **ball, methods="interval").to_json()
    twice = text.replace('"bound":', '"bound": 0.0, "bound":', 1)
    with pytest.raises(ArgumentError, match="appears twice"):
        recheck(twice, *networks)


def test_a_path_as_text_is_told_apart(networks):
    with pytest.raises(ArgumentError, match=r"For a file give Path\('cert.json'\)"):
        recheck("cert.json", *networks)
    with pytest.raises(ArgumentError, match="a dict is not a certificate"):
        recheck({}, *networks)


def test_a_larger_bound_is_true_and_told(networks, ball):
    told = json.loads(sc.certify(*networks, **ball, methods="interval").to_json())
    told["bounds"]["interval"] *= 2
    result = recheck(json.dumps(told), *networks)
    assert result.holds and "the bound by interval is" in result.weaker[0]
    assert "more is true" in str(result)


def test_other_boxes_are_refused(networks, ball):
    told = json.loads(sc.certify(*networks, **ball).to_json())
    for change in (
        {"radius": 1e-9},
        {"clip": [-9, 9.0]},
        {"center": pack_tensor(ball["around"] * 0.5)},
    ):
        with pytest.raises(DomainError, match=r"hash does not match|outside clip"):
            boxes = told["boxes"] | change
            recheck(
                json.dumps(told | {"boxes": boxes | {"clip": [-1e-9, 1e-9]}}),
                *networks,
            )
            recheck(json.dumps(told | {"boxes": boxes}), *networks)
    outside = pack_tensor(torch.full((5,), 100.0))
    result = recheck(json.dumps(told | {"worst_input": outside}), *networks)
    assert "lies outside" in str(result)


def test_boxes_too_many_for_the_text_lie_beside_it(networks, ball, tmp_path, monkeypatch):
    monkeypatch.setattr(record, "INLINE", 20)
    cert = sc.certify(*networks, **ball)
    assert "center" not in json.loads(cert.to_json())["boxes"]
    with pytest.raises(ArgumentError, match="only the hash of its boxes"):
        recheck(cert.to_json(), *networks)
    assert recheck(cert.to_json(), *networks, domain=cert.region).holds
    cert.save(tmp_path / "cert.json")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["cert.boxes.safetensors", "cert.json"]
    assert recheck(tmp_path / "cert.json", *networks).holds
    (tmp_path / "cert.boxes.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DomainError, match="is damaged"):
        recheck(tmp_path / "cert.json", *networks)
    (tmp_path / "cert.boxes.safetensors").unlink()
    with pytest.raises(DomainError, match="missing beside"):
        recheck(tmp_path / "cert.json", *networks)


def test_a_file_elsewhere_is_not_opened(networks, ball, tmp_path):
    sc.certify(*networks, **ball).save(tmp_path / "cert.json")
    told = json.loads((tmp_path / "cert.json").read_text())
    told["boxes"] |= {"file": "../cert.json"}
    (tmp_path / "cert.json").write_text(json.dumps(told))
    with pytest.raises(DomainError, match="missing beside"):
        recheck(tmp_path / "cert.json", *networks)


def test_every_kind_of_domain_comes_back(networks, ball):
    x = ball["around"]
    for domain in (
        {"box": (x[:1] - 1, x[:1] + 0.3)},
        {"box": (-0.25, 1 / 3), "example": x},
        {"around": x.clamp(0, 1), "radius": 1 / 255, "clip": (0, 1)},
        {"around": x.double() / 3, "radius": 0.0},
    ):
        cert = sc.certify(*networks, **domain, seconds=1e-9)
        result = recheck(cert.to_json(), *networks)
        assert result.holds


def test_what_a_hostile_text_raises_is_typed(networks, ball):
    """Every field replaced by every kind of value: refused, or does not hold, and never a crash."""
    told = json.loads(sc.certify(*networks, **ball, methods="interval").to_json())
    for field in told:
        for value in (None, "x", [[]], -1):
            try:
                result = recheck(json.dumps(told | {field: value}), *networks)
            except sc.errors.SecateursError:
                continue
            assert value == told[field] or result.open or not result.holds
    with pytest.raises(ArgumentError, match="not JSON"):
        recheck("[" * 100_000, *networks)


def test_a_refusal_names_the_field(networks, ball):
    told = json.loads(sc.certify(*networks, **ball, methods="interval").to_json())
    without = {name: value for name, value in told.items() if name != "bounds"}
    for text, said in (
        (without, "bounds: it is missing"),
        (told | {"bound": "0.5"}, 'bound: "0.5" is not a number'),
        (told | {"certified": {"kept": True, "of": 5}}, "certified.kept: true is not a whole"),
        (told | {"norm": "3"}, 'norm: "3" is not a norm'),
        (told | {"per_output": []}, "per_output: the list is empty"),
        (told | {"assumptions": [1]}, r"assumptions\[0\]: 1 is not text"),
        (
            told | {"options": told["options"] | {"effort": 0}},
            "options.effort: 0.0 is not a finite",
        ),
        (told | {"options": {}}, "options.methods: it is missing"),
        (told | {"boxes": None}, "boxes: null is not an object"),
    ):
        with pytest.raises(ArgumentError, match=f"this is not a certificate.*{said}"):
            recheck(json.dumps(text), *networks)


def test_a_text_is_written_and_read_from_the_same_fields(networks, ball):
    """What is read from a text is written as that text again."""
    text = sc.certify(*networks, **ball).to_json()
    read, misspelt = read_record(text)
    assert read.text == text and misspelt == []


def test_what_hostile_boxes_raise_is_typed(networks, ball):
    told = json.loads(sc.certify(*networks, **ball, methods="interval").to_json())
    for field in told["boxes"]:
        for value in ("x", [[]], ["x", "y"], -1, [1e400, 0], {}):
            edited = told | {"boxes": told["boxes"] | {field: value}}
            try:
                result = recheck(json.dumps(edited), *networks)
            except sc.errors.SecateursError:
                continue
            assert not result.holds


def test_one_literal_changes_the_hash_of_the_graph():
    class Picks(nn.Module):
        def __init__(self, index: list[int]) -> None:
            super().__init__()
            self.a, self.index = nn.Linear(3, 4), index

        def forward(self, x):
            return torch.relu(self.a(x))[:, self.index]

    hashes = []
    for index in ([0, 1], [2, 3]):
        model = Picks(index)
        told = json.loads(sc.certify(model, model, around=torch.zeros(1, 3), radius=0.1).to_json())
        hashes.append(told["networks"]["dense"]["graph"])
    assert hashes[0] != hashes[1]


def test_the_verdict_in_words(networks, ball):
    dense, sparse = networks
    close = sc.certify(dense, sparse, around=ball["around"], radius=0.0)
    kept = int(close.certified(ball["around"]).sum())
    assert close.verdict.startswith(f"certifies {kept} of 5")
    far = sc.certify(dense, sparse, around=ball["around"], radius=1e6)
    assert far.verdict.startswith("vacuous: the bound")
    assert "agree everywhere" in sc.certify(dense, dense, rounding=False, **ball).verdict


def test_what_is_no_certificate_is_refused(networks, ball):
    for text in ("not json", "[]", "{}"):
        with pytest.raises(ArgumentError, match="this is not a certificate"):
            recheck(text, *networks)
    seen = sc.proof.statistical(*networks, data=torch.randn(40, 5)).to_json()
    with pytest.raises(ArgumentError, match="statistical"):
        recheck(seen, *networks)


def test_earlier_texts_had_a_place_for_samples(networks, ball):
    """Empty it changes nothing; what is in it cannot be compared, so the text does not hold."""
    told = json.loads(sc.certify(*networks, **ball, methods="interval").to_json())
    assert recheck(json.dumps(told | {"statistical": None}), *networks).holds
    found = recheck(json.dumps(told | {"statistical": {"samples": 5}}), *networks)
    assert found.problems == ("the record also holds 'statistical'",)


def test_sizes_to_compare_with(networks, ball):
    told = json.loads(sc.certify(*networks, **ball).to_json())
    with torch.no_grad():
        outputs = networks[0].double()(ball["around"].double())
    top = outputs.topk(2, dim=1).values
    assert math.isclose(told["smallest_margin"], float((top[:, 0] - top[:, 1]).min()))
    assert math.isclose(told["output_range"], float(outputs.max() - outputs.min()))
    assert set(told["versions"]) == {"secateurs", "torch", "python"}


def test_one_bad_ball_does_not_hide_the_good_ones(networks, ball):
    """Vacuous is said of all balls only where none of them keeps its class."""
    cert = sc.certify(*networks, **ball)
    wide = cert.per_box.clone()
    wide[0] = 1e6
    mixed = dataclasses.replace(cert, per_box=wide, bound=1e6)
    kept = int(cert.certified(ball["around"])[1:].sum())
    assert mixed.verdict.startswith(f"certifies {kept} of 5; the bound of the worst")


def test_keywords_are_checked(networks, ball):
    with pytest.raises(ArgumentError, match="Did you mean 'restarts'"):
        sc.certify(*networks, **ball, restart=0)
    assert set(CertifyOptions.__annotations__) == {
        f.name for f in dataclasses.fields(CertifySettings)
    }
    parameters = inspect.signature(sc.certify).parameters
    assert len(parameters) <= 12


def test_the_output_that_was_certified_is_proved_again():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 2)

        def forward(self, x):
            return self.a(x), self.b(x)

    dense = Two().eval()
    sparse = copy.deepcopy(dense)
    sparse.b.weight.data[0] = 0
    where = {"around": torch.zeros(1, 3), "radius": 1.0, "methods": "interval"}
    kept = sc.certify(dense, sparse, output=1, **where).to_json()
    result = recheck(kept, dense, sparse)
    assert result.holds and result.bound > 0.01
    assert result.open == ("what was asked for: output=1",)
    first = recheck(kept.replace('"output": 1', '"output": 0'), dense, sparse)
    assert not first.holds


def test_weights_that_no_graph_reads_are_compared():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.a(x)

    dense = Idle().eval()
    sparse = copy.deepcopy(dense)
    kept = sc.certify(dense, sparse, around=torch.zeros(1, 3), radius=1.0).to_json()
    sparse.idle.weight.data[0] = 0
    assert recheck(kept, dense, sparse).problems == (
        "weights of the sparse network that its graph does not read differ",
    )
