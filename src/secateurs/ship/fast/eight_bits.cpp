// Linear layers of 1x4 blocks in eight bits: rows x inputs -> rows x outputs.
//
// A row (token) is scaled by its largest number to -127..127 and shifted by 128; four neighbouring inputs are one word of 32
// bits, and a vector holds that word of sixteen rows. A block of four weights is then one broadcast and, for every sixteen
// rows, one instruction of 64 products (VNNI); sums are 32 bits, exact. In float four scattered non-zeros take four
// broadcasts and four instructions for the same. Measured: benchmarks/results/eight_bits.md.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <system_error>
#include <thread>
#include <vector>
#if defined(__AVX512F__) || defined(__AVXVNNI__)
#include <immintrin.h>
#endif

namespace {

constexpr int LANES = 16, ROWS = 128;
constexpr int64_t STRIDE = ROWS + LANES;  // an odd number of lines: words of one vector are not all in one cache set
constexpr int64_t WORTH_A_THREAD = 4000000;

struct alignas(64) Words {
    int32_t at[LANES];
};
struct alignas(64) Floats {
    float at[LANES];
};
// The compiler's own vectors, as wide as the processor allows.
typedef float Vec __attribute__((vector_size(4 * LANES)));
typedef int32_t Whole __attribute__((vector_size(4 * LANES)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

struct Layer {
    int64_t inputs, outputs;
    const int64_t* starts;    // [outputs + 1] into the blocks
    const int32_t* places;    // of each block: its first input / 4
    const int32_t* blocks;    // four weights each
    const int32_t* shifts;    // 128 times the sum of an output's weights
    const float *scale, *bias;
};

// sum += the four products of every lane.
inline void products(Words& sum, const int32_t* x, int32_t block) {
#if defined(__AVX512VNNI__)
    const __m512i made = _mm512_dpbusd_epi32(_mm512_load_si512(sum.at), _mm512_load_si512(x), _mm512_set1_epi32(block));
    _mm512_store_si512(sum.at, made);
#elif defined(__AVXVNNI__)
    for (int h = 0; h < LANES; h += 8) {
        auto* to = reinterpret_cast<__m256i*>(sum.at + h);
        const __m256i words = _mm256_load_si256(reinterpret_cast<const __m256i*>(x + h));
        _mm256_store_si256(to, _mm256_dpbusd_avx_epi32(_mm256_load_si256(to), words, _mm256_set1_epi32(block)));
    }
#else
    int8_t w[4];
    std::memcpy(w, &block, 4);
    const auto* bytes = reinterpret_cast<const uint8_t*>(x);
    for (int l = 0; l < LANES; ++l)
        for (int k = 0; k < 4; ++k) sum.at[l] += bytes[4 * l + k] * w[k];
#endif
}

// One output of T vectors of rows, two partial sums each so that none waits for itself.
template <int T>
void output(const int32_t* x, const Layer& layer, int64_t o, const float* scales, float* to) {
    constexpr int U = T >= 6 ? 1 : T >= 3 ? 2 : 4;
    Words sum[U][T] = {};
    int64_t k = layer.starts[o];
    const int64_t end = layer.starts[o + 1];
    for (; k + U <= end; k += U)
        for (int u = 0; u < U; ++u)
            for (int t = 0; t < T; ++t) products(sum[u][t], x + layer.places[k + u] * STRIDE + t * LANES, layer.blocks[k + u]);
    for (; k < end; ++k)
        for (int t = 0; t < T; ++t) products(sum[0][t], x + layer.places[k] * STRIDE + t * LANES, layer.blocks[k]);
    const float scale = layer.scale[o], bias = layer.bias[o];
    const int32_t shift = layer.shifts[o];
    for (int t = 0; t < T; ++t) {
        Words total = sum[0][t];
        for (int u = 1; u < U; ++u)
            for (int l = 0; l < LANES; ++l) total.at[l] += sum[u][t].at[l];
        Floats y;
        for (int l = 0; l < LANES; ++l) y.at[l] = float(total.at[l] - shift) * (scales[t * LANES + l] * scale) + bias;
        std::memcpy(to + t * LANES, y.at, sizeof y);
    }
}

using Output = void (*)(const int32_t*, const Layer&, int64_t, const float*, float*);
const Output OUTPUTS[] = {output<1>, output<2>, output<3>, output<4>, output<5>, output<6>, output<7>, output<8>};

// Sixteen rows of sixteen numbers of 32 bits become columns.
template <class N>
inline void turn(const N* from, int64_t stride, int64_t tall, int64_t wide, N* to, int64_t apart) {
#if defined(__AVX512F__)
    if (wide == LANES && tall > 0) {
        const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        __m512i row[LANES], next[LANES];
        for (int64_t i = 0; i < LANES; ++i) row[i] = i < tall ? _mm512_loadu_si512(from + i * stride) : _mm512_setzero_si512();
        for (int stage = 0; stage < 4; ++stage) {  // rows i and i + 8 are zipped, four times
            for (int i = 0; i < LANES / 2; ++i) {
                next[2 * i] = _mm512_permutex2var_epi32(row[i], low, row[i + LANES / 2]);
                next[2 * i + 1] = _mm512_permutex2var_epi32(row[i], high, row[i + LANES / 2]);
            }
            for (int i = 0; i < LANES; ++i) row[i] = next[i];
        }
        const __mmask16 some = tall >= LANES ? 0xffff : __mmask16((1 << tall) - 1);
        for (int i = 0; i < LANES; ++i) _mm512_mask_storeu_epi32(to + i * apart, some, row[i]);
        return;
    }
#endif
    for (int64_t r = 0; r < tall; ++r)
        for (int64_t i = 0; i < wide; ++i) to[i * apart + r] = from[r * stride + i];
}

// A row as bytes; a row with infinite numbers or NaN gets a scale of NaN, and so do all its outputs.
float quantized(const float* x, int64_t n, uint8_t* to) {
    constexpr int32_t ALL = 0x7f800000;  // the exponent of what is no number: told by bits, which no compiler folds away
    Vec most = {};
    Whole strange = {};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        Vec v;
        Whole bits;
        std::memcpy(&v, x + i, sizeof v), std::memcpy(&bits, x + i, sizeof bits);
        const Vec size = v < 0 ? -v : v;
        most = size > most ? size : most;
        strange |= (bits & ALL) == ALL;
    }
    float largest = 0;
    bool odd = false;
    for (int l = 0; l < LANES; ++l) largest = std::max(largest, most[l]), odd |= strange[l] != 0;
    for (; i < n; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        largest = std::max(largest, std::fabs(x[i])), odd |= (bits & ALL) == ALL;
    }
    const float by = largest > 0 ? 127.f / largest : 0;
    if (odd || by > std::numeric_limits<float>::max()) {
        std::fill_n(to, n, uint8_t(128));
        return odd ? std::numeric_limits<float>::quiet_NaN() : 0;  // numbers below 1e-36 are taken for zeros
    }
    for (i = 0; i + LANES <= n; i += LANES) {
        Vec v;
        std::memcpy(&v, x + i, sizeof v);
        const Bytes byte = __builtin_convertvector(__builtin_convertvector(v * by + 128.5f, Whole), Bytes);
        std::memcpy(to + i, &byte, sizeof byte);
    }
    for (; i < n; ++i) to[i] = uint8_t(int32_t(x[i] * by + 128.5f));  // positive: cut off is rounded
    return largest / 127.f;
}

// The caller's thread keeps its memory: new pages cost as much as the products of a layer.
struct Room {
    explicit Room(const Layer& layer) : words((layer.inputs + 3) / 4) {
        thread_local std::vector<uint8_t> kept_bytes;
        thread_local std::vector<int32_t> kept;
        const size_t most = words * STRIDE + 2 * LANES;
        if (kept.size() < most) kept.resize(most);
        if (kept_bytes.size() < size_t(ROWS * 4 * words + 64)) kept_bytes.resize(ROWS * 4 * words + 64);
        bytes = kept_bytes.data();
        turned = kept.data() + (64 - reinterpret_cast<uintptr_t>(kept.data()) % 64) % 64 / 4;
    }
    int64_t words;
    uint8_t* bytes;
    int32_t* turned;  // [words][STRIDE]
};

// Some rows of sixteen outputs, back to rows.
inline void back(float (&made)[LANES][ROWS], int64_t first, int64_t n, int64_t some, float* y, int64_t outputs) {
    Floats square[LANES];
    turn(&made[0][first], ROWS, LANES, LANES, square[0].at, LANES);
    for (int64_t r = 0; r < n; ++r) {
        if (some == LANES)
            std::memcpy(y + r * outputs, square[r].at, sizeof(Floats));
        else
            std::memcpy(y + r * outputs, square[r].at, some * sizeof(float));
    }
}

void rows(const Layer& layer, Room& room, const float* x, float* y, int64_t n) {
    const int64_t words = room.words, vectors = (n + LANES - 1) / LANES, outputs = layer.outputs;
    alignas(64) float scales[ROWS] = {}, made[LANES][ROWS] = {};
    for (int64_t r = 0; r < n; ++r) {
        uint8_t* to = room.bytes + r * 4 * words;
        scales[r] = quantized(x + r * layer.inputs, layer.inputs, to);
        for (int64_t i = layer.inputs; i < 4 * words; ++i) to[i] = 128;  // weights there are zero
    }
    const auto* bytes = reinterpret_cast<const int32_t*>(room.bytes);
    for (int64_t r = 0; r < n; r += LANES)
        for (int64_t w = 0; w < words; w += LANES)
            turn(bytes + r * words + w, words, std::min<int64_t>(LANES, n - r), std::min<int64_t>(LANES, words - w),
                 room.turned + w * STRIDE + r, STRIDE);
    const Output run = OUTPUTS[vectors - 1];
    for (int64_t o = 0; o < outputs; o += LANES) {
        const int64_t some = std::min<int64_t>(LANES, outputs - o);
        for (int64_t k = 0; k < some; ++k) run(room.turned, layer, o + k, scales, made[k]);
        for (int64_t r = 0; r < n; r += LANES) back(made, r, std::min<int64_t>(LANES, n - r), some, y + r * outputs + o, outputs);
    }
}

int pieces(const Layer& layer, const float* x, float* y, int64_t first, int64_t end) {
    try {
        Room room(layer);
        for (int64_t r = first; r < end; r += ROWS)
            rows(layer, room, x + r * layer.inputs, y + r * layer.outputs, std::min<int64_t>(ROWS, end - r));
    } catch (const std::bad_alloc&) {
        return 1;
    }
    return 0;
}

}  // namespace

// 0, or 1 where there is no memory.
extern "C" int eight_run(const Layer* layer, const float* x, float* y, int64_t n, int64_t threads) {
    const int64_t work = layer->inputs + layer->outputs + 4 * layer->starts[layer->outputs];
    const int64_t least = WORTH_A_THREAD / std::max<int64_t>(1, work) + 1;
    const int64_t even = (n + std::max<int64_t>(1, threads) - 1) / std::max<int64_t>(1, threads);
    const int64_t share = std::max<int64_t>(1, std::max(even, least));
    std::vector<std::thread> others;
    std::vector<int> failed((n + share - 1) / share + 1, 0);
    int64_t k = 1;
    for (int64_t first = share; first < n; first += share, ++k) {
        auto piece = [&, first, k] { failed[k] = pieces(*layer, x, y, first, std::min(n, first + share)); };
        try {
            others.emplace_back(piece);
        } catch (const std::system_error&) {  // no more threads to be had
            piece();
        }
    }
    failed[0] = pieces(*layer, x, y, 0, std::min(n, share));
    for (auto& other : others) other.join();
    return *std::max_element(failed.begin(), failed.end());
}

extern "C" int64_t eight_bytes() { return sizeof(Layer); }
