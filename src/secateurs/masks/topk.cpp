// The largest entries of many tensors, exactly so many, in one pass: a sample brackets the threshold, the pass keeps
// what lies above the bracket and gathers what lies inside, and the few gathered entries are then ranked exactly.
//
// The entries ranked may be products of two tensors, such as |gradient · weight|: they are then never written, and the
// weights that lose their place are set to zero as they pass.
//
// Plain C interface, no torch headers. `stream_largest_` in topk.py is the same in torch alone; tests compare the two on
// the case grid. The sample decides how long it takes, never what is kept: a bracket that misses the rank, or holds more
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
    int32_t tensor;
    int64_t index;
};

// One tensor: scores, or factors of scores where there are `weights`, by which they are multiplied.
template <typename T>
struct Entries {
    const T* scores;
    T* weights;
    const uint8_t* within;
    uint8_t* mask;
    int64_t size;
    int64_t kept;
};

enum class Key { PLAIN, ABSOLUTE, PRODUCT };

template <typename T, Key KEY>
inline T key(const T* scores, const T* weights, int64_t i) {
    const T x = KEY == Key::PRODUCT ? scores[i] * weights[i] : scores[i];
    return KEY == Key::PLAIN ? x : std::fabs(x);
}

// Sixty-four flags as the bits of one word: a block is then counted and walked without a branch per entry.
#if defined(SECATEURS_AVX512)

inline uint64_t bits(const uint8_t* bytes) {
    const __m512i block = _mm512_loadu_si512(bytes);
    return _mm512_test_epi8_mask(block, block);
}

inline void bytes(uint64_t bits, uint8_t* out) { _mm512_storeu_si512(out, _mm512_maskz_set1_epi8(bits, 1)); }

// `finite` turns false where a product is infinite or NaN; scores were looked at before.
template <Key KEY>
inline void compare(const float* x, const float* w, float low, float high, uint64_t& above, uint64_t& inside,
                    bool& finite) {
    const __m512 least = _mm512_set1_ps(low), most = _mm512_set1_ps(high);
    const __m512 infinity = _mm512_set1_ps(std::numeric_limits<float>::infinity());
    __mmask16 broken = 0;
    for (int64_t i = 0; i < STEP; i += 16) {
        __m512 value = _mm512_loadu_ps(x + i);
        if (KEY == Key::PRODUCT) value = _mm512_mul_ps(value, _mm512_loadu_ps(w + i));
        if (KEY != Key::PLAIN) value = _mm512_abs_ps(value);
        if (KEY == Key::PRODUCT) broken |= _mm512_cmp_ps_mask(value, infinity, _CMP_NLT_UQ);
        const __mmask16 over = _mm512_cmp_ps_mask(value, most, _CMP_GT_OQ);
        const __mmask16 from = _mm512_cmp_ps_mask(value, least, _CMP_GE_OQ);
        above |= uint64_t(over) << i;
        inside |= uint64_t(uint16_t(from & ~over)) << i;
    }
    finite &= !broken;
}

template <Key KEY>
inline void compare(const double* x, const double* w, double low, double high, uint64_t& above, uint64_t& inside,
                    bool& finite) {
    const __m512d least = _mm512_set1_pd(low), most = _mm512_set1_pd(high);
    const __m512d infinity = _mm512_set1_pd(std::numeric_limits<double>::infinity());
    __mmask8 broken = 0;
    for (int64_t i = 0; i < STEP; i += 8) {
        __m512d value = _mm512_loadu_pd(x + i);
        if (KEY == Key::PRODUCT) value = _mm512_mul_pd(value, _mm512_loadu_pd(w + i));
        if (KEY != Key::PLAIN) value = _mm512_abs_pd(value);
        if (KEY == Key::PRODUCT) broken |= _mm512_cmp_pd_mask(value, infinity, _CMP_NLT_UQ);
        const __mmask8 over = _mm512_cmp_pd_mask(value, most, _CMP_GT_OQ);
        const __mmask8 from = _mm512_cmp_pd_mask(value, least, _CMP_GE_OQ);
        above |= uint64_t(over) << i;
        inside |= uint64_t(uint8_t(from & ~over)) << i;
    }
    finite &= !broken;
}

inline void clear(float* weights, uint64_t cut) {
    for (int64_t i = 0; i < STEP; i += 16)
        if (const __mmask16 some = cut >> i) _mm512_mask_storeu_ps(weights + i, some, _mm512_setzero_ps());
}

