"""A second opinion on a certificate: proves again, with numpy alone, that two networks differ by no
more than a file claims. It shares no code with the library that wrote the file.

    python second_opinion.py NAME.proof.json FIRST.safetensors SECOND.safetensors

Both weight files are read as they are: safetensors, or sparse files of secateurs. The proof names
the layers by their tensors, the boxes, and for every ReLU whose sign is open the slopes of the
planes between which it lies. Nothing in it is believed: slopes may be anything, because the offset
with which a plane holds is computed here, from ranges that are computed here. Dense layers,
convolutions, batch norms, averages, shifts, sums and ReLUs are known, all else is refused.

With z a value of f, g the same one of the other network and d = z − g, each layer gives ranges of
all three, and each pass towards the input a linear function above one of them. What rounding can
add to a sum is bounded by the sum of the absolute values in it, and added.
"""

import base64
import hashlib
import itertools
import json
import math
import sys
import time
import zlib
from collections import defaultdict
from pathlib import Path

import numpy as np

U = 2.0**-53  # the relative error of one operation
SUM = 1e-10  # more than that of a sum of up to 200,000 products, forward and back
SLOP, TINY = 1 + 1e-8, 1e-290  # for sums of what is not negative; for underflow
MOST, CELLS = 2**28, 2**22  # entries of the largest array believed; of one pass
TERMS = {"f": [(0, "f")], "g": [(1, "g")], "d": [(1, "d"), (2, "f")]}  # W z − V g = V d + (W − V) z


class Refused(Exception):
    """The file is not a proof of what it claims, and why."""


def need(fact, why):
    if not fact:
        raise Refused(why)


# Weight files: safetensors, and the sparse file (docs/format.md).

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8"}
WORDS = (
    b'num_batches_tracked","I64",[],.running_var.running_mean","F16{"streams":[],"lines":,"ties":0,'
)
WORDS += b'"digests":"-2]-1].bias","F32",[.weight","F32",['


def tensor(raw, kind, shape):
    need(kind in TYPES, f"a tensor of dtype {kind} is not known here")
    found = raw.view(TYPES[kind]).reshape(shape)
    return (found.astype("<u4") << 16).view("<f4") if kind == "BF16" else found


def rounded(tensors):
    """Single precision as the nearest in bfloat16, ties to even."""
    bits = {name: values.astype("<f4").view("<u4") for name, values in tensors.items()}
    return {k: ((b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000).view("<f4") for k, b in bits.items()}


def read_weights(path):
    data = np.fromfile(path, "u1")
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:start].tobytes())
    if "secateurs.sparse/3" in header:
        whole = hashlib.sha256(data[start + 32 :].tobytes()).digest()
        need(whole == data[start : start + 32].tobytes(), f"{path} is damaged")
        return read_sparse(data[start + 32 :].tobytes())
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = (start + offset for offset in entry["data_offsets"])
            found[name] = tensor(data[first:last].copy(), entry["dtype"], entry["shape"])
    return found


