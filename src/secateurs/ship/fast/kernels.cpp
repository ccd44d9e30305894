// The program of a sparse network: a list of operations on flat planes, run image group by image group.
//
// A value is `channels` planes; a plane holds G images side by side, each `height` rows of `width` numbers without gaps,
// and fills whole vectors. A convolution copies its input into planes that need no border checks ("copies", see Conv),
// then every output vector is a sum of (one input vector) x (one weight): one offset and one value per non-zero.
// No torch, no library but the standard one. Vectors are the compiler's own (GCC and clang), of the widest kind that
// the flags allow; elsewhere a vector is one number.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace {

// Loops over sums that have to stay in registers: rolled up they would go through memory.
#if defined(__GNUC__) && !defined(__clang__)
#define UNROLLED _Pragma("GCC unroll 16")
#elif defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif

#if defined(SECATEURS_SCALAR) || !(defined(__GNUC__) || defined(__clang__))
constexpr int BYTES = 0;
#elif defined(__AVX512F__)
constexpr int BYTES = 64;
#elif defined(__AVX__)
constexpr int BYTES = 32;
#else
constexpr int BYTES = 16;  // SSE2, NEON and what else a compiler maps sixteen bytes to
#endif
constexpr int LINE = 64;  // bytes to which planes are padded, whatever the vectors are

template <class R>
struct Kind;
template <>
struct Kind<float> {
    using Whole = int32_t;
};
template <>
struct Kind<double> {
    using Whole = int64_t;
};

#if defined(SECATEURS_SCALAR) || !(defined(__GNUC__) || defined(__clang__))
template <class R>
struct Lanes {
    using Vector = R;
    using Loose = R;
    static constexpr int count = 1;
};
#else
template <class R>
struct Lanes;
template <>
struct Lanes<float> {
    typedef float Vector __attribute__((vector_size(BYTES)));
    typedef float Loose __attribute__((vector_size(BYTES), aligned(4), may_alias));
    static constexpr int count = BYTES / 4;
};
template <>
struct Lanes<double> {
    typedef double Vector __attribute__((vector_size(BYTES)));
    typedef double Loose __attribute__((vector_size(BYTES), aligned(8), may_alias));
    static constexpr int count = BYTES / 8;
};
#endif

template <class R>
using Vec = typename Lanes<R>::Vector;

template <class R>
inline Vec<R> load(const R* from) {
    return *reinterpret_cast<const typename Lanes<R>::Loose*>(from);
}

template <class R>
inline void store(R* to, Vec<R> x) {
    *reinterpret_cast<typename Lanes<R>::Loose*>(to) = x;
}

// Weights of the next layer are in the third cache or in memory: they are asked for some hundred cycles early (512 × 512
// weights at 14 × 14: 0.60 ms without, 0.50 ms with it; a dense ResNet-18 at 224 × 224: 18.7 and 15.6 ms). Lists of single
// weights gain nothing by it.
inline void ahead(const void* w) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(static_cast<const char*>(w) + 2048);
#endif
}

// Numbers 0, 2, 4.. and 1, 3, 5.. of two vectors that stand one after another; and the way back.
#if defined(__has_builtin) && !defined(SECATEURS_SCALAR)
#if __has_builtin(__builtin_shufflevector)
#define SECATEURS_SHUFFLE
#endif
#endif
#ifdef SECATEURS_SHUFFLE
template <class V, int... I>
inline V every_second(V a, V b, int, std::integer_sequence<int, I...>, std::integral_constant<int, 0>) {
    return __builtin_shufflevector(a, b, (2 * I)...);
}
template <class V, int... I>
inline V every_second(V a, V b, int, std::integer_sequence<int, I...>, std::integral_constant<int, 1>) {
    return __builtin_shufflevector(a, b, (2 * I + 1)...);
}
template <class R, int ODD>
inline Vec<R> half(Vec<R> a, Vec<R> b) {
    constexpr int n = Lanes<R>::count;
    return every_second(a, b, n, std::make_integer_sequence<int, n>(), std::integral_constant<int, ODD>());
}
template <class V, int N, int FROM, int... I>
inline V zipped_part(V a, V b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, ((FROM + I) / 2 + (FROM + I) % 2 * N)...);
}
template <class R, int SECOND>
inline Vec<R> zipped(Vec<R> a, Vec<R> b) {
    constexpr int n = Lanes<R>::count;
    return zipped_part<Vec<R>, n, SECOND * n>(a, b, std::make_integer_sequence<int, n>());
}
#else
template <class R, int ODD>
inline Vec<R> half(Vec<R> a, Vec<R> b) {
    constexpr int n = Lanes<R>::count;
    R both[2 * n], picked[n];
    store(both, a), store(both + n, b);
    for (int i = 0; i < n; ++i) picked[i] = both[2 * i + ODD];
    return load(picked);
}
template <class R, int SECOND>
inline Vec<R> zipped(Vec<R> a, Vec<R> b) {
    constexpr int n = Lanes<R>::count;
    R one[n], two[n], mixed[2 * n];
    store(one, a), store(two, b);
    for (int i = 0; i < n; ++i) mixed[2 * i] = one[i], mixed[2 * i + 1] = two[i];
    return load(mixed + SECOND * n);
}
#endif

// ---- what Python describes; compiled.py has the same structures ------------------------------------------------------

struct Place {  // where a value stands in the arena, in numbers
    int64_t at, channels, height, width, stride;
};

struct Shape {  // y = max(x, 0) + slope min(x, 0), at most cap
    double slope, cap;
    int64_t on;
    const void* slopes;  // per channel; null: one slope for all
};

struct Load {
    Place to;
    int64_t input, count;
    const int32_t* channels;  // those that anybody reads
};

struct Store {
    Place from;
    int64_t output;
};

struct Conv {
    Place from, to, add;  // add.channels == 0: nothing is added
    Shape shape;
    // The copies: for channel c and copy j a plane of `rows` rows (of every image) of `width` numbers, element (r, q) =
    // from[c][r * step_y + y0[j]][q * step_x + x0[j]], zero outside. Only the rows that a tile reads exist, and only for
    // the channels of one turn: `plane` numbers for each, at arena[scratch]. direct: `from` itself is read.
    int64_t direct, copies, rows, width, step_y, step_x, deepest, plane, scratch;
    const int64_t *y0, *x0;
    const int64_t *begin, *stop;  // per copy: the numbers of a row that come from inside
    const uint8_t* needed;    // [channels][copies]
    const uint8_t* edges;     // [copies][rows * width of all images], 0xff inside: a copy is the whole plane shifted;
                              // else null
    // The sums: `spans` pieces of `length` numbers; span s is image s where there are several.
    int64_t spans, length;
    int64_t out_height, out_width;
    int64_t tile, block, blocks;  // tile 0: one output position, dot products; tile -1: the same, dense
    int64_t parts, sums;          // input channels in so many turns: one turn's numbers stay in the nearest cache
                                  // (sums between turns stand at arena[sums])
    const int64_t* turns;         // [parts + 1] channels
    int64_t listed;               // for dot products: the output channels that anybody reads
    const int32_t* read;
    const int64_t* starts;        // [parts][blocks + 1] into the entries
    const void* entries;
    const void* bias;
};

// A dense 3x3 convolution of stride 1 by Winograd's F(2x2, 3x3): tiles of 2x2 outputs cost 16 products instead of 36.
struct Winograd {
    Place from, to, add;
    Shape shape;
    int64_t above, left;          // zeros of the padding
    int64_t tall, wide;           // tiles of an image
    int64_t rows, stride;         // rows of tiles at a time, over all images; numbers from channel to channel meanwhile
    int64_t tile, block, blocks;  // vectors and output channels at once
    int64_t inputs, sums, result; // in the arena: transformed inputs, products of a block, finished rows
    const void *weights, *bias;   // weights: [blocks][16][channels][block]
};

// A convolution whose outputs read few input channels each (depthwise, groups): the input is read where it stands.
struct Near {
    Place from, to, add;
    Shape shape;
    int64_t step_y, step_x;
    int64_t inner, end;           // output rows of which all taps are inside, from `inner` to before `end`
    int64_t columns;              // shifts of a row that taps have
    const int64_t* shifts;
    int64_t inputs, outputs;      // channels of a group
    int64_t tile;                 // rows at once, at most
    int64_t block;                // weights of a tap
    const int64_t* starts;        // [channels + 1] into the taps
    const void *taps, *bias;
};

