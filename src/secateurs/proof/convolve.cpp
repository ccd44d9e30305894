// Convolutions of many maps in float64, most of them zero but for a window: what a zonotope's generators are in the
// first layers of a network. torch writes out every window of a kernel before it multiplies, which takes longer than the
// products of some dozens of channels.
//
// Sums of neighbouring places of a channel are added together. What a map's window of the result reads is copied, each
// phase of a stride apart, so that the result at p = row · width + column sums entries at p + offset, whatever the kernel
// and the stride: long loops over p, with some columns at the end of each row that nobody reads. Small maps have too few
// places for that: of those some maps are laid side by side, and the same place of all of them is summed together.
// Either way a result is the same sum in the same order. Weights that are zero for all channels of a block are left out.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

namespace {

// Doubles moved together, channels of the result summed together, of few and of many, and how many such sums of a
// channel are open.
#ifdef __AVX512F__
constexpr int64_t LANES = 8, FEW = 4, MANY = 8, BLOCKS = 4;
#else
constexpr int64_t LANES = 4, FEW = 4, MANY = 4, BLOCKS = 3;
#endif
constexpr int64_t STEP = LANES * BLOCKS;
constexpr int64_t most_open(int64_t channels) { return channels > FEW ? BLOCKS - 1 : BLOCKS; }  // there are 32 registers
constexpr int64_t SMALL = 64;       // places of a map that is laid beside others
constexpr int64_t CACHED = 1 << 17;  // numbers of maps side by side: 1 MB

typedef double Lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));

// One dimension of a convolution.
struct Axis {
    int64_t in, out, kernel, stride, pad, step;
    // Which outputs read inputs from first to last: they begin at `from`, and there are `count`.
    void reached(int64_t first, int64_t last, int64_t* from, int64_t* count) const {
        const int64_t low = first + pad - (kernel - 1) * step, high = last + pad;
        *from = low > 0 ? (low + stride - 1) / stride : 0;
        *count = high < 0 ? 0 : std::max<int64_t>(0, std::min(out - 1, high / stride) + 1 - *from);
    }
    int64_t further() const { return (kernel - 1) * step / stride; }  // beyond those of the result
    int64_t read(int64_t at, int64_t phase) const { return at * stride - pad + phase; }
    // Whether a part of the kernel ever reads more than padding.
    bool reads(int64_t tap) const {
        const int64_t from = inside(0, tap * step, out);
        return from < outside(0, tap * step, out);
    }
    // The first of `count` places from `start` on that reads an input, and the first behind these.
    int64_t inside(int64_t start, int64_t phase, int64_t count) const {
        return std::clamp<int64_t>((stride - 1 - read(start, phase)) / stride, 0, count);
    }
    int64_t outside(int64_t start, int64_t phase, int64_t count) const {
        const int64_t left = in - read(start, phase);
        return std::max(inside(start, phase, count), left <= 0 ? 0 : std::min(count, (left + stride - 1) / stride));
    }
};

// The weights of some channels of the result: all of these for each channel and tap read that is not zero for all.
struct Block {
    struct Read {
        int32_t channel, tap;
    };
    int64_t first, count;
    std::vector<Read> reads;
    std::vector<double> weight;
};

std::vector<Block> parted(const double* weight, int64_t outputs, int64_t each, int64_t inputs, const Axis& y,
                          const Axis& x, int64_t most) {
    const int64_t taps = y.kernel * x.kernel;
    std::vector<int32_t> used;
    for (int64_t t = 0; t < taps; ++t)
        if (y.reads(t / x.kernel) && x.reads(t % x.kernel)) used.push_back(t);
    std::vector<Block> blocks;
    for (int64_t o = 0; o < outputs; o += blocks.back().count) {
        Block block{o, std::min(most, each - o % each), {}, {}};
        for (int64_t i = 0; i < inputs; ++i)
            for (const int32_t t : used) {
                double own[MANY];
                for (int64_t k = 0; k < block.count; ++k) own[k] = weight[((o + k) * inputs + i) * taps + t];
                if (std::all_of(own, own + block.count, [](double w) { return w == 0; })) continue;
                block.reads.push_back({int32_t(o / each * inputs + i), t});
                block.weight.insert(block.weight.end(), own, own + block.count);
            }
        blocks.push_back(std::move(block));
    }
    return blocks;
}