def read_sparse(data):
    unpacker = zlib.decompressobj(-15, zdict=WORDS)
    counts, *lines = map(json.loads, unpacker.decompress(data).decode().split("\n"))
    streams = np.split(np.frombuffer(unpacker.unused_data, "u1"), np.cumsum(counts["streams"]))
    bits = [np.unpackbits(stream, bitorder="little") for stream in streams[:3]]
    tops = np.frombuffer(zlib.decompress(streams[3].tobytes(), -15), "u1")
    left = [bits[0], np.diff(np.flatnonzero(bits[1]), prepend=-1) - 1, bits[2], tops, streams[4]]

    def take(which, count):
        taken, left[which] = np.split(left[which], [count])
        return taken

    found = {}
    for name, dtype, shape, kept, k, *more in lines[: counts["lines"]]:
        grid, stored = (*more, [], "")[:2]
        kind, size, rows = stored or dtype, math.prod(shape), (*shape, 1)[0] or 1
        need(kind in TYPES and size <= MOST, f"{name}: {size} numbers of dtype {kind}")
        width = np.dtype(TYPES[kind]).itemsize
        live = [np.flatnonzero(take(0, n)) if grid else np.arange(n) for n in (rows, size // rows)]
        where = np.add.outer(live[0] * (size // rows), live[1]).ravel()
        if k == -1:
            where = where[take(0, len(where)) == 1]
        if k >= 0:
            gaps = (take(1, kept) << k) + take(2, kept * k).reshape(kept, k) @ (1 << np.arange(k))
            where = where[np.cumsum(gaps + 1) - 1]
        planes = [*take(4, kept * (width - 1)).reshape(width - 1, kept), take(3, kept)]
        words = np.stack(planes, axis=1).view(f"<u{width}")[:, 0]
        dense = np.zeros(size, f"<u{width}")
        dense[where] = words if kind == "I64" else words >> 1 | words << 8 * width - 1
        found[name] = tensor(dense, kind, shape)
    for other, first in lines[counts["lines"] : counts["lines"] + counts["ties"]]:
        found[other] = found[first]
    return found


# Layers: one linear map with the numbers of f, of g, and their difference.

KEYS = {"input": "shape", "dense": "weight bias", "conv": "weight bias stride padding"}
KEYS |= {"norm": "weight bias mean var eps", "shift": "bias", "average": "kernel"}
KEYS |= {"relu": "", "flatten": "", "sum": ""}


class Layer:
    """Weights and biases, their sizes, and how much rounding adds to a product with each: SUM of
    its size and, where a weight was computed (`unsure`), its own error.
    """

    def __init__(self, op, shape, first, second):
        self.op, self.shape = op, shape
        (w, b, ew, eb), (v, c, ev, ec) = (self.read(named(tensors)) for tensors in (first, second))
        need(w.shape == v.shape and b.shape == c.shape, f"{op}: the networks have other shapes")
        # What is computed alike from equal numbers is one number, whatever its error.
        names = [op[key] for key in ("weight", "bias", "mean", "var") if op.get(key)]
        same = all(np.array_equal(first[name], second[name]) for name in names)
        self.weights, self.biases = [w, v, w - v], {"f": b, "g": c, "d": b - c}
        unsure = ew, ev, 0 * ew if same else ew + ev + U * abs(w - v)
        self.sizes = [abs(x) for x in self.weights]
        self.slack = [SUM * x + e for x, e in zip(self.sizes, unsure)]
        self.slips = {"f": eb, "g": ec, "d": 0 * eb if same else eb + ec + U * abs(b - c)}
        self.result = self.apply(w, np.zeros((1, *shape))).shape[1:]

    def read(self, get):
        """Weight, bias, and the errors of both."""
        op, none = self.op, np.zeros(())
        if op["op"] == "average":
            need(all(n % k == 0 for n, k in zip(self.shape[1:], op["kernel"])), f"{op}: a rest")
            return np.array(1 / math.prod(op["kernel"])), none, np.array(U), none
        b = get(op["bias"]) if op["bias"] else none
        if op["op"] == "shift":
            return np.ones(()), b.reshape(self.shape), none, none
        if op["op"] == "norm":
            mean, var = get(op["mean"]), get(op["var"])
            need((var >= 0).all() and op["eps"] > 0, f"{op}: no variance")
            w = (get(op["weight"]) if op["weight"] else 1.0) / np.sqrt(var + op["eps"])
            b, eb = b - w * mean, 16 * U * (abs(b) + abs(w * mean))
            return [x.reshape(self.shape[0], 1, 1) for x in (w, b, 16 * U * abs(w), eb)]
        w = get(op["weight"])
        w = w.reshape(*w.shape, 1, 1) if op["op"] == "dense" else w
        need(w.ndim == 4 and w.shape[1] == self.shape[0], f"{op}: a weight of shape {w.shape}")
        need(op["op"] == "conv" or self.shape[1:] == (1, 1), f"{op}: its input is not flat")
        return w, (b + np.zeros(len(w))).reshape(-1, 1, 1), 0 * w, none

    def apply(self, w, x):
        n, c, height, width = x.shape
        if w.ndim < 4 and "kernel" not in self.op:
            return w * x
        if w.ndim < 4:
            a, b = self.op["kernel"]
            return w * x.reshape(n, c, height // a, a, width // b, b).sum((3, 5))
        x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in self.op.get("padding", (0, 0)))])
        total = (np.tensordot(w[:, :, i, j], x[:, :, p, q], (1, 1)) for i, j, p, q in self.taps(w))
        return sum(total).swapaxes(0, 1)

    def back(self, w, y):
        """The transposed map."""
        if w.ndim < 4:
            a, b = self.op.get("kernel", (1, 1))
            return w * y.repeat(a, axis=2).repeat(b, axis=3)
        (top, left), (_, height, width) = self.op.get("padding", (0, 0)), self.shape
        x = np.zeros((len(y), self.shape[0], height + 2 * top, width + 2 * left))
        for i, j, p, q in self.taps(w):
            x[:, :, p, q] += np.tensordot(w[:, :, i, j], y, (0, 1)).swapaxes(0, 1)
        return x[:, :, top : top + height, left : left + width]

    def taps(self, w):
        """Each entry of a kernel, and the rows and columns that it meets."""
        step, pad = self.op.get("stride", (1, 1)), self.op.get("padding", (0, 0))
        last = [self.shape[k + 1] + 2 * pad[k] - w.shape[k + 2] for k in (0, 1)]
        need(min(last) >= 0, f"{self.op}: no result")
        for i, j in np.ndindex(*w.shape[2:]):
            yield i, j, slice(i, i + last[0] + 1, step[0]), slice(j, j + last[1] + 1, step[1])


def named(tensors):
    def get(name):
        need(name in tensors, f"there is no tensor {name!r}")
        found = tensors[name].astype(np.float64)
        need(np.isfinite(found).all(), f"{name} is not finite")
        return found

    return get


def read_network(listed, first, second):
    """(kind, nodes before it, its layer or None, its shape) of each node."""
    nodes = []
    for place, op in enumerate(listed):
        kind, before = op.get("op"), op.get("from")
        need(kind in KEYS, f"layer {place}: {kind!r} is not known here")
        need(set(op) == {"op", "from", *KEYS[kind].split()}, f"layer {place}: keys of no {kind}")
        need((place == 0) == (kind == "input"), f"layer {place}: one input, at the beginning")
        need(len(before) == {"input": 0, "sum": 2}.get(kind, 1), f"layer {place}: its inputs")
        need(all(0 <= each < place for each in before), f"layer {place} reads what follows it")
        shapes = [nodes[each][3] for each in before]
        layer, shape = None, shapes[0] if shapes else (*op["shape"], 1, 1)[:3]
        if kind in ("dense", "conv", "norm", "average", "shift"):
            layer = Layer(op, shape, first, second)
            shape = layer.result
        if kind == "flatten":
            shape = (math.prod(shape), 1, 1)
        need(len(set(shapes)) < 2, f"layer {place}: a sum of other shapes")
        need(0 < math.prod(shape) <= 200_000, f"layer {place}: {shape} is too large")
        nodes.append((kind, before, layer, shape))
    return nodes


# Ranges of z, g and d = z − g, as (6, boxes, …): low and high of each.


def outward(low, high):
    return np.nextafter(low, -np.inf), np.nextafter(high, np.inf)


def centred(low, high):
    """Centre and radius of a range, and more than its largest size."""
    centre = low / 2 + high / 2
    radius = np.maximum(high - centre, centre - low) * SLOP + TINY
    return centre, radius, abs(centre) + radius


def met(ends):
    """The ranges, each narrowed by the two others."""
    l, h, gl, gh, dl, dh = ends
    lows = zip((l, gl, dl), (gl + dl, l - dh, l - gh))
    highs = zip((h, gh, dh), (gh + dh, h - dl, h - gl))
    lows = [np.maximum(a, np.nextafter(b, -np.inf)) for a, b in lows]
    highs = [np.minimum(a, np.nextafter(b, np.inf)) for a, b in highs]
    return np.stack([end for pair in zip(lows, highs) for end in pair])


def through_layer(layer, ends):
    """The ranges behind it, and what rounding can add to each of f, g and d."""
    seen = {which: centred(*ends[k : k + 2]) for which, k in zip("fgd", (0, 2, 4))}
    out, lost = [], {}
    for which, terms in TERMS.items():
        bias, x = layer.biases[which], [(k, seen[source]) for k, source in terms]
        centre = bias + sum(layer.apply(layer.weights[k], part[0]) for k, part in x)
        radius = sum(layer.apply(layer.sizes[k], part[1]) for k, part in x)
        error = sum(layer.apply(layer.slack[k], part[2]) for k, part in x)
        lost[which] = (error + layer.slips[which] + SUM * abs(bias)) * SLOP + TINY
        out += outward(
            centre - (radius + lost[which]) * SLOP, centre + (radius + lost[which]) * SLOP
        )
    return met(np.stack(out)), lost


def offsets(ends, above, below):
    """How far planes p·z + q·d must be moved to lie above and below relu(z) − relu(g). That is
    linear between the lines z = 0 and g = 0, so its extremes lie where two of these lines and the
    ends of the ranges cross.
    """
    l, h, gl, gh, dl, dh = ends
    tip, zero = 64 * U * abs(ends).sum(0), np.zeros_like(l)
    points = [(z, d) for z in (l, h, zero) for d in (dl, dh)]
    points += [(z, z - g) for z in (l, h, zero) for g in (gl, gh, zero)]
    points += [(g + d, d) for g in (gl, gh, zero) for d in (dl, dh)]
    high, low = np.full_like(l, -np.inf), np.full_like(l, np.inf)
    for z, d in points:
        outside = [z < l - tip, z > h + tip, d < dl - tip, d > dh + tip]
        outside = np.any([*outside, z - d < gl - tip, z - d > gh + tip], axis=0)
        change = np.maximum(z, 0) - np.maximum(z - d, 0)
        up, down = (change - p * z - q * d for p, q in (above, below))
        high = np.maximum(high, np.where(outside, -np.inf, up))
        low = np.minimum(low, np.where(outside, np.inf, down))
    empty = high == -np.inf  # ranges that do not meet hold no input
    return np.where(empty, 0, high + 16 * tip), np.where(empty, 0, low - 16 * tip)


def planes(ends, given):
    """Around relu(z), relu(g) and their difference: slopes above and below with what they multiply,
    and the offsets. Open neurons without slopes in the proof get usual ones.
    """
    l, h, gl, gh, dl, dh = ends
    none, width = np.zeros_like(l), np.maximum(dh - dl, TINY)
    # The chords of max(d, 0) and min(d, 0).
    up, down = np.clip(dh / width, 0, 1), np.clip(-dl / width, 0, 1)
    slopes = [(h > -l) * 1.0, (gh > -gl) * 1.0, 0 * l, up, 0 * l, down]
    for row, values in zip(slopes, given[1].T):
        row[given[0]] = values
    found = {}
    for which, low, high, below in (("f", l, h, slopes[0]), ("g", gl, gh, slopes[1])):
        # The chord above; where the sign is settled, the neuron itself, or 0.
        above = np.clip(high / np.maximum(high - low, TINY), 0, 1)
        below = np.where(low >= 0, 1.0, np.where(high <= 0, 0.0, below))
        alone = np.stack([low, high, none, none, low, high])  # as a difference from 0
        found[which] = [(which, above, below)], offsets(alone, (above, none), (below, none))
    on, off = (l >= 0) & (gl >= 0), (h <= 0) & (gh <= 0)
    pu, qu, pl, ql = (np.where(on | off, 0.0, s) for s in slopes[2:])
    qu, ql = qu + on, ql + on
    moved = [np.where(on | off, 0.0, c) for c in offsets(ends, (pu, qu), (pl, ql))]
    return {**found, "d": ([("f", pu, pl), ("d", qu, ql)], moved)}


def dot(rows, vector):
    """(boxes, rows, …) times (boxes, …)."""
    flat = rows.reshape(*rows.shape[:2], -1)
    return (flat @ vector.reshape(len(vector), -1, 1))[..., 0]


class Boxes:
    """Some boxes, and what is proven of every node on them."""

    def __init__(self, nodes, low, high, given):
        self.nodes, self.ends, self.lost, self.planes = nodes, [], {}, {}
        for place, (kind, before, layer, shape) in enumerate(nodes):
            if kind == "input":
                ends = np.stack([low, high, low, high, 0 * low, 0 * low]).reshape(6, -1, *shape)
            elif layer is not None:
                ends, self.lost[place] = through_layer(layer, self.ends[before[0]])
            elif kind == "relu":
                seen = self.ends[before[0]]
                if place in given:
                    # In front of the first ReLU a pass finds nothing new; a neuron that is off in
                    # both networks is 0, whatever its range.
                    if self.planes:
                        alive = (seen[1] > 0) | (seen[3] > 0)
                        seen = self.tightened(before[0], seen, alive)
                    self.ends[before[0]] = seen
                    self.planes[place] = planes(seen, given[place])
                none = np.zeros_like(seen[0])
                change = offsets(seen, (none, none), (none, none))
                ends = met(np.stack([*np.maximum(seen[:4], 0), change[1], change[0]]))
            elif kind == "sum":
                ends = self.ends[before[0]] + self.ends[before[1]]
                ends = met(np.stack(outward(ends[::2], ends[1::2]), axis=1).reshape(ends.shape))
            else:
                ends = self.ends[before[0]].reshape(6, -1, *shape)
            self.ends.append(ends)
        if given:
            ends = self.tightened(place, ends, np.ones(ends.shape[1:], bool))
        self.per_output = abs(ends[4:]).max(0).reshape(len(low), -1)

    def tightened(self, place, ends, which):
        """The ranges after passes from some entries of a node."""
        flat, which = ends.reshape(6, ends.shape[1], -1).copy(), which.reshape(ends.shape[1], -1)
        index = np.argsort(~which, axis=1, kind="stable")[:, : which.sum(1).max(initial=0)]
        cells = 2 * index.size * max(math.prod(shape) for *_, shape in self.nodes)
        for some in np.array_split(index, 1 + cells // CELLS, axis=1):
            new = np.take_along_axis(flat, some[None].repeat(6, 0), axis=2)
            for k, kind in enumerate("fgd"):
                high, low = self.highest(place, some, kind)
                new[2 * k] = np.maximum(new[2 * k], -low)
                new[2 * k + 1] = np.minimum(new[2 * k + 1], high)
            np.put_along_axis(flat, some[None].repeat(6, 0), met(new), axis=2)
        return flat.reshape(ends.shape)

    def highest(self, place, index, kind):
        """Bounds from above of these entries, and of minus them, by one pass to the input."""
        boxes, rows = index.shape
        unit = np.zeros((boxes, rows, math.prod(self.nodes[place][3])))
        np.put_along_axis(unit, index[..., None], 1.0, axis=2)
        unit = np.concatenate([unit, -unit], axis=1).reshape(boxes, 2 * rows, *self.nodes[place][3])
        total, lost, waiting = 0.0, 0.0, defaultdict(dict)
        waiting[place][kind] = unit
        for at in sorted(range(place + 1), reverse=True):
            toward, (name, before, layer, shape) = waiting.pop(at, {}), self.nodes[at]
            for which, c in toward.items():
                most = abs(self.ends[at]).sum(0)
                lost = lost + 64 * U * dot(abs(c), most)  # what was added up on the way to here
                up, down = np.maximum(c, 0), np.minimum(c, 0)
                if layer is not None:
                    bias = layer.biases[which] + np.zeros((boxes, *shape))
                    total, lost = total + dot(c, bias), lost + dot(abs(c), self.lost[at][which])
                    rows = c.reshape(-1, *shape)
                    new = [(goes, layer.back(layer.weights[k], rows)) for k, goes in TERMS[which]]
                elif name == "relu":
                    around, (high, low) = self.planes[at][which]
                    total = total + dot(up, high) + dot(down, low)
                    lost = lost + SUM * (dot(up, abs(high)) - dot(down, abs(low)))
                    lost = lost + 64 * U * dot(abs(c), abs(self.ends[before[0]]).sum(0))
                    new = [(k, up * a[:, None] + down * b[:, None]) for k, a, b in around]
                elif name == "input":
                    new = []
                    if which != "d":  # of both networks the input is the same
                        centre, radius, size = centred(*self.ends[0][:2])
                        total = total + dot(c, centre) + dot(abs(c), radius)
                        lost = lost + SUM * dot(abs(c), size + radius)
                else:
                    new = [(which, c)]
                lost = lost + 8 * U * abs(total)
                for each, (goes, part) in itertools.product(before, new):
                    part = part.reshape(boxes, -1, *self.nodes[each][3])
                    waiting[each][goes] = waiting[each].get(goes, 0.0) + part
        return np.split(np.nextafter(total + lost * SLOP + TINY, np.inf), 2, axis=1)


# The file.


def array(entry, kind):
    need(set(entry) == {"shape", "zlib"} and math.prod(entry["shape"]) <= MOST, "an array")
    count = math.prod(entry["shape"]) * np.dtype(kind).itemsize
    raw = zlib.decompressobj().decompress(base64.b64decode(entry["zlib"], validate=True), count + 1)
    need(len(raw) == count, "an array of another length than its shape")
    return np.frombuffer(raw, kind).reshape(entry["shape"])


def leaves(low, high, cuts):
    """The parts of the boxes: depth first, 0 for a part, i + 1 for a cut along input i."""
    left = list(cuts)[::-1]
    for box in zip(low, high):
        waiting = [box]
        while waiting:
            (lo, hi), cut = waiting.pop(), left.pop()
            if cut == 0:
                yield lo, hi
                continue
            below, above = hi.copy(), lo.copy()
            below[cut - 1] = above[cut - 1] = lo[cut - 1] / 2 + hi[cut - 1] / 2
            waiting += [(above, hi), (lo, below)]
    need(not left, "cuts that belong to no box")


def check(proof, first, second):
    """What is proven of |f − g|, per output, with the numbers of boxes and parts."""
    kept = {key: value for key, value in proof.items() if key != "sha256"}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()
    need(proof["sha256"] == hashlib.sha256(text).hexdigest(), "it was changed after it was written")
    keys = {"format", "claim", "bound", "rounded", "layers", "boxes", "slopes", "example"}
    need(set(kept) == keys and kept["format"] == "secateurs proof 1", "not a 'secateurs proof 1'")
    need(kept["rounded"] in ([], ["first"], ["second"]), "'rounded' names no network")
    first = rounded(first) if "first" in kept["rounded"] else first
    second = rounded(second) if "second" in kept["rounded"] else second
    nodes = read_network(kept["layers"], first, second)
    outputs = math.prod(nodes[-1][3])
    claimed = np.array(kept["bound"], dtype=np.float64)
    need(claimed.shape == (outputs,) and np.isfinite(claimed).all(), "not one bound per output")
    x, *answers = (np.array(kept["example"][k]) for k in ("x", "first", "second"))
    low, high = (array(kept["boxes"][k], "<f8").reshape(-1, x.size) for k in ("low", "high"))
    need(len(low) and low.shape == high.shape and (low <= high).all(), "boxes without inputs")
    need((low[0] <= x).all() and (x <= high[0]).all(), "an example beside the first box")
    ends = Boxes(nodes, x[None], x[None], {}).ends[-1].reshape(6, outputs)
    for k, answer in zip((0, 2), answers):
        far = abs(answer - ends[k : k + 2]).max()  # of both ends: a wide range shows nothing
        need(far <= 1e-3 * (1 + abs(ends[k]).max()), "another network")
    parts = list(leaves(low, high, array(kept["boxes"]["cuts"], "<u4").tolist()))
    given = {}
    for entry in kept["slopes"]:
        kind, _, _, shape = nodes[entry["layer"]]
        bits = np.unpackbits(array(entry["open"], "<u1"), axis=1, count=math.prod(shape))
        values = array(entry["values"], "<f4").astype(np.float64)
        need(kind == "relu" and len(bits) == len(parts), "slopes of no ReLU, or of other parts")
        need((abs(values) <= 1).all() and (values[:, :2] >= 0).all(), "a slope beyond 1")
        need(len(values) == bits.sum(), "more slopes than open neurons, or fewer")
        ends = np.cumsum(bits.sum(1, dtype=int))[:-1]
        given[entry["layer"]] = bits.reshape(-1, *shape).astype(bool), np.split(values, ends)
    relus = {place for place, node in enumerate(nodes) if node[0] == "relu"}
    need(not given or set(given) == relus, "slopes of some ReLUs, but not of all")
    worst = np.zeros(outputs)
    size = max(1, CELLS // (64 * max(math.prod(shape) for *_, shape in nodes)))
    for start in range(0, len(parts), size):
        some = slice(start, start + size)
        here = {at: (bits[some], np.concatenate(rows[some])) for at, (bits, rows) in given.items()}
        ends = (np.stack(end) for end in zip(*parts[some]))
        found = Boxes(nodes, *ends, here).per_output.max(0)
        worst = np.maximum(worst, np.where(np.isnan(found), np.inf, found))
    need((worst <= claimed).all(), f"proven is {worst.max():.6g}, claimed {claimed.max():.6g}")
    return worst, len(low), len(parts)


def main(paths):
    if len(paths) != 3:
        print(__doc__)
        return 2
    begin = time.monotonic()
    try:
        proof = json.loads(Path(paths[0]).read_text(encoding="utf-8"))
        worst, boxes, parts = check(proof, *map(read_weights, paths[1:]))
    except Refused as why:
        print(f"refused: {why}")
        return 1
    except Exception as error:  # whatever a made-up file leads to is no proof
        print(f"refused: it cannot be read ({type(error).__name__}: {error})")
        return 1
    print(
        f"holds: |f - g| <= {max(proof['bound']):.6g} in every output on {boxes} boxes. Proven "
        f"again in {time.monotonic() - begin:.1f} s, {parts} parts: {worst.max():.6g}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
