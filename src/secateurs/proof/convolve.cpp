// Convolutions of many maps in float64, most of them zero but for a window: what a zonotope's generators are in the
// first layers of a network. torch writes out every window of a kernel before it multiplies, which takes longer than the
// products of some dozens of channels.
//
// What a map's window of the result reads is copied, each phase of a stride apart, so that the result at
// p = row · width + column sums entries at p + offset, whatever the kernel and the stride: long loops over p, with some
// columns at the end of each row that nobody reads. Weights that are zero for all channels of a block are left out.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {

#ifdef __AVX512F__
constexpr int64_t LANES = 8, BLOCKS = 4;  // doubles moved together, and how many such sums of a channel are open
#else
constexpr int64_t LANES = 4, BLOCKS = 3;
#endif
constexpr int64_t CHANNELS = 4;  // of the result, summed together
constexpr int64_t STEP = LANES * BLOCKS;

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
    // The first of `count` places from `start` on that reads an input, and the first behind these.
    int64_t inside(int64_t start, int64_t phase, int64_t count) const {
        return std::clamp<int64_t>((stride - 1 - read(start, phase)) / stride, 0, count);
    }
    int64_t outside(int64_t start, int64_t phase, int64_t count) const {
        const int64_t left = in - read(start, phase);
        return std::max(inside(start, phase, count), left <= 0 ? 0 : std::min(count, (left + stride - 1) / stride));
    }
};

// The weights of some channels of the result: CHANNELS of each input that is not zero for all of them.
struct Block {
    int64_t first, count;
    std::vector<int64_t> input;  // channel · taps + tap
    std::vector<double> weight;
};

template <int64_t COUNT, int64_t OPEN>
void sums(double* out, int64_t plane, const double* map, const Block& block, const int64_t* offsets) {
    Lanes total[COUNT][OPEN] = {};
    const double* weight = block.weight.data();
    for (const int64_t each : block.input) {
        const double* from = map + offsets[each];
        Lanes x[OPEN];
        for (int64_t b = 0; b < OPEN; ++b) x[b] = *reinterpret_cast<const Lanes*>(from + b * LANES);
        for (int64_t k = 0; k < COUNT; ++k)
            for (int64_t b = 0; b < OPEN; ++b) total[k][b] += weight[k] * x[b];
        weight += CHANNELS;
    }
    for (int64_t k = 0; k < COUNT; ++k) std::memcpy(out + k * plane, total[k], sizeof(total[k]));
}

// A loop whose lengths the compiler knows.
template <typename Use>
void with(int64_t value, Use use) {
    if (value >= 4) use(std::integral_constant<int64_t, 4>{});
    else if (value == 3) use(std::integral_constant<int64_t, 3>{});
    else if (value == 2) use(std::integral_constant<int64_t, 2>{});
    else use(std::integral_constant<int64_t, 1>{});
}

}  // namespace