// offsets: where each tap begins in a channel, which is so many numbers after the one before; below zero what a tap reads
// is padding.
template <int64_t COUNT, int64_t OPEN>
void sums(double* out, int64_t apart, const double* map, int64_t pitch, const Block& block, const int64_t* offsets) {
    Lanes total[COUNT][OPEN] = {};
    const double* weight = block.weight.data();
    for (const Block::Read& read : block.reads) {
        const int64_t offset = offsets[read.tap];
        if (offset >= 0) {
            const double* from = map + read.channel * pitch + offset;
            Lanes x[OPEN];
            for (int64_t b = 0; b < OPEN; ++b) x[b] = *reinterpret_cast<const Lanes*>(from + b * LANES);
            for (int64_t k = 0; k < COUNT; ++k)
                for (int64_t b = 0; b < OPEN; ++b) total[k][b] += weight[k] * x[b];
        }
        weight += COUNT;
    }
    for (int64_t k = 0; k < COUNT; ++k) std::memcpy(out + k * apart, total[k], sizeof(total[k]));
}

// A loop whose length the compiler knows.
template <int64_t MOST, typename Use>
void with(int64_t value, Use use) {
    if constexpr (MOST > 1)
        if (value < MOST) return with<MOST - 1>(value, use);
    use(std::integral_constant<int64_t, MOST>{});
}

void add_up(double* out, int64_t apart, const double* map, int64_t pitch, int64_t open, const Block& block,
            const int64_t* offsets) {
    with<MANY>(block.count, [&](auto count) {
        with<most_open(count)>(open, [&](auto blocks) { sums<count, blocks>(out, apart, map, pitch, block, offsets); });
    });
}

// Rows and columns of the maps that are not zero throughout, and which of the result read them.
struct Window {
    std::vector<uint64_t> down, right;
    int64_t first, rows, start, columns;
    bool none;
    Window(const Axis& y, const Axis& x) : down(y.in), right(x.in) {}
    void clear() { std::fill(down.begin(), down.end(), 0), std::fill(right.begin(), right.end(), 0); }
    void see(int64_t row, const double* values) {
        uint64_t any = 0;
        for (size_t column = 0; column < right.size(); ++column) {
            uint64_t bits;
            std::memcpy(&bits, values + column, sizeof bits);
            bits <<= 1;  // without the sign
            any |= bits, right[column] |= bits;
        }
        down[row] |= any;
    }
    void close(const Axis& y, const Axis& x) {
        int64_t top = 0, left = 0, bottom = y.in, end = x.in;
        while (top < bottom && !down[top]) ++top;
        while (bottom > top && !down[bottom - 1]) --bottom;
        while (left < end && !right[left]) ++left;
        while (end > left && !right[end - 1]) --end;
        y.reached(top, bottom - 1, &first, &rows), x.reached(left, end - 1, &start, &columns);
        none = top == bottom || rows == 0 || columns == 0;
    }
    bool whole(const Axis& y, const Axis& x) const { return !none && rows == y.out && columns == x.out; }
};

// What is the same for all maps.
struct Layer {
    Axis y, x;
    int64_t channels, outputs, add;
    const double* scale;
    std::vector<Block> blocks;
    int64_t size() const { return y.in * x.in; }
    int64_t made() const { return y.out * x.out; }
    // One row of a map, times the scale.
    void copy_row(double* to, const double* map, int64_t row) const {
        for (int64_t j = 0, at = row * x.in; j < x.in; ++j, ++at) to[j] = scale ? map[at] * scale[at] : map[at];
    }
};

// One map at a time: neighbouring places are summed together.
struct Places {
    const Layer& layer;
    Window window;
    std::vector<double> scaled, copied, found;
    std::vector<int64_t> offsets;
    explicit Places(const Layer& of) : layer(of), window(of.y, of.x), scaled(of.channels * of.size()) {}