// A dense convolution of one pixel: a matrix of weights times the planes.
struct Matrix {
    Place from, to, add;
    Shape shape;
    int64_t tile, block, blocks;  // vectors and output channels at once
    int64_t deep;                 // input channels of a turn: what a tile reads of them stays in the nearest cache
    int64_t together;             // blocks of a turn whose weights stay in the second cache
    int64_t panel;                // in the arena: a tile of the input, vector after vector
    const void *weights, *bias;   // weights: of every turn [blocks][deep][block]
};

struct Scale {
    Place from, to;
    Shape shape;
    const void *scale, *shift;  // per channel; null: none
};

struct Add {
    Place a, b, to;
    Shape shape;
    double sign;
};

struct Pool {
    Place from, to;
    int64_t maximum;
    const int32_t *rows, *columns;  // (first, end, step) per output row and column
    const void* factor;             // per output position
};

struct Gather {
    Place from, to;
    const int64_t* index;  // per output number the input number, both within an image; -1 is zero
    int64_t planes;        // index is per channel: whole planes are copied
};

struct Cat {
    Place from, to;
    int64_t channel;
};

enum Name { LOAD, STORE, CONV, SCALE, ADD, POOL, GATHER, CAT, WINOGRAD, NEAR, MATRIX };

struct Op {
    int64_t name;
    const void* body;
};

struct Call {  // what one group of images works on
    const void* const* inputs;
    void* const* outputs;
    int64_t first, group;
};

// What one thread does of an operation: the values of `arena`, its own notes in `notes`, and of the operation's units
// (output channels or blocks of them) those from `first` to before `end`.
template <class R>
struct Share {
    R *arena, *notes;
    int64_t first, end;
};

// ---- small pieces ----------------------------------------------------------------------------------------------------

template <class R>
inline Shape of_channel(Shape s, int64_t c) {
    if (s.slopes) s.slope = static_cast<const R*>(s.slopes)[c];
    return s;
}

template <class R>
void shape_row(R* x, int64_t n, const Shape& s) {
    if (!s.on) return;
    const R slope = R(s.slope), cap = R(s.cap);
    if (slope == 0)
        for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0 ? R(0) : x[i];
    else
        for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0 ? x[i] * slope : x[i];
    if (s.cap < std::numeric_limits<R>::max())
        for (int64_t i = 0; i < n; ++i) x[i] = x[i] > cap ? cap : x[i];
}

// The same for some vectors in registers, prepared once.
template <class R>
struct Shaped {
    explicit Shaped(const Shape& s)
        : on(s.on), slope(R(s.slope)), cap(R(std::min<double>(s.cap, std::numeric_limits<R>::max()))),
          slopes(static_cast<const R*>(s.slopes)) {}
    // From this channel on, and for this one alone.
    Shaped from(int64_t c) const {
        Shaped s = *this;
        if (slopes) s.slopes += c, s.slope = *s.slopes;
        return s;
    }
    template <int N>
    void operator()(Vec<R> (&x)[N]) const {
        if (!on) return;
        const Vec<R> none = {}, most = none + cap;
        if (slope == 0) {
            UNROLLED
            for (int i = 0; i < N; ++i) x[i] = x[i] < none ? none : x[i];
        } else {
            UNROLLED
            for (int i = 0; i < N; ++i) x[i] = x[i] < none ? x[i] * slope : x[i];
        }
        UNROLLED
        for (int i = 0; i < N; ++i) x[i] = x[i] > most ? most : x[i];
    }
    bool on;
    R slope, cap;
    const R* slopes;
};

inline int64_t pixels(const Place& p) { return p.height * p.width; }

// ---- convolution: the copies -----------------------------------------------------------------------------------------

// A whole plane shifted by `shift`, with what lies outside masked away: no row is touched by itself.
template <class R>
void shifted(const R* from, R* to, int64_t n, const uint8_t* edges) {
    using Whole = typename Kind<R>::Whole;
    for (int64_t i = 0; i < n; ++i) {
        Whole bits;
        std::memcpy(&bits, from + i, sizeof bits);
        bits &= -Whole(edges[i] & 1);
        std::memcpy(to + i, &bits, sizeof bits);
    }
}

// Whole vectors are stored, over the end of the row too: what comes after it is written later, and the scratch ends with
// room for one vector. Short rows of any length cost one load and one store this way.
template <class R>
void copy_row(const R* from, R* to, int64_t begin, int64_t stop, int64_t out, int64_t step) {
    constexpr int lanes = Lanes<R>::count;
    for (int64_t q = 0; q < begin; ++q) to[q] = 0;
    if (step == 1)
        for (int64_t q = begin; q < stop; q += lanes) store(to + q, load(from + q));
    else if (step == 2)
        for (int64_t q = begin; q < stop; q += lanes)
            store(to + q, half<R, 0>(load(from + 2 * q), load(from + 2 * q + lanes)));
    else
        for (int64_t q = begin; q < stop; ++q) to[q] = from[q * step];
    for (int64_t q = stop; q < out; ++q) to[q] = 0;
}

// Rows first..end of copy j of one channel; rows of all images are counted on.
template <class R>
void copy_rows(const Conv& op, const R* from, R* to, int64_t j, int64_t first, int64_t end, int64_t images) {
    const int64_t height = op.from.height, width = op.from.width, begin = op.begin[j], stop = op.stop[j];
    int64_t image = first / op.rows, r = first % op.rows;
    for (int64_t row = first; row < end; ++row, to += op.width) {
        const int64_t y = r * op.step_y + op.y0[j];
        if (y < 0 || y >= height || image >= images)
            std::fill_n(to, op.width, R(0));
        else
            copy_row(from + (image * height + y) * width + op.x0[j], to, begin, stop, op.width, op.step_x);
        if (++r == op.rows) r = 0, ++image;
    }
}

// What `n` positions from `first` on read of some channels. Returns where the first position stands.
template <class R>
const R* copied(const Conv& op, const R* from, R* to, int64_t part, int64_t first, int64_t n, int64_t images) {
    const int64_t top = first / op.width, total = op.rows * images;
    const int64_t end = (first + n - 1) / op.width + 1 + op.deepest, inside = std::min(end, total);
    R* y = to;
    for (int64_t c = op.turns[part]; c < op.turns[part + 1]; ++c)
        for (int64_t j = 0; j < op.copies; ++j, y += op.plane) {
            if (!op.needed[c * op.copies + j]) continue;
            const R* x = from + c * op.from.stride;
            if (op.edges)
                shifted(x + (top + op.y0[j]) * op.width + op.x0[j], y, (inside - top) * op.width,
                        op.edges + (j * total + top) * op.width);
            else
                copy_rows(op, x, y, j, top, end, images);
        }
    return to + (first - top * op.width);
}

// ---- convolution: the sums -------------------------------------------------------------------------------------------

template <class R, int B>
struct Entry {  // where the input vector stands, and its weights in B output channels
    typename Kind<R>::Whole offset;
    R value[B];
};

// T vectors of B output channels at once, added to what is there (more) or begun.
// Few sums at a time would wait for each other: then U partial sums each.
template <class R, int T, int B>
void sums(const R* from, const void* list, int64_t n, R* to, bool more) {
    constexpr int U = T * B >= 8 ? 1 : 8 / (T * B), lanes = Lanes<R>::count;
    const auto* e = static_cast<const Entry<R, B>*>(list);
    Vec<R> y[U][B][T] = {};
    if (more)
        for (int b = 0; b < B; ++b)
            for (int t = 0; t < T; ++t) y[0][b][t] = load(to + (b * T + t) * lanes);
    int64_t k = 0;
    for (; k + U <= n; k += U)
        for (int u = 0; u < U; ++u) {
            const R* x = from + e[k + u].offset;
            if (B > 1) ahead(e + k + u);
            for (int t = 0; t < T; ++t) {
                const Vec<R> lane = load(x + t * lanes);
                for (int b = 0; b < B; ++b) y[u][b][t] += lane * e[k + u].value[b];
            }
        }
    for (; k < n; ++k)
        for (int t = 0; t < T; ++t) {
            const Vec<R> lane = load(from + e[k].offset + t * lanes);
            for (int b = 0; b < B; ++b) y[0][b][t] += lane * e[k].value[b];
        }
    for (int b = 0; b < B; ++b)
        for (int t = 0; t < T; ++t) {
            for (int u = 1; u < U; ++u) y[0][b][t] += y[u][b][t];
            store(to + (b * T + t) * lanes, y[0][b][t]);
        }
}

constexpr int MOST = 24;  // vectors of sums at once: more would not stay in registers

template <class R>
using Sums = void (*)(const R*, const void*, int64_t, R*, bool);