inline void clear(double* weights, uint64_t cut) {
    for (int64_t i = 0; i < STEP; i += 8)
        if (const __mmask8 some = cut >> i) _mm512_mask_storeu_pd(weights + i, some, _mm512_setzero_pd());
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

template <Key KEY, typename T>
inline void compare(const T* x, const T* w, T low, T high, uint64_t& above, uint64_t& inside, bool& finite) {
    uint8_t over[STEP], within[STEP], broken = 0;
    for (int64_t i = 0; i < STEP; ++i) {
        const T value = key<T, KEY>(x, w, i);
        over[i] = value > high;
        within[i] = (value >= low) & (value <= high);
        broken |= KEY == Key::PRODUCT && !(value < std::numeric_limits<T>::infinity());
    }
    above = bits(over);
    inside = bits(within);
    finite &= !broken;
}

template <typename T>
inline void clear(T* weights, uint64_t cut) {
    for (; cut; cut &= cut - 1) weights[__builtin_ctzll(cut)] = 0;
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

template <typename T, Key KEY>
std::vector<T> sampled(const std::vector<Entries<T>>& all) {
    constexpr int64_t AHEAD = 16;  // entries far apart: memory is asked for them before they are needed
    std::vector<T> sample;
    uint64_t block = 0;
    for (const Entries<T>& one : all)
        for (int64_t begin = 0; begin < one.size; begin += BLOCK) {
            const int64_t next = begin + AHEAD * BLOCK + offset(block + AHEAD);
            if (next < one.size) {
                __builtin_prefetch(one.scores + next);
                if (KEY == Key::PRODUCT) __builtin_prefetch(one.weights + next);
                if (one.within) __builtin_prefetch(one.within + next);
            }
            const int64_t i = begin + offset(block++);
            if (i >= one.size || (one.within && !one.within[i])) continue;
            const T value = key<T, KEY>(one.scores, one.weights, i);
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

// What one thread has found so far.
template <typename T>
struct Sifted {
    std::vector<Candidate<T>> inside;
    std::vector<int64_t> above;  // of each tensor
    bool finite = true;
};

// One unit of work: the mask of what lies above the bracket, the candidates inside it; what lies below loses its weight.
template <typename T, Key KEY>
void sift(const Entries<T>& one, const Span& span, T low, T high, int64_t room, Sifted<T>& found) {
    int64_t total = 0;
    T last[2][STEP];
    uint8_t tail[STEP];
    for (int64_t begin = span.begin; begin < span.end; begin += STEP) {
        const int64_t length = std::min(STEP, span.end - begin);
        const T *x = one.scores + begin, *w = KEY == Key::PRODUCT ? one.weights + begin : nullptr;
        const uint8_t* allowed = one.within ? one.within + begin : nullptr;
        uint8_t* kept = one.mask + begin;
        uint64_t open = ~uint64_t(0);
        if (length < STEP) {  // the rest of a block is filled with what is never chosen
            std::fill(std::copy(x, x + length, last[0]), last[0] + STEP, T(0));
            x = last[0];
            if (w) std::fill(std::copy(w, w + length, last[1]), last[1] + STEP, T(0)), w = last[1];
            if (allowed) std::fill(std::copy(allowed, allowed + length, tail), tail + STEP, uint8_t(0)), allowed = tail;
            open >>= STEP - length;
        }
        if (allowed) open &= bits(allowed);
        uint64_t above = 0, inside = 0;
        if (open || KEY == Key::PRODUCT) compare<KEY>(x, w, low, high, above, inside, found.finite);
        above &= open;
        inside &= open;
        total += count(above);
        if (length == STEP) bytes(above, kept);
        else for (int64_t i = 0; i < length; ++i) kept[i] = above >> i & 1;
        if (KEY == Key::PRODUCT) {
            const uint64_t cut = open & ~above & ~inside;
            if (length == STEP) clear(one.weights + begin, cut);
            else for (int64_t i = 0; i < length; ++i) if (cut >> i & 1) one.weights[begin + i] = 0;
        }
        for (; inside; inside &= inside - 1) {
            const int i = first(inside);
            found.inside.push_back({key<T, KEY>(x, w, i), int32_t(span.tensor), begin + i});
        }
        if (int64_t(found.inside.size()) > room) break;
    }
    found.above[span.tensor] += total;
}

// Keep the `wanted` largest candidates; they are in order, so the first of equal ones stay (the rule in masks/topk.py).
template <typename T>
void settle(const std::vector<Sifted<T>>& parts, int64_t wanted, std::vector<Entries<T>>& all) {
    std::vector<T> values;
    for (const auto& part : parts)
        for (const auto& candidate : part.inside) values.push_back(candidate.value);
    std::nth_element(values.begin(), values.begin() + (wanted - 1), values.end(), std::greater<T>());
    const T cut = values[wanted - 1];
    int64_t ties = wanted;
    for (int64_t i = 0; i < wanted; ++i) ties -= values[i] > cut;
    for (const auto& part : parts)
        for (const auto& candidate : part.inside) {
            Entries<T>& one = all[candidate.tensor];
            const bool tied = candidate.value == cut && ties > 0, stays = candidate.value > cut || tied;
            ties -= tied;
            one.mask[candidate.index] = stays;
            one.kept += stays;
            if (one.weights && !stays) one.weights[candidate.index] = 0;
        }
}

template <typename T, Key KEY>
int64_t largest(std::vector<Entries<T>>& all, int64_t count, int64_t room, int64_t threads) {
    const ExactDenormals exact;
#if defined(__SSE2__)
    // Products would be flushed to zero elsewhere, and ranked here.
    if (KEY == Key::PRODUCT && (exact.saved & 0x8040u)) return 0;
#endif
    int64_t entries = 0, allowed = room < 0 ? 0 : room;
    for (const Entries<T>& one : all) {
        entries += one.size;
        if (room < 0) allowed += one.within ? counted(one.within, one.size) : one.size;
    }
    if (count > allowed) return 0;
    std::vector<T> sample = sampled<T, KEY>(all);
    T low, high;
    bracket(sample, double(count) / allowed, low, high);
    std::vector<Span> spans;
    for (int64_t t = 0; t < int64_t(all.size()); ++t)
        for (int64_t begin = 0; begin < all[t].size; begin += SPAN)
            spans.push_back({t, begin, std::min(begin + SPAN, all[t].size)});
    const int64_t most = std::max(ROOM, entries / 100);
    std::vector<Sifted<T>> parts(std::max<int64_t>(1, threads));
    for (auto& part : parts) part.above.resize(all.size());
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const ExactDenormals exact_here;
        int64_t me = 0, team = 1;
#if defined(_OPENMP)
        me = omp_get_thread_num(), team = omp_get_num_threads();
#endif
        const int64_t number = spans.size();
        for (int64_t s = number * me / team; s < number * (me + 1) / team; ++s) {  // in order: so are the candidates
            sift<T, KEY>(all[spans[s].tensor], spans[s], low, high, most, parts[me]);
            if (int64_t(parts[me].inside.size()) > most) break;
        }
    }
    int64_t above = 0, inside = 0;
    for (const auto& part : parts) {
        if (!part.finite || int64_t(part.inside.size()) > most) return 0;
        inside += part.inside.size();
        for (int64_t t = 0; t < int64_t(all.size()); ++t) all[t].kept += part.above[t], above += part.above[t];
    }
    if (count <= above || count > above + inside) return 0;
    settle(parts, count - above, all);
    return 1;
}

template <typename T>
std::vector<Entries<T>> gathered(int64_t tensors, const T* const* scores, T* const* weights,
                                 const uint8_t* const* within, uint8_t* const* masks, const int64_t* sizes) {
    std::vector<Entries<T>> all;
    for (int64_t t = 0; t < tensors; ++t)
        all.push_back({scores[t], weights ? weights[t] : nullptr, within[t], masks[t], sizes[t], 0});
    return all;
}

template <typename T>
int64_t of_scores(int64_t tensors, const T* const* scores, const uint8_t* const* within, uint8_t* const* masks,
                  const int64_t* sizes, int64_t count, int64_t room, int64_t absolute, int64_t threads) {
    auto all = gathered<T>(tensors, scores, nullptr, within, masks, sizes);
    return absolute ? largest<T, Key::ABSOLUTE>(all, count, room, threads)
                    : largest<T, Key::PLAIN>(all, count, room, threads);
}

template <typename T>
int64_t of_products(int64_t tensors, const T* const* factors, T* const* weights, const uint8_t* const* within,
                    uint8_t* const* masks, const int64_t* sizes, int64_t* kept, int64_t count, int64_t room,
                    int64_t threads) {
    auto all = gathered<T>(tensors, factors, weights, within, masks, sizes);
    const int64_t written = largest<T, Key::PRODUCT>(all, count, room, threads);
    for (int64_t t = 0; t < tensors; ++t) kept[t] = all[t].kept;
    return written;
}

}  // namespace

extern "C" {

// 1 when the masks are written; 0 when the caller has to find them otherwise (the masks are then undefined).
int64_t secateurs_largest_f32(int64_t tensors, const float* const* scores, const uint8_t* const* within,
                              uint8_t* const* masks, const int64_t* sizes, int64_t count, int64_t room, int64_t absolute,
                              int64_t threads) {
    return of_scores(tensors, scores, within, masks, sizes, count, room, absolute, threads);
}

int64_t secateurs_largest_f64(int64_t tensors, const double* const* scores, const uint8_t* const* within,
                              uint8_t* const* masks, const int64_t* sizes, int64_t count, int64_t room, int64_t absolute,
                              int64_t threads) {
    return of_scores(tensors, scores, within, masks, sizes, count, room, absolute, threads);
}

// As above for |factor · weight|; weights not kept are zero afterwards (undefined after 0), `kept` counts the others.
int64_t secateurs_cut_products_f32(int64_t tensors, const float* const* factors, float* const* weights,
                                   const uint8_t* const* within, uint8_t* const* masks, const int64_t* sizes,
                                   int64_t* kept, int64_t count, int64_t room, int64_t threads) {
    return of_products(tensors, factors, weights, within, masks, sizes, kept, count, room, threads);
}

int64_t secateurs_cut_products_f64(int64_t tensors, const double* const* factors, double* const* weights,
                                   const uint8_t* const* within, uint8_t* const* masks, const int64_t* sizes,
                                   int64_t* kept, int64_t count, int64_t room, int64_t threads) {
    return of_products(tensors, factors, weights, within, masks, sizes, kept, count, room, threads);
}

}  // extern "C"