    void convolve(double* to, const double* from) {
        const Axis &y = layer.y, &x = layer.x;
        window.clear();
        for (int64_t row = 0; row < layer.channels * y.in; ++row) {
            layer.copy_row(scaled.data() + row * x.in, from, row);
            window.see(row % y.in, scaled.data() + row * x.in);
        }
        window.close(y, x);
        if (!layer.add && !window.whole(y, x)) std::fill_n(to, layer.outputs * layer.made(), 0.0);
        if (window.none) return;
        const int64_t first = window.first, rows = window.rows, start = window.start, columns = window.columns;
        const int64_t height = rows + y.further(), width = columns + x.further(), plane = height * width;
        const int64_t places = (rows - 1) * width + columns, padded = (places + STEP - 1) / STEP * STEP;
        const int64_t phases = y.stride * x.stride;
        copied.resize(layer.channels * phases * plane + STEP), found.resize(MANY * padded);
        double* copy = copied.data();
        for (int64_t c = 0; c < layer.channels; ++c)
            for (int64_t a = 0; a < y.stride; ++a)
                for (int64_t b = 0; b < x.stride; ++b)
                    for (int64_t r = 0; r < height; ++r, copy += width) {
                        const int64_t i = y.read(first + r, a), low = x.inside(start, b, width);
                        const int64_t high = i < 0 || i >= y.in ? low : x.outside(start, b, width);
                        const double* row = scaled.data() + c * layer.size() + i * x.in + x.read(start, b);
                        std::fill(copy, copy + low, 0.0), std::fill(copy + high, copy + width, 0.0);
                        if (x.stride == 1)
                            std::copy(row + low, row + high, copy + low);
                        else
                            for (int64_t q = low; q < high; ++q) copy[q] = row[q * x.stride];
                    }
        offsets.clear();
        for (int64_t i = 0; i < y.kernel; ++i)
            for (int64_t j = 0; j < x.kernel; ++j) {
                const int64_t u = i * y.step, v = j * x.step, phase = u % y.stride * x.stride + v % x.stride;
                offsets.push_back(phase * plane + u / y.stride * width + v / x.stride);
            }
        for (const Block& block : layer.blocks) {
            for (int64_t p = 0; p < places; p += STEP) {
                const int64_t open = std::min(BLOCKS, (places - p + LANES - 1) / LANES);
                add_up(found.data() + p, padded, copied.data() + p, phases * plane, open, block, offsets.data());
            }
            for (int64_t k = 0; k < block.count; ++k)
                for (int64_t r = 0; r < rows; ++r) {
                    const double* own = found.data() + k * padded + r * width;
                    double* there = to + (block.first + k) * layer.made() + (first + r) * x.out + start;
                    if (layer.add)
                        for (int64_t q = 0; q < columns; ++q) there[q] += own[q];
                    else
                        std::copy_n(own, columns, there);
                }
        }
    }
};

// Some maps side by side: the same place of all of them is summed together.
struct Beside {
    const Layer& layer;
    const int64_t open, wide;
    Window window;
    std::vector<double> line, packed, found;
    std::vector<int64_t> offsets;  // of all taps for each place
    Beside(const Layer& of, int64_t blocks)
        : layer(of), open(blocks), wide(blocks * LANES), window(of.y, of.x), line(of.x.in),
          packed(of.channels * of.size() * wide), found(MANY * of.made() * wide) {
        const Axis &y = layer.y, &x = layer.x;
        for (int64_t r = 0; r < y.out; ++r)
            for (int64_t q = 0; q < x.out; ++q)
                for (int64_t i = 0; i < y.kernel; ++i)
                    for (int64_t j = 0; j < x.kernel; ++j) {
                        const int64_t row = y.read(r, i * y.step), column = x.read(q, j * x.step);
                        const bool inside = 0 <= row && row < y.in && 0 <= column && column < x.in;
                        offsets.push_back(inside ? (row * x.in + column) * wide : -1);
                    }
    }