#define ROW4(B, T) sums<R, T, B>, sums<R, T + 1, B>, sums<R, T + 2, B>, sums<R, T + 3, B>
template <class R>
Sums<R> kernel(int64_t tile, int64_t block) {  // null where there is none
    static const Sums<R> one[] = {ROW4(1, 1), ROW4(1, 5), ROW4(1, 9), ROW4(1, 13)};
    static const Sums<R> two[] = {ROW4(2, 1), ROW4(2, 5), ROW4(2, 9)};
    static const Sums<R> four[] = {ROW4(4, 1), sums<R, 5, 4>, sums<R, 6, 4>};
    static const Sums<R> eight[] = {sums<R, 1, 8>, sums<R, 2, 8>, sums<R, 3, 8>};
    static const Sums<R> sixteen[] = {sums<R, 1, 16>};
    if (tile < 1) return nullptr;
    if (block == 1 && tile <= 16) return one[tile - 1];
    if (block == 2 && tile <= 12) return two[tile - 1];
    if (block == 4 && tile <= 6) return four[tile - 1];
    if (block == 8 && tile <= 3) return eight[tile - 1];
    if (block == 16 && tile <= 1) return sixteen[tile - 1];
    return nullptr;
}

// Bias, what is added, activation; `n` finished sums of one channel, positions first.. of span s.
template <class R>
void finish_piece(const Shape& shape, R* y, const R* add, R bias, int64_t n, R* to) {
    if (add)
        for (int64_t i = 0; i < n; ++i) y[i] += bias + add[i];
    else
        for (int64_t i = 0; i < n; ++i) y[i] += bias;
    shape_row(y, n, shape);
    std::memcpy(to, y, n * sizeof(R));
}

template <class R>
void finish(const Conv& op, const Shape& shape, R* y, R* to, const R* add, R bias, int64_t first, int64_t n) {
    const bool whole = op.rows == op.out_height || op.length == op.out_height * op.out_width;
    if (op.width == op.out_width && whole)
        return finish_piece(shape, y, add ? add + first : nullptr, bias, n, to + first);
    int64_t row = first / op.width, column = first % op.width;
    const int64_t image = op.rows, wide = op.out_width;
    for (int64_t i = 0; i < n;) {  // rows of a flat plane: numbers past the end of an output row are dropped
        const int64_t rest = std::min(op.width - column, n - i), part = std::min(rest, wide - column);
        const int64_t g = row / image, r = row % image;
        if (part > 0 && r < op.out_height) {
            const int64_t at = (g * op.out_height + r) * wide + column;
            finish_piece(shape, y + i, add ? add + at : nullptr, bias, part, to + at);
        }
        i += rest, ++row, column = 0;
    }
}

// One tile of positions, a share of the output channels. In several turns over the input channels the sums wait in the arena.
template <class R, int B>
void conv_tile(const Conv& op, const Share<R>& share, int64_t group, int64_t span, int64_t first, int64_t tile) {
    constexpr int lanes = Lanes<R>::count;
    R* const arena = share.arena;
    alignas(LINE) R buffer[MOST * lanes];
    const Sums<R> run = kernel<R>(tile, B);
    const auto* bias = static_cast<const R*>(op.bias);
    const auto* entries = static_cast<const Entry<R, B>*>(op.entries);
    const int64_t image = span * op.out_height * op.out_width, size = tile * lanes, n = std::min(size, op.length - first);
    const R* const from = arena + op.from.at + span * pixels(op.from);
    for (int64_t part = 0; part < op.parts; ++part) {
        const int64_t* starts = op.starts + part * (op.blocks + 1);
        const R* x = from + first;
        if (!op.direct) x = copied(op, from, share.notes + op.scratch, part, first, n, op.spans > 1 ? 1 : group);
        for (int64_t o = share.first; o < share.end; ++o) {
            R* y = op.parts > 1 ? share.notes + op.sums + o * B * size : buffer;
            const int64_t count = starts[o + 1] - starts[o];
            if (count || !part) run(x, entries + starts[o], count, y, part > 0);
            if (part + 1 < op.parts) continue;
            for (int64_t b = 0; b < B && o * B + b < op.to.channels; ++b) {
                const int64_t c = o * B + b;
                const R* add = op.add.channels ? arena + op.add.at + c * op.add.stride + image : nullptr;
                finish(op, of_channel<R>(op.shape, c), y + b * size, arena + op.to.at + c * op.to.stride + image, add, bias[c],
                       first, n);
            }
        }
    }
}

template <class R, int B>
void conv_spans(const Conv& op, const Share<R>& share, int64_t group) {
    constexpr int lanes = Lanes<R>::count;
    // Features of fewer images than planned for: as many vectors as they fill.
    const int64_t length = op.direct && pixels(op.to) == 1 ? std::min(op.length, group) : op.length;
    const int64_t vectors = (length + lanes - 1) / lanes;
    for (int64_t s = 0; s < op.spans; ++s)
        for (int64_t v = 0; v < vectors; v += op.tile)
            conv_tile<R, B>(op, share, group, s, v * lanes, std::min(op.tile, vectors - v));
}

template <class R>
R dot(const R* a, const R* b, int64_t n) {
    constexpr int lanes = Lanes<R>::count;
    Vec<R> sum[4] = {};
    int64_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes)
        for (int u = 0; u < 4; ++u) sum[u] += load(a + i + u * lanes) * load(b + i + u * lanes);
    for (; i + lanes <= n; i += lanes) sum[0] += load(a + i) * load(b + i);
    alignas(LINE) R parts[lanes];
    store(parts, (sum[0] + sum[1]) + (sum[2] + sum[3]));
    // In halves: one sum after another would wait sixteen times for the last.
    for (int half = lanes / 2; half; half /= 2)
        for (int l = 0; l < half; ++l) parts[l] += parts[l + half];
    R rest = 0;
    for (; i < n; ++i) rest += a[i] * b[i];
    return parts[0] + rest;
}

