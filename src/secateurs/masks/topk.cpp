// The largest entries of many tensors, exactly so many, in one pass: a sample brackets the threshold, the pass keeps
// what lies above the bracket and gathers what lies inside, and the few gathered entries are then ranked exactly.
//
// Plain C interface, no torch headers. The pure-torch oracle is `_streamed` in topk.py; tests compare the two on the
// case grid. The sample decides how long it takes, never what is kept: a bracket that misses the rank, or holds more
// than the buffer does (many ties), is told to the caller, who then streams.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__)
#define SECATEURS_AVX512
#endif

#if defined(__SSE2__)
#include <immintrin.h>
struct ExactDenormals {  // comparisons must see denormals, whatever torch.set_flush_denormal says
    unsigned saved = _mm_getcsr();
    ExactDenormals() { _mm_setcsr(saved & ~0x8040u); }
    ~ExactDenormals() { _mm_setcsr(saved); }
};
#else
struct ExactDenormals {
    ExactDenormals() {}
    ~ExactDenormals() {}
};
#endif

namespace {

constexpr int64_t BLOCK = 256;          // one sampled entry per block
constexpr int64_t STEP = 64;            // entries looked at together
constexpr int64_t SPAN = 1 << 16;       // entries per unit of work
constexpr int64_t ROOM = 1 << 20;       // candidates gathered at most (16 MB), or 1 % of the entries if that is more
constexpr double DEVIATIONS = 4.5;      // half width of the bracket in standard deviations of the sample's rank

struct Span {
    int64_t tensor, begin, end;
};

template <typename T>
struct Candidate {
    T value;
    uint8_t* place;
};

template <typename T, bool ABSOLUTE>
inline T key(T x) {
    return ABSOLUTE ? std::fabs(x) : x;
}

// Sixty-four flags as the bits of one word: a block is then counted and walked without a branch per entry.
#if defined(SECATEURS_AVX512)

inline uint64_t bits(const uint8_t* bytes) {
    const __m512i block = _mm512_loadu_si512(bytes);
    return _mm512_test_epi8_mask(block, block);
}

inline void bytes(uint64_t bits, uint8_t* out) { _mm512_storeu_si512(out, _mm512_maskz_set1_epi8(bits, 1)); }

template <bool ABSOLUTE>
inline void compare(const float* x, float low, float high, uint64_t& above, uint64_t& inside) {
    const __m512 least = _mm512_set1_ps(low), most = _mm512_set1_ps(high);
    for (int64_t i = 0; i < STEP; i += 16) {
        const __m512 read = _mm512_loadu_ps(x + i), value = ABSOLUTE ? _mm512_abs_ps(read) : read;
        const __mmask16 over = _mm512_cmp_ps_mask(value, most, _CMP_GT_OQ);
        const __mmask16 from = _mm512_cmp_ps_mask(value, least, _CMP_GE_OQ);
        above |= uint64_t(over) << i;
        inside |= uint64_t(uint16_t(from & ~over)) << i;
    }
}

template <bool ABSOLUTE>
inline void compare(const double* x, double low, double high, uint64_t& above, uint64_t& inside) {
    const __m512d least = _mm512_set1_pd(low), most = _mm512_set1_pd(high);
    for (int64_t i = 0; i < STEP; i += 8) {
        const __m512d read = _mm512_loadu_pd(x + i), value = ABSOLUTE ? _mm512_abs_pd(read) : read;
        const __mmask8 over = _mm512_cmp_pd_mask(value, most, _CMP_GT_OQ);
        const __mmask8 from = _mm512_cmp_pd_mask(value, least, _CMP_GE_OQ);
        above |= uint64_t(over) << i;
        inside |= uint64_t(uint8_t(from & ~over)) << i;
    }
}

#else

inline uint64_t bits(const uint8_t* bytes) {
    uint64_t found = 0;
    for (int64_t word = 0; word < STEP; word += 8) {
        uint64_t flags = 0;
        for (int64_t i = 0; i < 8; ++i) flags |= uint64_t(bytes[word + i] != 0) << i;
        found |= flags << word;
    }
    return found;
}

inline void bytes(uint64_t bits, uint8_t* out) {
    for (int64_t i = 0; i < STEP; ++i) out[i] = bits >> i & 1;
}

template <bool ABSOLUTE, typename T>
inline void compare(const T* x, T low, T high, uint64_t& above, uint64_t& inside) {
    uint8_t over[STEP], within[STEP];
    for (int64_t i = 0; i < STEP; ++i) {
        const T value = key<T, ABSOLUTE>(x[i]);
        over[i] = value > high;
        within[i] = (value >= low) & (value <= high);
    }
    above = bits(over);
    inside = bits(within);
}

#endif

inline int count(uint64_t bits) { return __builtin_popcountll(bits); }
inline int first(uint64_t bits) { return __builtin_ctzll(bits); }

// A fixed pseudo-random offset per block: a regular grid would meet the same row or tap of a kernel again and again.
inline int64_t offset(uint64_t block) {
    block = (block + 1) * 0x9E3779B97F4A7C15ull;
    block = (block ^ (block >> 30)) * 0xBF58476D1CE4E5B9ull;
    return int64_t((block ^ (block >> 27)) >> 40) % BLOCK;
}

int64_t counted(const uint8_t* mask, int64_t size) {
    int64_t total = 0;
    for (int64_t begin = 0; begin < size; begin += 4096) {
        const int64_t end = std::min(begin + 4096, size);
        uint32_t part = 0;
        for (int64_t i = begin; i < end; ++i) part += mask[i] != 0;
        total += part;
    }
    return total;
}

template <typename T, bool ABSOLUTE>
std::vector<T> sampled(int64_t tensors, const T* const* scores, const uint8_t* const* within, const int64_t* sizes) {
    constexpr int64_t AHEAD = 16;  // entries far apart: memory is asked for them before they are needed
    std::vector<T> sample;
    uint64_t block = 0;
    for (int64_t t = 0; t < tensors; ++t)
        for (int64_t begin = 0; begin < sizes[t]; begin += BLOCK) {
            const int64_t next = begin + AHEAD * BLOCK + offset(block + AHEAD);
            if (next < sizes[t]) {
                __builtin_prefetch(scores[t] + next);
                if (within[t]) __builtin_prefetch(within[t] + next);
            }
            const int64_t i = begin + offset(block++);
            if (i >= sizes[t] || (within[t] && !within[t][i])) continue;
            const T value = key<T, ABSOLUTE>(scores[t][i]);
            if (value == value) sample.push_back(value);  // NaN, which callers refuse, would derail nth_element
        }
    return sample;
}

// Values between which the `share` largest end, all but surely; `low` and `high` are both inside.
template <typename T>
void bracket(std::vector<T>& sample, double share, T& low, T& high) {
    const int64_t size = sample.size();
    const double rank = share * size, spread = DEVIATIONS * std::sqrt(rank * (1 - share)) + 8;
    const int64_t first = int64_t(rank - spread), last = int64_t(rank + spread) + 1;
    high = std::numeric_limits<T>::infinity();
    low = -high;
    auto start = sample.begin();
    if (rank > spread && first < size) {
        std::nth_element(start, start + first, sample.end(), std::greater<T>());
        high = sample[first];
        start += first;
    }
    if (last < size) {
        std::nth_element(start, sample.begin() + last, sample.end(), std::greater<T>());
        low = sample[last];
    }
}

// One unit of work: the mask of what lies above the bracket, the candidates inside it; how many lay above.
template <typename T, bool ABSOLUTE>
int64_t sift(const T* scores, const uint8_t* within, uint8_t* mask, int64_t size, T low, T high, int64_t room,
             std::vector<Candidate<T>>& found) {
    int64_t total = 0;
    T last[STEP];
    uint8_t tail[STEP];
    for (int64_t begin = 0; begin < size; begin += STEP) {
        const int64_t length = std::min(STEP, size - begin);
        const T* x = scores + begin;
        const uint8_t* allowed = within ? within + begin : nullptr;
        uint8_t* kept = mask + begin;
        if (length < STEP) {  // the rest of a block is filled with what is never chosen
            std::fill(std::copy(x, x + length, last), last + STEP, std::numeric_limits<T>::quiet_NaN());
            x = last;
            if (within) std::fill(std::copy(allowed, allowed + length, tail), tail + STEP, uint8_t(0)), allowed = tail;
        }
        const uint64_t open = within ? bits(allowed) : ~uint64_t(0);
        uint64_t above = 0, inside = 0;
        if (open) compare<ABSOLUTE>(x, low, high, above, inside);
        above &= open;
        total += count(above);
        if (length == STEP) bytes(above, kept);
        else for (int64_t i = 0; i < length; ++i) kept[i] = above >> i & 1;
        for (inside &= open; inside; inside &= inside - 1) {
            const int i = first(inside);
            found.push_back({key<T, ABSOLUTE>(x[i]), kept + i});
        }
        if (int64_t(found.size()) > room) return total;
    }
    return total;
}

// Keep the `wanted` largest candidates; of equal ones the earlier, and they are in order.
template <typename T>
void settle(const std::vector<std::vector<Candidate<T>>>& parts, int64_t wanted) {
    std::vector<T> values;
    for (const auto& part : parts)
        for (const auto& candidate : part) values.push_back(candidate.value);
    std::nth_element(values.begin(), values.begin() + (wanted - 1), values.end(), std::greater<T>());
    const T cut = values[wanted - 1];
    int64_t ties = wanted;
    for (int64_t i = 0; i < wanted; ++i) ties -= values[i] > cut;
    for (const auto& part : parts)
        for (const auto& candidate : part) {
            const bool tied = candidate.value == cut && ties > 0;
            ties -= tied;
            *candidate.place = candidate.value > cut || tied;
        }
}

template <typename T, bool ABSOLUTE>
int64_t largest(int64_t tensors, const T* const* scores, const uint8_t* const* within, uint8_t* const* masks,
                const int64_t* sizes, int64_t count, int64_t room, int64_t threads) {
    const ExactDenormals exact;
    int64_t entries = 0, allowed = room < 0 ? 0 : room;
    for (int64_t t = 0; t < tensors; entries += sizes[t++])
        if (room < 0) allowed += within[t] ? counted(within[t], sizes[t]) : sizes[t];
    if (count > allowed) return 0;
    std::vector<T> sample = sampled<T, ABSOLUTE>(tensors, scores, within, sizes);
    T low, high;
    bracket(sample, double(count) / allowed, low, high);
    std::vector<Span> spans;
    for (int64_t t = 0; t < tensors; ++t)
        for (int64_t begin = 0; begin < sizes[t]; begin += SPAN)
            spans.push_back({t, begin, std::min(begin + SPAN, sizes[t])});
    const int64_t most = std::max(ROOM, entries / 100);
    std::vector<std::vector<Candidate<T>>> parts(std::max<int64_t>(1, threads));
    int64_t above = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : above)
    {
        const ExactDenormals exact_here;
        int64_t me = 0, all = 1;
#if defined(_OPENMP)
        me = omp_get_thread_num(), all = omp_get_num_threads();
#endif
        const int64_t number = spans.size();
        for (int64_t s = number * me / all; s < number * (me + 1) / all; ++s) {  // in order: so are the candidates
            const Span& span = spans[s];
            above += sift<T, ABSOLUTE>(scores[span.tensor] + span.begin,
                                       within[span.tensor] ? within[span.tensor] + span.begin : nullptr,
                                       masks[span.tensor] + span.begin, span.end - span.begin, low, high, most,
                                       parts[me]);
            if (int64_t(parts[me].size()) > most) break;
        }
    }
    int64_t inside = 0;
    for (const auto& part : parts) inside += part.size();
    const bool full = std::any_of(parts.begin(), parts.end(), [&](const auto& p) { return int64_t(p.size()) > most; });
    if (full || count <= above || count > above + inside) return 0;
    settle(parts, count - above);
    return 1;
}

}  // namespace

extern "C" {

int64_t secateurs_count(const uint8_t* mask, int64_t size) { return counted(mask, size); }

// 1 when the masks are written; 0 when the caller has to find them otherwise (the masks are then undefined).
int64_t secateurs_largest_f32(int64_t tensors, const float* const* scores, const uint8_t* const* within,
                              uint8_t* const* masks, const int64_t* sizes, int64_t count, int64_t room, int64_t absolute,
                              int64_t threads) {
    return absolute ? largest<float, true>(tensors, scores, within, masks, sizes, count, room, threads)
                    : largest<float, false>(tensors, scores, within, masks, sizes, count, room, threads);
}

int64_t secateurs_largest_f64(int64_t tensors, const double* const* scores, const uint8_t* const* within,
                              uint8_t* const* masks, const int64_t* sizes, int64_t count, int64_t room, int64_t absolute,
                              int64_t threads) {
    return absolute ? largest<double, true>(tensors, scores, within, masks, sizes, count, room, threads)
                    : largest<double, false>(tensors, scores, within, masks, sizes, count, room, threads);
}

}  // extern "C"