// out (maps, outputs, y.out, x.out) = or += the convolution of map · scale; map (maps, channels, y.in, x.in), scale of
// the same size for all maps, or null; weight (outputs, channels / groups, taps); sizes: in, out, kernel, stride, pad,
// step of both dimensions.
extern "C" void secateurs_convolve(double* out, const double* map, const double* scale, const double* weight,
                                   const int64_t* sizes, int64_t maps, int64_t channels, int64_t outputs,
                                   int64_t groups, int64_t add, int64_t threads) {
    const Axis y{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    const Axis x{sizes[6], sizes[7], sizes[8], sizes[9], sizes[10], sizes[11]};
    const int64_t inputs = channels / groups, each = outputs / groups, taps = y.kernel * x.kernel;
    const int64_t size = y.in * x.in, made = y.out * x.out, phases = y.stride * x.stride;
    std::vector<Block> blocks;
    for (int64_t o = 0; o < outputs; o += blocks.back().count) {
        Block block{o, std::min(CHANNELS, each - o % each), {}, {}};
        for (int64_t i = 0; i < inputs * taps; ++i) {
            double own[CHANNELS] = {};
            for (int64_t k = 0; k < block.count; ++k) own[k] = weight[(o + k) * inputs * taps + i];
            if (std::all_of(own, own + CHANNELS, [](double w) { return w == 0; })) continue;
            block.input.push_back(o / each * inputs * taps + i);
            block.weight.insert(block.weight.end(), own, own + CHANNELS);
        }
        blocks.push_back(std::move(block));
    }
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> scaled(channels * size), window, found;
        std::vector<int64_t> offsets(channels * taps);
        std::vector<uint64_t> down(y.in), right(x.in);
#pragma omp for schedule(dynamic)
        for (int64_t n = 0; n < maps; ++n) {
            const double* from = map + n * channels * size;
            double* to = out + n * outputs * made;
            std::fill(down.begin(), down.end(), 0), std::fill(right.begin(), right.end(), 0);
            for (int64_t row = 0; row < channels * y.in; ++row) {
                uint64_t any = 0;
                double* own = scaled.data() + row * x.in;
                for (int64_t j = 0; j < x.in; ++j) {
                    own[j] = scale ? from[row * x.in + j] * scale[row * x.in + j] : from[row * x.in + j];
                    uint64_t bits;
                    std::memcpy(&bits, own + j, sizeof bits);
                    bits <<= 1;  // without the sign
                    any |= bits, right[j] |= bits;
                }
                down[row % y.in] |= any;
            }
            int64_t top = 0, left = 0, bottom = y.in, end = x.in, first, rows, start, columns;
            while (top < bottom && !down[top]) ++top;
            while (bottom > top && !down[bottom - 1]) --bottom;
            while (left < end && !right[left]) ++left;
            while (end > left && !right[end - 1]) --end;
            y.reached(top, bottom - 1, &first, &rows), x.reached(left, end - 1, &start, &columns);
            const bool none = top == bottom || rows == 0 || columns == 0;
            if (!add && (none || rows < y.out || columns < x.out)) std::fill_n(to, outputs * made, 0.0);
            if (none) continue;

            const int64_t height = rows + y.further(), width = columns + x.further(), plane = height * width;
            const int64_t places = (rows - 1) * width + columns, padded = (places + STEP - 1) / STEP * STEP;
            window.resize(channels * phases * plane + STEP), found.resize(CHANNELS * padded);
            double* copy = window.data();
            for (int64_t c = 0; c < channels; ++c)
                for (int64_t a = 0; a < y.stride; ++a)
                    for (int64_t b = 0; b < x.stride; ++b)
                        for (int64_t r = 0; r < height; ++r, copy += width) {
                            const int64_t i = y.read(first + r, a), low = x.inside(start, b, width);
                            const int64_t high = i < 0 || i >= y.in ? low : x.outside(start, b, width);
                            const double* row = scaled.data() + c * size + i * x.in + x.read(start, b);
                            std::fill(copy, copy + low, 0.0), std::fill(copy + high, copy + width, 0.0);
                            if (x.stride == 1)
                                std::copy(row + low, row + high, copy + low);
                            else
                                for (int64_t q = low; q < high; ++q) copy[q] = row[q * x.stride];
                        }
            for (int64_t c = 0; c < channels; ++c)
                for (int64_t i = 0; i < y.kernel; ++i)
                    for (int64_t j = 0; j < x.kernel; ++j) {
                        const int64_t u = i * y.step, v = j * x.step;
                        const int64_t phase = c * phases + u % y.stride * x.stride + v % x.stride;
                        offsets[c * taps + i * x.kernel + j] = phase * plane + u / y.stride * width + v / x.stride;
                    }
            for (const Block& block : blocks) {
                for (int64_t p = 0; p < places; p += STEP)
                    with(block.count, [&](auto count) {
                        with(std::min(BLOCKS, (places - p + LANES - 1) / LANES), [&](auto open) {
                            sums<count, open>(found.data() + p, padded, window.data() + p, block, offsets.data());
                        });
                    });
                for (int64_t k = 0; k < block.count; ++k)
                    for (int64_t r = 0; r < rows; ++r) {
                        const double* own = found.data() + k * padded + r * width;
                        double* there = to + (block.first + k) * made + (first + r) * x.out + start;
                        if (add)
                            for (int64_t q = 0; q < columns; ++q) there[q] += own[q];
                        else
                            std::copy_n(own, columns, there);
                    }
            }
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