template <class R>
R sparse_dot(const R* x, const Entry<R, 1>* e, int64_t n) {
    R sum[4] = {0, 0, 0, 0};
    int64_t k = 0;
    // Short rows overlap with the next ones by themselves; four sums only pay where one would wait for itself.
    for (; n >= 32 && k + 4 <= n; k += 4)
        for (int u = 0; u < 4; ++u) sum[u] += e[k + u].value[0] * x[e[k + u].offset];
    for (; k < n; ++k) sum[0] += e[k].value[0] * x[e[k].offset];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// One output position: a matrix times one vector. Planes of one number stand without gaps.
template <class R>
void conv_dots(const Conv& op, const Share<R>& share) {
    if (share.first == share.end) return;
    R* const arena = share.arena;
    const auto* bias = static_cast<const R*>(op.bias);
    const R* from = arena + op.from.at;
    if (!op.direct) from = copied(op, from, share.notes + op.scratch, 0, 0, 1, 1);
    for (int64_t k = share.first; k < share.end; ++k) {
        const int64_t o = op.read[k], at = op.starts[o], n = op.starts[o + 1] - at;
        R y = bias[o];
        if (op.tile == 0)
            y += sparse_dot(from, static_cast<const Entry<R, 1>*>(op.entries) + at, n);
        else
            y += dot(from, static_cast<const R*>(op.entries) + at, n);
        if (op.add.channels) y += arena[op.add.at + o * op.add.stride];
        arena[op.to.at + o * op.to.stride] = y;
    }
    // All at once: signs are random, and a branch for each would be guessed wrong half of the time. What stands between
    // the channels that are read may be shaped too, nobody looks.
    const int64_t from_channel = op.read[share.first], end_channel = op.read[share.end - 1] + 1;
    R* const y = arena + op.to.at;
    if (op.to.stride == 1 && !op.shape.slopes)
        return shape_row(y + from_channel, end_channel - from_channel, op.shape);
    for (int64_t c = from_channel; c < end_channel; ++c) shape_row(y + c * op.to.stride, 1, of_channel<R>(op.shape, c));
}

template <class R>
void run_conv(const Conv& op, const Share<R>& share, int64_t group) {
    if (op.tile < 1) return conv_dots(op, share);
    switch (op.block) {
        case 1: return conv_spans<R, 1>(op, share, group);
        case 2: return conv_spans<R, 2>(op, share, group);
        case 4: return conv_spans<R, 4>(op, share, group);
        case 8: return conv_spans<R, 8>(op, share, group);
        case 16: return conv_spans<R, 16>(op, share, group);
    }
}

// ---- dense 3x3 convolutions by Winograd --------------------------------------------------------------------------------

template <class R>
inline Vec<R> masked(Vec<R> x, const typename Kind<R>::Whole* mask) {
    constexpr int lanes = Lanes<R>::count;
    typename Kind<R>::Whole bits[lanes];
    std::memcpy(bits, &x, sizeof x);  // becomes one instruction: what lies outside may be any bits, also no number
    for (int i = 0; i < lanes; ++i) bits[i] &= mask[i];
    Vec<R> y;
    std::memcpy(&y, bits, sizeof y);
    return y;
}

// The 16 transformed numbers B' d B of a row of tiles, `lanes` tiles at once; d is 4x4, its left upper corner at row 2 ty.
template <class R>
void transformed(const Winograd& op, const R* plane, int64_t ty, R* to, int64_t far, const R* zeros,
                 const typename Kind<R>::Whole* inside) {
    constexpr int lanes = Lanes<R>::count;
    using V = Vec<R>;
    for (int64_t j = 0; j < op.wide; j += lanes) {
        const auto* mask = inside + 2 * j;
        V d[4][4];
        for (int i = 0; i < 4; ++i) {
            const int64_t y = 2 * ty + i - op.above;
            const R* x = y < 0 || y >= op.from.height ? zeros : plane + y * op.from.width - op.left + 2 * j;
            const V a = masked<R>(load(x), mask), b = masked<R>(load(x + lanes), mask + lanes);
            const V c = masked<R>(load(x + 2), mask + 2), e = masked<R>(load(x + lanes + 2), mask + lanes + 2);
            d[i][0] = half<R, 0>(a, b), d[i][1] = half<R, 1>(a, b);
            d[i][2] = half<R, 0>(c, e), d[i][3] = half<R, 1>(c, e);
        }
        for (int i = 0; i < 4; ++i) {
            V t[4];
            for (int k = 0; k < 4; ++k)
                t[k] = i == 0 ? d[0][k] - d[2][k] : i == 1 ? d[1][k] + d[2][k] : i == 2 ? d[2][k] - d[1][k] : d[1][k] - d[3][k];
            R* y = to + 4 * i * far + j;
            store(y, t[0] - t[2]), store(y + far, t[1] + t[2]);
            store(y + 2 * far, t[2] - t[1]), store(y + 3 * far, t[1] - t[3]);
        }
    }
}

// B output channels of T vectors: a matrix times a matrix, the sums in registers.
template <class R, int T, int B>
void product(const R* x, int64_t stride, const R* u, int64_t n, R* y, int64_t wide) {
    constexpr int lanes = Lanes<R>::count;
    Vec<R> sum[B][T] = {};
    for (int64_t k = 0; k < n; ++k, x += stride, u += B) {
        Vec<R> lane[T];
        for (int t = 0; t < T; ++t) lane[t] = load(x + t * lanes);
        ahead(u);
        for (int b = 0; b < B; ++b)
            for (int t = 0; t < T; ++t) sum[b][t] += lane[t] * u[b];
    }
    for (int b = 0; b < B; ++b)
        for (int t = 0; t < T; ++t) store(y + b * wide + t * lanes, sum[b][t]);
}

template <class R>
using Product = void (*)(const R*, int64_t, const R*, int64_t, R*, int64_t);

template <class R>
Product<R> product_of(int64_t tile, int64_t block) {
    static const Product<R> four[] = {product<R, 1, 4>, product<R, 2, 4>, product<R, 3, 4>};
    static const Product<R> eight[] = {product<R, 1, 8>, product<R, 2, 8>, product<R, 3, 8>};
    return block == 16 ? product<R, 1, 16> : block == 8 ? eight[tile - 1] : four[tile - 1];
}

// A' m A of a row of tiles: two rows of outputs. Whole vectors are stored: what runs over a row is overwritten by the next.
template <class R>
void untransformed(const R* from, int64_t far, int64_t j, R* above, R* below) {
    constexpr int lanes = Lanes<R>::count;
    Vec<R> s[4][2];
    for (int i = 0; i < 4; ++i) {
        const R* m = from + 4 * i * far + j;
        const Vec<R> a = load(m), b = load(m + far), c = load(m + 2 * far), d = load(m + 3 * far);
        s[i][0] = a + b + c, s[i][1] = b - c - d;
    }
    const Vec<R> p = s[0][0] + s[1][0] + s[2][0], q = s[0][1] + s[1][1] + s[2][1];
    const Vec<R> r = s[1][0] - s[2][0] - s[3][0], t = s[1][1] - s[2][1] - s[3][1];
    store(above, zipped<R, 0>(p, q)), store(above + lanes, zipped<R, 1>(p, q));
    store(below, zipped<R, 0>(r, t)), store(below + lanes, zipped<R, 1>(r, t));
}

// Tile rows first..end of one image and one output channel, finished.
template <class R>
void untransform(const Winograd& op, const Shape& shape, const R* from, int64_t far, R* rows, int64_t first, int64_t end,
                 R* to, const R* add, R bias) {
    constexpr int lanes = Lanes<R>::count;
    const int64_t width = op.to.width, pitch = op.wide <= lanes ? width : (op.wide + lanes - 1) / lanes * lanes * 2;
    for (int64_t ty = first; ty < end; ++ty, from += op.wide) {
        R* above = rows + 2 * (ty - first) * pitch;
        for (int64_t j = 0; j < op.wide; j += lanes) untransformed(from, far, j, above + 2 * j, above + pitch + 2 * j);
    }
    const int64_t tall = std::min(op.to.height, 2 * end) - 2 * first, at = 2 * first * width;
    if (pitch == width) return finish_piece(shape, rows, add ? add + at : nullptr, bias, tall * width, to + at);
    for (int64_t r = 0; r < tall; ++r)
        finish_piece(shape, rows + r * pitch, add ? add + at + r * width : nullptr, bias, width, to + at + r * width);
}

template <class R>
void run_winograd(const Winograd& op, const Share<R>& share, int64_t group) {
    R* const arena = share.arena;
    constexpr int lanes = Lanes<R>::count;
    using Whole = typename Kind<R>::Whole;
    const int64_t channels = op.from.channels, total = group * op.tall;
    const R zeros[2 * lanes + 2] = {};
    std::vector<Whole> inside(2 * (op.wide + 2 * lanes) + 2);
    for (int64_t q = 0; q < int64_t(inside.size()); ++q) inside[q] = q >= op.left && q < op.left + op.from.width ? ~Whole(0) : 0;
    const Product<R> run = product_of<R>(op.tile, op.block);
    const int64_t step = op.tile * lanes, far = channels * op.stride + lanes;
    R *const v = share.notes + op.inputs, *const m = share.notes + op.sums;
    for (int64_t first = 0; first < total; first += op.rows) {
        const int64_t end = std::min(total, first + op.rows), padded = ((end - first) * op.wide + step - 1) / step * step;
        for (int64_t c = 0; c < channels; ++c)
            for (int64_t row = first; row < end; ++row) {
                const R* plane = arena + op.from.at + c * op.from.stride + row / op.tall * pixels(op.from);
                transformed(op, plane, row % op.tall, v + c * op.stride + (row - first) * op.wide, far, zeros, inside.data());
            }
        for (int64_t o = share.first; o < share.end; ++o) {
            const R* u = static_cast<const R*>(op.weights) + o * 16 * channels * op.block;
            for (int64_t k = 0; k < 16; ++k)
                for (int64_t p = 0; p < padded; p += step)
                    run(v + k * far + p, op.stride, u + k * channels * op.block, channels, m + k * op.block * padded + p, padded);
            for (int64_t b = 0; b < op.block && o * op.block + b < op.to.channels; ++b)
                for (int64_t row = first, next; row < end; row = next) {
                    const int64_t c = o * op.block + b, image = row / op.tall;
                    next = std::min(end, (image + 1) * op.tall);
                    const int64_t at = image * pixels(op.to);
                    untransform(op, of_channel<R>(op.shape, c), m + b * padded + (row - first) * op.wide,
                                op.block * padded, share.notes + op.result, row - image * op.tall,
                                next - image * op.tall, arena + op.to.at + c * op.to.stride + at,
                                op.add.channels ? arena + op.add.at + c * op.add.stride + at : nullptr,
                                static_cast<const R*>(op.bias)[c]);
                }
        }
    }
}

// ---- few input channels an output: depthwise and small groups --------------------------------------------------------

template <class R, int H>
struct Tap {  // H weights below each other: where the input of the first stands, counted from the output's own place
    typename Kind<R>::Whole offset, row, column;  // column: which of the shifts
    R value[H];
};

// The inputs of one vector of outputs, STEP numbers apart; 0 stands for any other distance.
template <class R, int STEP>
inline Vec<R> spread(const R* from, int64_t step, const typename Kind<R>::Whole* mask) {
    constexpr int lanes = Lanes<R>::count;
    if (STEP == 1) return masked<R>(load(from), mask);
    if (STEP == 2) return masked<R>(half<R, 0>(load(from), load(from + lanes)), mask);
    R picked[lanes];
    // What is masked may lie far outside of the arena: it is not even read.
    for (int i = 0; i < lanes; ++i) picked[i] = mask[i] ? from[i * step] : R(0);
    return load(picked);
}

// One vector of T rows. Every input is read once for all H weights that meet it: reads that cross cache lines, as most
// do here, cost more than the products.
template <class R, int T, int H, int STEP>
void near_rows(const Near& op, const Shaped<R>& shaped, const R* x, const void* list, int64_t n, int64_t row,
               int64_t column, bool border, const typename Kind<R>::Whole* masks, R bias, const R* add, R* to) {
    constexpr int lanes = Lanes<R>::count, apart = STEP ? STEP : 1, reach = H == 1 ? T : (T - 1) * apart + H;
    const auto* taps = static_cast<const Tap<R, H>*>(list);
    const int64_t down = H == 1 ? op.step_y : 1, width = op.to.width, top = row * op.step_y;
    x += top * op.from.width + column * op.step_x;
    Vec<R> sum[T];
    UNROLLED
    for (int t = 0; t < T; ++t) sum[t] = Vec<R>{} + bias;
    for (int64_t k = 0; k < n; ++k) {
        const auto* mask = masks + taps[k].column * lanes;
        const R *from = x + taps[k].offset, *value = taps[k].value;
        const int64_t first = top + taps[k].row;
        UNROLLED
        for (int y = 0; y < reach; ++y) {
            if (border && uint64_t(first + y * down) >= uint64_t(op.from.height)) continue;
            const Vec<R> lane = spread<R, STEP>(from + y * down * op.from.width, op.step_x, mask);
            if (H == 1) {
                sum[y < T ? y : 0] += lane * value[0];
                continue;
            }
            UNROLLED
            for (int h = 0; h < H; ++h)
                if (y >= h && (y - h) % apart == 0 && (y - h) / apart < T) sum[(y - h) / apart] += lane * value[h];
        }
    }
    if (add) {
        UNROLLED
        for (int t = 0; t < T; ++t) sum[t] += load(add + t * width);
    }
    shaped(sum);
    UNROLLED
    for (int t = 0; t < T; ++t) store(to + t * width, sum[t]);
}

template <class R>
using NearRows = void (*)(const Near&, const Shaped<R>&, const R*, const void*, int64_t, int64_t, int64_t, bool,
                          const typename Kind<R>::Whole*, R, const R*, R*);

constexpr int HEIGHTS[] = {8, 7, 4, 1};  // rows at once: images are often 7 times a power of two high

template <class R, int H, int STEP>
NearRows<R> near_rows_of(int64_t rows) {
    return rows == 8   ? near_rows<R, 8, H, STEP>
           : rows == 7 ? near_rows<R, 7, H, STEP>
           : rows == 4 ? near_rows<R, 4, H, STEP>
                       : near_rows<R, 1, H, STEP>;
}

template <class R>
NearRows<R> near_rows_of(const Near& op, int64_t rows) {
    if (op.step_x > 2) return near_rows<R, 1, 1, 0>;
    const bool near = op.step_x == 1;
    return op.block == 5   ? near ? near_rows_of<R, 5, 1>(rows) : near_rows_of<R, 5, 2>(rows)
           : op.block == 3 ? near ? near_rows_of<R, 3, 1>(rows) : near_rows_of<R, 3, 2>(rows)
           : near          ? near_rows_of<R, 1, 1>(rows)
                           : near_rows_of<R, 1, 2>(rows);
}

// Where the vectors of a row begin, and which of their inputs come from inside. The last one ends where the row ends, so
// that none runs over it; a row shorter than a vector runs into the next, which is written later.
template <class R>
struct Columns {
    using Whole = typename Kind<R>::Whole;
    explicit Columns(const Near& op) {
        constexpr int lanes = Lanes<R>::count;
        const int64_t width = op.to.width, count = (width + lanes - 1) / lanes;
        for (int64_t v = 0; v < count; ++v) {
            first.push_back(std::max<int64_t>(0, std::min(v * lanes, width - lanes)));
            for (int64_t k = 0; k < op.columns; ++k)
                for (int i = 0; i < lanes; ++i) {
                    const int64_t x = (first[v] + i) * op.step_x + op.shifts[k];
                    masks.push_back(x >= 0 && x < op.from.width ? ~Whole(0) : 0);
                }
        }
    }
    std::vector<int64_t> first;
    std::vector<Whole> masks;
};

// How many rows from `row` on are computed at once.
inline int64_t rows_at_once(const Near& op, int64_t row) {
    if (op.step_x > 2) return 1;
    for (int64_t rows : HEIGHTS)
        if (rows <= op.tile && rows <= op.to.height - row) return rows;
    return 1;
}

template <class R>
void run_near(const Near& op, const Share<R>& share, int64_t group) {
    R* const arena = share.arena;
    constexpr int lanes = Lanes<R>::count;
    const Columns<R> columns(op);
    const Shaped<R> shape(op.shape);
    const auto* bias = static_cast<const R*>(op.bias);
    const int64_t width = op.to.width;
    for (int64_t c = share.first; c < share.end; ++c) {
        const Shaped<R> shaped = shape.from(c);
        const auto* taps = static_cast<const char*>(op.taps) + op.starts[c] * (3 + op.block) * sizeof(R);
        const int64_t n = op.starts[c + 1] - op.starts[c];
        const R* const plane = arena + op.from.at + c / op.outputs * op.inputs * op.from.stride;
        for (int64_t g = 0; g < group; ++g)
            for (int64_t row = 0, rows; row < op.to.height; row += rows) {
                rows = rows_at_once(op, row);
                const NearRows<R> run = near_rows_of<R>(op, rows);
                const bool border = row < op.inner || row + rows > op.end;
                const int64_t at = g * pixels(op.to) + row * width;
                for (size_t v = 0; v < columns.first.size(); ++v) {
                    const int64_t q = columns.first[v];
                    run(op, shaped, plane + g * pixels(op.from), taps, n, row, q, border,
                        columns.masks.data() + v * op.columns * lanes, bias[c],
                        op.add.channels ? arena + op.add.at + c * op.add.stride + at + q : nullptr,
                        arena + op.to.at + c * op.to.stride + at + q);
                }
            }
    }
}

// ---- dense convolutions of one pixel ---------------------------------------------------------------------------------

struct Turn {  // some input channels; the first turn begins sums, the last one finishes them
    int64_t deep;
    bool first, last;
};

template <class R, int T>
inline void finished(Vec<R> (&sum)[T], const Shaped<R>& shaped, R bias, const R* add) {
    UNROLLED
    for (int t = 0; t < T; ++t) sum[t] += bias;
    if (add) {
        UNROLLED
        for (int t = 0; t < T; ++t) sum[t] += load(add + t * Lanes<R>::count);
    }
    shaped(sum);
}

// T vectors of B output channels, of which `outs` exist.
template <class R, int T, int B>
void matrix_tile(const Matrix& op, const Shaped<R>& shaped, const R* x, const R* w, const Turn& turn, int64_t outs,
                 const R* bias, const R* add, R* y) {
    constexpr int lanes = Lanes<R>::count;
    Vec<R> sum[B][T] = {};
    for (int64_t k = 0; k < turn.deep; ++k, x += T * lanes, w += B) {
        Vec<R> lane[T];
        UNROLLED
        for (int t = 0; t < T; ++t) lane[t] = load(x + t * lanes);
        ahead(w);
        UNROLLED
        for (int b = 0; b < B; ++b) {
            UNROLLED
            for (int t = 0; t < T; ++t) sum[b][t] += lane[t] * w[b];
        }
    }
    UNROLLED
    for (int b = 0; b < B; ++b)
        if (b < outs) {
            R* to = y + b * op.to.stride;
            if (!turn.first) {
                UNROLLED
                for (int t = 0; t < T; ++t) sum[b][t] += load(to + t * lanes);
            }
            if (turn.last) finished<R, T>(sum[b], shaped.from(b), bias[b], add ? add + b * op.add.stride : nullptr);
            UNROLLED
            for (int t = 0; t < T; ++t) store(to + t * lanes, sum[b][t]);
        }
}

template <class R>
using MatrixTile = void (*)(const Matrix&, const Shaped<R>&, const R*, const R*, const Turn&, int64_t, const R*, const R*, R*);

template <class R>
MatrixTile<R> matrix_tile_of(int64_t tile, int64_t block) {
    static const MatrixTile<R> four[] = {matrix_tile<R, 1, 4>, matrix_tile<R, 2, 4>, matrix_tile<R, 3, 4>,
                                         matrix_tile<R, 4, 4>};
    static const MatrixTile<R> six[] = {matrix_tile<R, 1, 6>, matrix_tile<R, 2, 6>, matrix_tile<R, 3, 6>,
                                        matrix_tile<R, 4, 6>};
    static const MatrixTile<R> eight[] = {matrix_tile<R, 1, 8>, matrix_tile<R, 2, 8>, matrix_tile<R, 3, 8>};
    static const MatrixTile<R> twelve[] = {matrix_tile<R, 1, 12>, matrix_tile<R, 2, 12>};
    if (block == 12) return twelve[tile - 1];
    if (block == 8) return eight[tile - 1];
    return block == 6 ? six[tile - 1] : four[tile - 1];
}

// `tile` vectors of some channels, one after another: read once for all output channels.
template <class R>
void packed(const R* from, int64_t stride, int64_t deep, int64_t tile, R* to) {
    constexpr int lanes = Lanes<R>::count;
    for (int64_t k = 0; k < deep; ++k, from += stride)
        for (int64_t t = 0; t < tile; ++t, to += lanes) store(to, load(from + t * lanes));
}

template <class R>
void run_matrix(const Matrix& op, const Share<R>& share, int64_t group) {
    R* const arena = share.arena;
    constexpr int lanes = Lanes<R>::count;
    const int64_t vectors = (group * pixels(op.to) + lanes - 1) / lanes, channels = op.from.channels;
    const auto *weights = static_cast<const R*>(op.weights), *bias = static_cast<const R*>(op.bias);
    R* const panel = share.notes + op.panel;
    const Shaped<R> shaped(op.shape);
    for (int64_t k = 0; k < channels; k += op.deep) {
        const Turn turn{std::min(op.deep, channels - k), k == 0, k + op.deep >= channels};
        for (int64_t some = share.first; some < share.end; some += op.together)
            for (int64_t v = 0, tile; v < vectors; v += tile) {
                const int64_t passes = (vectors - v + op.tile - 1) / op.tile;
                tile = (vectors - v + passes - 1) / passes;  // all of nearly the same length
                packed(arena + op.from.at + k * op.from.stride + v * lanes, op.from.stride, turn.deep, tile, panel);
                const MatrixTile<R> run = matrix_tile_of<R>(tile, op.block);
                for (int64_t o = some; o < std::min(share.end, some + op.together); ++o) {
                    const int64_t c = o * op.block;
                    run(op, shaped.from(c), panel, weights + (op.blocks * k + o * turn.deep) * op.block, turn, op.to.channels - c, bias + c,
                        op.add.channels ? arena + op.add.at + c * op.add.stride + v * lanes : nullptr,
                        arena + op.to.at + c * op.to.stride + v * lanes);
                }
            }
    }
}

// ---- the other operations --------------------------------------------------------------------------------------------

// `lanes` rows of `lanes` numbers become columns: log2(lanes) times, row i and row i + lanes / 2 are zipped.
template <class R>
inline void transposed(Vec<R>* rows) {
    constexpr int lanes = Lanes<R>::count;
    for (int stage = 1; stage < lanes; stage *= 2) {
        Vec<R> next[lanes];
        for (int i = 0; i < lanes / 2; ++i) {
            next[2 * i] = zipped<R, 0>(rows[i], rows[i + lanes / 2]);
            next[2 * i + 1] = zipped<R, 1>(rows[i], rows[i + lanes / 2]);
        }
        for (int i = 0; i < lanes; ++i) rows[i] = next[i];
    }
}

// Features of a group of images, feature by feature: a square of a vector's size at a time, where all of it is there. The
// planes are whole vectors, so that a last square of fewer images is written whole.
template <class R>
void load_features(const Load& op, R* to, const R* x, int64_t group) {
    constexpr int lanes = Lanes<R>::count;
    const int64_t image = op.to.channels, stride = op.to.stride;
    const bool squares = lanes > 1 && image >= lanes && stride >= lanes;
    for (int64_t k = 0; k < op.count;) {
        const int64_t c = std::max<int64_t>(0, std::min<int64_t>(op.channels[k], image - lanes));
        int64_t next = k, g = 0;
        while (next < op.count && op.channels[next] < c + lanes) ++next;
        for (; squares && g < group; g += lanes) {
            Vec<R> square[lanes] = {};
            for (int64_t i = 0; i < std::min<int64_t>(lanes, group - g); ++i) square[i] = load(x + (g + i) * image + c);
            transposed<R>(square);
            for (int i = 0; i < lanes; ++i) store(to + (c + i) * stride + g, square[i]);
        }
        for (; g < group; ++g)
            for (int64_t i = k; i < next; ++i) to[op.channels[i] * stride + g] = x[g * image + op.channels[i]];
        k = next;
    }
}

// The way back, image by image. (One number at a time took as long as a layer's products: 128 × 1536 of 10 % non-zeros.)
template <class R>
void store_features(const R* from, int64_t channels, int64_t stride, R* y, int64_t group) {
    constexpr int lanes = Lanes<R>::count;
    const bool squares = lanes > 1 && channels >= lanes && stride >= lanes;
    if (!squares) {
        for (int64_t g = 0; g < group; ++g)
            for (int64_t c = 0; c < channels; ++c) y[g * channels + c] = from[c * stride + g];
        return;
    }
    for (int64_t g = 0; g < group; g += lanes)
        for (int64_t k = 0; k < channels; k += lanes) {
            const int64_t c = std::min(k, channels - lanes);  // the last square overlaps
            Vec<R> square[lanes];
            for (int i = 0; i < lanes; ++i) square[i] = load(from + (c + i) * stride + g);
            transposed<R>(square);
            for (int64_t i = 0; i < std::min<int64_t>(lanes, group - g); ++i) store(y + (g + i) * channels + c, square[i]);
        }
}

template <class R>
void run_load(const Load& op, R* arena, const Call& call) {
    const int64_t size = pixels(op.to), image = op.to.channels * size;
    const R* x = static_cast<const R*>(call.inputs[op.input]) + call.first * image;
    R* to = arena + op.to.at;
    if (image == op.to.channels && call.group == 1)
        std::memcpy(to, x, image * sizeof(R));
    else if (size == 1)
        load_features(op, to, x, call.group);
    else
        for (int64_t k = 0; k < op.count; ++k)
            for (int64_t g = 0; g < call.group; ++g) {
                const int64_t c = op.channels[k];
                std::memcpy(to + c * op.to.stride + g * size, x + g * image + c * size, size * sizeof(R));
            }
}

template <class R>
void run_store(const Store& op, const R* arena, const Call& call) {
    const int64_t size = pixels(op.from), channels = op.from.channels, stride = op.from.stride, group = call.group;
    const R* from = arena + op.from.at;
    R* y = static_cast<R*>(call.outputs[op.output]) + call.first * channels * size;
    if (size == 1)
        store_features(from, channels, stride, y, group);
    else
        for (int64_t g = 0; g < group; ++g)
            for (int64_t c = 0; c < channels; ++c)
                std::memcpy(y + (g * channels + c) * size, from + c * stride + g * size, size * sizeof(R));
}

template <class R>
void run_scale(const Scale& op, const Share<R>& share, int64_t group) {
    R* const arena = share.arena;
    const int64_t n = group * pixels(op.from);
    for (int64_t c = share.first; c < share.end; ++c) {
        const R scale = op.scale ? static_cast<const R*>(op.scale)[c] : R(1);
        const R shift = op.shift ? static_cast<const R*>(op.shift)[c] : R(0);
        const R* x = arena + op.from.at + c * op.from.stride;
        R* y = arena + op.to.at + c * op.to.stride;
        for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale + shift;
        shape_row(y, n, of_channel<R>(op.shape, c));
    }
}

template <class R>
void run_add(const Add& op, const Share<R>& share, int64_t group) {
    R* const arena = share.arena;
    const int64_t n = group * pixels(op.to);
    const R sign = R(op.sign);
    for (int64_t c = share.first; c < share.end; ++c) {
        const R *a = arena + op.a.at + c * op.a.stride, *b = arena + op.b.at + c * op.b.stride;
        R* y = arena + op.to.at + c * op.to.stride;
        for (int64_t i = 0; i < n; ++i) y[i] = a[i] + sign * b[i];
        shape_row(y, n, of_channel<R>(op.shape, c));
    }
}

// The larger of two, and NaN as soon as one is: a comparison alone would drop it on one side.
template <class R>
inline R larger(R x, R y) {
    return y > x || y != y ? y : x;
}

// The rows of a window first, whole rows at a time; then along the row.
template <class R>
void pool_plane(const Pool& op, const R* x, R* y, R* row) {
    const int64_t width = op.from.width;
    const R none = op.maximum ? -std::numeric_limits<R>::infinity() : R(0);
    const auto* factor = static_cast<const R*>(op.factor);
    for (int64_t r = 0; r < op.to.height; ++r) {
        std::fill_n(row, width, none);
        for (int64_t k = op.rows[3 * r]; k < op.rows[3 * r + 1]; k += op.rows[3 * r + 2]) {
            const R* line = x + k * width;
            if (op.maximum)
                for (int64_t i = 0; i < width; ++i) row[i] = larger<R>(row[i], line[i]);
            else
                for (int64_t i = 0; i < width; ++i) row[i] += line[i];
        }
        for (int64_t q = 0; q < op.to.width; ++q) {
            const int32_t* c = op.columns + 3 * q;
            R total = none;
            for (int64_t i = c[0]; i < c[1]; i += c[2])
                total = op.maximum ? larger<R>(total, row[i]) : total + row[i];
            y[r * op.to.width + q] = op.maximum ? total : total * factor[r * op.to.width + q];
        }
    }
}

template <class R>
void run_pool(const Pool& op, const Share<R>& share, int64_t group) {
    R* const arena = share.arena;
    std::vector<R> row(op.from.width);
    for (int64_t c = share.first; c < share.end; ++c)
        for (int64_t g = 0; g < group; ++g)
            pool_plane(op, arena + op.from.at + c * op.from.stride + g * pixels(op.from),
                       arena + op.to.at + c * op.to.stride + g * pixels(op.to), row.data());
}

template <class R>
void run_gather(const Gather& op, R* arena, int64_t group) {
    const int64_t in = pixels(op.from), out = pixels(op.to);
    const R* from = arena + op.from.at;
    for (int64_t c = 0; c < op.to.channels; ++c) {
        R* y = arena + op.to.at + c * op.to.stride;
        if (op.planes) {
            const int64_t k = op.index[c];
            if (k < 0) std::fill_n(y, group * out, R(0));
            else std::memcpy(y, from + k * op.from.stride, group * out * sizeof(R));
            continue;
        }
        for (int64_t i = 0; i < out; ++i) {
            const int64_t k = op.index[c * out + i];
            const R* x = from + (k < 0 ? 0 : k / in * op.from.stride + k % in);
            for (int64_t g = 0; g < group; ++g) y[g * out + i] = k < 0 ? R(0) : x[g * in];
        }
    }
}

template <class R>
void run_cat(const Cat& op, R* arena, int64_t group) {
    for (int64_t c = 0; c < op.from.channels; ++c)
        std::memcpy(arena + op.to.at + (op.channel + c) * op.to.stride, arena + op.from.at + c * op.from.stride,
                    group * pixels(op.from) * sizeof(R));
}

// How many units an operation consists of; one is computed without regard to the others.
int64_t units(const Op& op) {
    switch (op.name) {
        case CONV: {
            const auto& conv = *static_cast<const Conv*>(op.body);
            return conv.tile < 1 ? conv.listed : conv.blocks;
        }
        case WINOGRAD: return static_cast<const Winograd*>(op.body)->blocks;
        case MATRIX: return static_cast<const Matrix*>(op.body)->blocks;
        case NEAR: return static_cast<const Near*>(op.body)->to.channels;
        case SCALE: return static_cast<const Scale*>(op.body)->from.channels;
        case ADD: return static_cast<const Add*>(op.body)->to.channels;
        case POOL: return static_cast<const Pool*>(op.body)->from.channels;
    }
    return 1;
}

// Whether the units may be computed at once. These two store whole vectors, and what runs over into the next channel
// has to be overwritten afterwards.
template <class R>
bool divisible(const Op& op) {
    if (op.name == MATRIX) return static_cast<const Matrix*>(op.body)->to.stride >= Lanes<R>::count;
    if (op.name == NEAR) return static_cast<const Near*>(op.body)->to.width >= Lanes<R>::count;
    return true;
}

template <class R>
void run_share(const Op& op, const Share<R>& share, const Call& call) {
    switch (op.name) {
        case LOAD: return run_load(*static_cast<const Load*>(op.body), share.arena, call);
        case STORE: return run_store(*static_cast<const Store*>(op.body), share.arena, call);
        case CONV: return run_conv(*static_cast<const Conv*>(op.body), share, call.group);
        case SCALE: return run_scale(*static_cast<const Scale*>(op.body), share, call.group);
        case ADD: return run_add(*static_cast<const Add*>(op.body), share, call.group);
        case POOL: return run_pool(*static_cast<const Pool*>(op.body), share, call.group);
        case GATHER: return run_gather(*static_cast<const Gather*>(op.body), share.arena, call.group);
        case CAT: return run_cat(*static_cast<const Cat*>(op.body), share.arena, call.group);
        case WINOGRAD: return run_winograd(*static_cast<const Winograd*>(op.body), share, call.group);
        case NEAR: return run_near(*static_cast<const Near*>(op.body), share, call.group);
        case MATRIX: return run_matrix(*static_cast<const Matrix*>(op.body), share, call.group);
    }
}

template <class R>
void run_op(const Op& op, R* arena, const Call& call) {
    run_share(op, Share<R>{arena, arena, 0, units(op)}, call);
}

// ---- programs --------------------------------------------------------------------------------------------------------

// The arena of a thread. Numbers before and after the planes are read into lanes that nobody uses: SLACK covers them.
template <class R>
struct Arena {
    explicit Arena(int64_t numbers) {
        const size_t bytes = (numbers * sizeof(R) + LINE - 1) / LINE * LINE;
        data = static_cast<R*>(std::aligned_alloc(LINE, bytes));
        if (!data) throw std::bad_alloc();
        std::memset(data, 0, bytes);
    }
    ~Arena() { std::free(data); }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    R* data;
};

template <class R>
struct Plan {  // the operations for groups of `group` images
    const Op* ops;
    int64_t count, group, numbers;
    int64_t features;  // every value is one number an image: it serves fewer images, too
};

template <class R>
struct Program {
    std::vector<Plan<R>> plans;  // largest group first; the last is for one image
    std::mutex lock;
    std::vector<Arena<R>*> idle;
    int64_t numbers = 0;
    int64_t least = 1;  // images that are worth a thread of their own
    int64_t shared = 1;  // threads at most that share one image

    ~Program() {
        for (auto* arena : idle) delete arena;
    }
    Arena<R>* borrow() {
        {
            std::lock_guard<std::mutex> guard(lock);
            if (!idle.empty()) {
                auto* arena = idle.back();
                idle.pop_back();
                return arena;
            }
        }
        return new Arena<R>(numbers);
    }
    void give_back(Arena<R>* arena) {
        std::lock_guard<std::mutex> guard(lock);
        idle.push_back(arena);
    }
};

template <class R>
void run_images(const Program<R>& program, Call call, R* arena, int64_t first, int64_t end) {
    for (size_t p = 0; p < program.plans.size(); ++p) {
        const auto& plan = program.plans[p];
        // What is left over is one run of this plan where the next one would read its weights several times. (One image
        // alone is dot products: a vector of fewer than three is no gain.)
        const int64_t next = p + 1 < program.plans.size() ? program.plans[p + 1].group : 0;
        const int64_t fewest = plan.features && next ? std::max<int64_t>(next + 1, 3) : plan.group;
        for (; end - first >= fewest; first += call.group) {
            call.group = std::min(plan.group, end - first);
            call.first = first;
            for (int64_t k = 0; k < plan.count; ++k) run_op(plan.ops[k], arena, call);
        }
    }
}

template <class R>
int run_alone(Program<R>& program, const Call& call, int64_t images) {
    Arena<R>* arena = nullptr;
    try {
        arena = program.borrow();
    } catch (const std::bad_alloc&) {
        return 1;
    }
    run_images(program, call, arena->data, 0, images);
    program.give_back(arena);
    return 0;
}

inline void pause() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    __builtin_ia32_pause();
#endif
}