    void convolve(double* to, const double* from, int64_t maps) {
        const Axis &y = layer.y, &x = layer.x;
        const int64_t values = layer.channels * layer.size(), made = layer.made();
        window.clear();
        for (int64_t m = 0; m < maps; ++m)
            for (int64_t row = 0; row < layer.channels * y.in; ++row) {
                layer.copy_row(line.data(), from + m * values, row);
                window.see(row % y.in, line.data());
                for (int64_t j = 0; j < x.in; ++j) packed[(row * x.in + j) * wide + m] = line[j];
            }
        window.close(y, x);
        if (!layer.add && !window.whole(y, x)) std::fill_n(to, maps * layer.outputs * made, 0.0);
        if (window.none) return;
        for (const Block& block : layer.blocks) {
            for (int64_t r = window.first; r < window.first + window.rows; ++r)
                for (int64_t q = window.start; q < window.start + window.columns; ++q) {
                    const int64_t p = r * x.out + q;
                    add_up(found.data() + p * wide, made * wide, packed.data(), layer.size() * wide, open, block,
                           offsets.data() + p * y.kernel * x.kernel);
                }
            for (int64_t m = 0; m < maps; ++m)
                for (int64_t k = 0; k < block.count; ++k) {
                    double* there = to + (m * layer.outputs + block.first + k) * made;
                    const double* own = found.data() + k * made * wide + m;
                    for (int64_t r = window.first; r < window.first + window.rows; ++r)
                        for (int64_t p = r * x.out + window.start; p < r * x.out + window.start + window.columns; ++p)
                            there[p] = layer.add ? there[p] + own[p * wide] : own[p * wide];
                }
        }
    }
};

}  // namespace

// out (maps, outputs, y.out, x.out) = or += the convolution of map · scale; map (maps, channels, y.in, x.in), scale of
// the same size for all maps, or null; weight (outputs, channels / groups, taps); sizes: in, out, kernel, stride, pad,
// step of both dimensions.
extern "C" void secateurs_convolve(double* out, const double* map, const double* scale, const double* weight,
                                   const int64_t* sizes, int64_t maps, int64_t channels, int64_t outputs,
                                   int64_t groups, int64_t add, int64_t threads) {
    const Axis y{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    const Axis x{sizes[6], sizes[7], sizes[8], sizes[9], sizes[10], sizes[11]};
    const int64_t taps = y.kernel * x.kernel, each = outputs / groups, inputs = channels / groups;
    const int64_t values = channels * y.in * x.in, made = y.out * x.out, results = outputs * made;
    const int64_t numbers = outputs * inputs * taps, there = numbers - std::count(weight, weight + numbers, 0.0);
    // Of many channels more is read for nothing where weights are missing.
    const int64_t many = 5 * there > 2 * numbers ? MANY : FEW;
    // As many side by side as leave work for every thread and stay in the cache.
    const int64_t open = std::min({maps / threads / LANES, CACHED / (values * LANES), most_open(many)});
    const bool beside = groups == 1 && std::max(y.in * x.in, made) <= SMALL && open > 1;
    const Layer layer{y, x, channels, outputs, add, scale, parted(weight, outputs, each, inputs, y, x, beside ? many : FEW)};
    const int64_t wide = beside ? open * LANES : 1;
#pragma omp parallel num_threads(threads)
    {
        std::optional<Places> places;
        std::optional<Beside> side;
        if (beside) side.emplace(layer, open);
        else places.emplace(layer);
#pragma omp for schedule(dynamic)
        for (int64_t n = 0; n < maps; n += wide) {
            double* to = out + n * results;
            const double* from = map + n * values;
            if (beside) side->convolve(to, from, std::min(wide, maps - n));
            else places->convolve(to, from);
        }
    }
}

// total += |map| of all maps.
extern "C" void secateurs_add_sizes(double* total, const double* map, int64_t maps, int64_t size, int64_t threads) {
    constexpr int64_t PIECE = 512;
#pragma omp parallel for num_threads(threads)
    for (int64_t begin = 0; begin < size; begin += PIECE) {
        const int64_t end = std::min(size, begin + PIECE);
        for (int64_t n = 0; n < maps; ++n)
            for (int64_t i = begin; i < end; ++i) total[i] += std::abs(map[n * size + i]);
    }
}