// One image, divided among threads: every operation in as many pieces, which whoever is free takes. The caller takes
// part, so that a thread that does not get a processor costs at most the piece that it has begun. A piece may read what
// another is writing next to its own input only where that is masked away (`shifted`). The ticket holds the operation and
// the next piece of it; since both only grow, nobody can take a piece of an operation that is over.
template <class R>
class Team {
public:
    Team(const Plan<R>& plan, const Call& call, const std::vector<Arena<R>*>& arenas)
        : plan(plan), call(call), arenas(arenas), workers(int64_t(arenas.size())) {}

    // The caller: opens one operation after the other.
    void lead() {
        for (int64_t k = 0; k < plan.count; ++k) {
            finished.store(0, std::memory_order_relaxed);
            ticket.store(k * PIECES, std::memory_order_release);
            while (take(0)) {
            }
            for (int64_t waited = 0; finished.load(std::memory_order_acquire) < pieces(k); ++waited) rest(waited);
        }
        ticket.store(plan.count * PIECES, std::memory_order_release);
    }

    // Another thread: takes pieces until there is no operation left.
    void follow(int64_t who) {
        for (int64_t waited = 0; ticket.load(std::memory_order_acquire) / PIECES < plan.count;)
            if (take(who)) waited = 0;
            else rest(++waited);
    }

private:
    static constexpr int64_t PIECES = 1 << 16;  // more than there are threads

    int64_t pieces(int64_t k) const {
        return divisible<R>(plan.ops[k]) ? std::max<int64_t>(1, std::min(workers, units(plan.ops[k]))) : 1;
    }

    bool take(int64_t who) {
        int64_t seen = ticket.load(std::memory_order_acquire);
        for (;;) {
            const int64_t k = seen / PIECES, piece = seen % PIECES;
            if (k >= plan.count || piece >= pieces(k)) return false;
            if (!ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
            const int64_t all = units(plan.ops[k]), some = pieces(k);
            const Share<R> share{arenas[0]->data, arenas[who]->data, all * piece / some, all * (piece + 1) / some};
            run_share(plan.ops[k], share, call);
            finished.fetch_add(1, std::memory_order_release);
            return true;
        }
    }

    // An operation takes some 100 µs; on a busy machine the processor is better left to whoever has the piece.
    static void rest(int64_t waited) {
        if (waited > 4000) std::this_thread::yield();
        else pause();
    }

    const Plan<R>& plan;
    const Call& call;
    const std::vector<Arena<R>*>& arenas;
    const int64_t workers;
    alignas(LINE) std::atomic<int64_t> ticket{PIECES - 1};  // before the first operation there is no piece
    alignas(LINE) std::atomic<int64_t> finished{0};
};

template <class R>
int run_divided(Program<R>& program, Call call, int64_t threads) {
    call.group = 1;
    std::vector<Arena<R>*> arenas;
    try {
        while (int64_t(arenas.size()) < threads) arenas.push_back(program.borrow());
    } catch (const std::bad_alloc&) {
        for (auto* arena : arenas) program.give_back(arena);
        return 1;
    }
    Team<R> team(program.plans.back(), call, arenas);
    std::vector<std::thread> others;
    try {
        for (int64_t k = 1; k < threads; ++k) others.emplace_back([&team, k] { team.follow(k); });
    } catch (const std::system_error&) {  // no more threads to be had: those there are do all
    }
    team.lead();
    for (auto& other : others) other.join();
    for (auto* arena : arenas) program.give_back(arena);
    return 0;
}

// Threads over images; whoever has nothing to do sleeps. Fresh threads cost microseconds and survive a fork.
template <class R>
int run(Program<R>& program, const void* const* inputs, void* const* outputs, int64_t images, int64_t threads) {
    const Call call{inputs, outputs, 0, 0};
    const int64_t even = (images + std::max<int64_t>(threads, 1) - 1) / std::max<int64_t>(threads, 1);
    const int64_t share = std::max(even, program.least);
    const int64_t together = std::min(threads, program.shared);
    if (images == 1 && together > 1) return run_divided(program, call, together);
    if (share >= images) return run_alone(program, call, images);
    std::vector<Arena<R>*> arenas;
    try {  // all memory first: no thread can fail later
        for (int64_t first = 0; first < images; first += share) arenas.push_back(program.borrow());
    } catch (const std::bad_alloc&) {
        for (auto* arena : arenas) program.give_back(arena);
        return 1;
    }
    std::vector<std::thread> others;
    auto piece = [&](int64_t k) {
        run_images(program, call, arenas[k]->data, k * share, std::min(images, (k + 1) * share));
    };
    for (size_t k = 1; k < arenas.size(); ++k) {
        try {
            others.emplace_back(piece, k);
        } catch (const std::system_error&) {  // no more threads to be had
            piece(k);
        }
    }
    if (!arenas.empty()) piece(0);
    for (auto& other : others) other.join();
    for (auto* arena : arenas) program.give_back(arena);
    return 0;
}

// The best of `rounds` times of one operation, in seconds, on an arena of small numbers.
template <class R>
double time_op(const Op& op, int64_t numbers, int64_t group, int64_t rounds) {
    Arena<R> arena(numbers);
    for (int64_t i = 0; i < numbers; ++i) arena.data[i] = R((i * 7919) % 251) / 251;
    const Call call{nullptr, nullptr, 0, group};
    double best = 1e30;
    for (int64_t k = 0; k < rounds; ++k) {
        const auto start = std::chrono::steady_clock::now();
        run_op(op, arena.data, call);
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
        best = std::min(best, spent.count());
    }
    return best;
}

// Seconds of every operation of one plan, in one run on the first group of the inputs.
template <class R>
int time_plan(Program<R>& program, int64_t which, const void* const* inputs, void* const* outputs, double* seconds) {
    const auto& plan = program.plans[which];
    const Call call{inputs, outputs, 0, plan.group};
    Arena<R>* arena = nullptr;
    try {
        arena = program.borrow();
    } catch (const std::bad_alloc&) {
        return 1;
    }
    auto last = std::chrono::steady_clock::now();
    for (int64_t k = 0; k < plan.count; ++k) {
        run_op(plan.ops[k], arena->data, call);
        const auto now = std::chrono::steady_clock::now();
        seconds[k] = std::chrono::duration<double>(now - last).count();
        last = now;
    }
    program.give_back(arena);
    return 0;
}

}  // namespace

#define OFFER(R)                                                                                                       \
    extern "C" void* fast_new_##R() { return new Program<R>; }                                                         \
    extern "C" void fast_free_##R(void* p) { delete static_cast<Program<R>*>(p); }                                     \
    extern "C" void fast_plan_##R(void* p, const Op* ops, int64_t count, int64_t group, int64_t numbers,               \
                                  int64_t features) {                                                                  \
        auto& program = *static_cast<Program<R>*>(p);                                                                  \
        program.plans.push_back({ops, count, group, numbers, features});                                               \
        program.numbers = std::max(program.numbers, numbers);                                                          \
    }                                                                                                                  \
    extern "C" void fast_threads_##R(void* p, int64_t least, int64_t shared) {                                         \
        static_cast<Program<R>*>(p)->least = least;                                                                    \
        static_cast<Program<R>*>(p)->shared = shared;                                                                  \
    }                                                                                                                  \
    extern "C" int fast_run_##R(void* p, const void* const* in, void* const* out, int64_t images, int64_t threads) {   \
        return run(*static_cast<Program<R>*>(p), in, out, images, threads);                                            \
    }                                                                                                                  \
    extern "C" int fast_one_##R(void* p, const void* in, void* out, int64_t images, int64_t threads) {                 \
        return run(*static_cast<Program<R>*>(p), &in, &out, images, threads);                                          \
    }                                                                                                                  \
    extern "C" int fast_time_plan_##R(void* p, int64_t which, const void* const* in, void* const* out, double* t) {    \
        return time_plan(*static_cast<Program<R>*>(p), which, in, out, t);                                             \
    }                                                                                                                  \
    extern "C" double fast_time_##R(const Op* op, int64_t numbers, int64_t group, int64_t rounds) {                    \
        return time_op<R>(*op, numbers, group, rounds);                                                                \
    }
OFFER(float)
OFFER(double)

extern "C" int64_t fast_lanes() { return Lanes<float>::count; }
extern "C" int64_t fast_bytes() {
    return sizeof(Load) + sizeof(Store) + sizeof(Conv) + sizeof(Scale) + sizeof(Add) + sizeof(Pool) + sizeof(Gather) +
           sizeof(Cat) + sizeof(Winograd) + sizeof(Near) + sizeof(Matrix);
}
