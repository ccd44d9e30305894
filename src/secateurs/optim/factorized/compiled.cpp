// One fused step of SGD on the factors of all weights: every factor and momentum is read and written once.
//
// Two passes, so that a gradient that is not finite leaves everything as it was: `finite` reads the gradients (and leaves
// each thread's share of them in its cache) and a few of the weights, `step` moves.
// Plain C interface, no torch headers: it compiles in about a second and does not depend on the torch build.
// The pure-torch oracle is `step` in maths.py; tests compare the two on the case grid.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__SSE2__)
#include <immintrin.h>
struct FlushDenormals {  // flush-to-zero and denormals-are-zero while a thread works here, restored afterwards
    unsigned saved = _mm_getcsr();
    FlushDenormals() { _mm_setcsr(saved | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(saved); }
};
#else
struct FlushDenormals {
    FlushDenormals() {}
    ~FlushDenormals() {}
};
#endif

struct Rule {
    double lr, momentum, decay, freeze;  // decay = 2 lambda / D; freeze: weights whose factors all lie below it become 0
    int64_t nesterov, decoupled;
};

struct Job {  // one parameter; without momentum `momenta` is null
    void *weight, *factors, *momenta;
    int64_t size, depth, rule, width;  // rule: its number; width: bytes of one number, 4 or 8
};

namespace {

constexpr int64_t CHUNK = 1024;  // one chunk of every factor and momentum stays in the L1 or L2 cache

template <typename T>
inline T flushed(T x) {
    return std::fabs(x) < std::numeric_limits<T>::min() ? T(0) : x;
}

// Entries [begin, end) of one parameter; factor d of entry i lies at factors[d * n + i].
template <typename T, int D, bool HEAVY, bool NESTEROV>
void span(T* __restrict weight, const T* __restrict grad, T* __restrict factors, T* __restrict momenta, int64_t n,
          int64_t begin, int64_t end, const Rule& rule) {
    const T lr = T(rule.lr), mu = T(rule.momentum), freeze = T(rule.freeze);
    const T coupled = rule.decoupled ? T(0) : T(rule.decay);
    const T keep = rule.decoupled ? T(1.0 - rule.lr * rule.decay) : T(1);
#pragma GCC ivdep
    for (int64_t i = begin; i < end; ++i) {
        T omega[D], others[D], buffer[D], prefix = T(1), suffix = T(1);
        bool dead = true;
#pragma GCC unroll 8
        for (int d = 0; d < D; ++d) {
            omega[d] = factors[d * n + i];
            others[d] = prefix;
            prefix *= omega[d];
        }
#pragma GCC unroll 8
        for (int d = D - 1; d >= 0; --d) {
            others[d] *= suffix;
            suffix *= omega[d];
        }
#pragma GCC unroll 8
        for (int d = 0; d < D; ++d) {
            T move = grad[i] * others[d] + coupled * omega[d];
            if (HEAVY) {
                buffer[d] = flushed(mu * momenta[d * n + i] + move);
                move = NESTEROV ? move + mu * buffer[d] : buffer[d];
            }
            omega[d] = flushed(keep * omega[d] - lr * move);
            dead &= std::fabs(omega[d]) < freeze;  // never true of NaN
        }
        const T alive = dead ? T(0) : T(1);
#pragma GCC unroll 8
        for (int d = 0; d < D; ++d) {
            omega[d] *= alive;
            factors[d * n + i] = omega[d];
            if (HEAVY) momenta[d * n + i] = buffer[d] * alive;
        }
    }
    // A loop of its own: the lines of the weight are shared with the core that ran the other half of the forward pass.
    // Taking one back takes as long as a miss, and between 2D other stores they are taken back one at a time: measured
    // 1.1 ms instead of 0.35 for LeNet-300-100 when the two cores have no cache in common.
    for (int64_t i = begin; i < end; ++i) {
        T product = factors[i];
#pragma GCC unroll 8
        for (int d = 1; d < D; ++d) product *= factors[d * n + i];
        weight[i] = flushed(product);
    }
}

template <typename T, int D>
void variant(const Job& job, const Rule& rule, const T* g, int64_t begin, int64_t end) {
    T *w = static_cast<T*>(job.weight), *f = static_cast<T*>(job.factors), *m = static_cast<T*>(job.momenta);
    if (!m || rule.momentum == 0) return span<T, D, false, false>(w, g, f, m, job.size, begin, end, rule);
    if (rule.nesterov) return span<T, D, true, true>(w, g, f, m, job.size, begin, end, rule);
    return span<T, D, true, false>(w, g, f, m, job.size, begin, end, rule);
}

template <typename T>
void move(const Job& job, const Rule& rule, const void* grad, int64_t begin, int64_t end) {
    const T* g = static_cast<const T*>(grad);
    switch (job.depth) {
        case 2: return variant<T, 2>(job, rule, g, begin, end);
        case 3: return variant<T, 3>(job, rule, g, begin, end);
        case 4: return variant<T, 4>(job, rule, g, begin, end);
        case 5: return variant<T, 5>(job, rule, g, begin, end);
        case 6: return variant<T, 6>(job, rule, g, begin, end);
        case 7: return variant<T, 7>(job, rule, g, begin, end);
        case 8: return variant<T, 8>(job, rule, g, begin, end);
    }
}

// Whether an exponent is all ones: infinity or NaN. In integers, so that every compiler vectorises it.
template <typename Bits>
bool broken(const void* grad, int64_t begin, int64_t end, Bits exponent) {
    const char* source = static_cast<const char*>(grad);
    Bits found = 0;
    for (int64_t i = begin; i < end; ++i) {
        Bits bits;
        std::memcpy(&bits, source + i * sizeof(Bits), sizeof(Bits));
        found |= Bits((bits & exponent) == exponent);
    }
    return found != 0;
}

// Whether the weights are no product of their factors any more, as far as up to 4 lines of 64 bytes tell, evenly spread;
// those whose first number lies in [begin, end) are looked at. Every line is a cache miss: 4 of them cost less than one
// percent of a step of LeNet-300-100, 64 cost three.
template <typename T>
bool drifted(const Job& job, int64_t begin, int64_t end) {
    constexpr int64_t LINE = 64 / sizeof(T);
    const T *weight = static_cast<const T*>(job.weight), *factors = static_cast<const T*>(job.factors);
    const int64_t stride = ((job.size + 3) / 4 + LINE - 1) / LINE * LINE;
    int found = 0;
    for (int64_t line = (begin + stride - 1) / stride * stride; line < end; line += stride) {
        const int64_t last = line + LINE < job.size ? line + LINE : job.size;
        for (int64_t i = line; i < last; ++i) {
            T product = factors[i];
            for (int64_t d = 1; d < job.depth; ++d) product *= factors[d * job.size + i];
            found |= std::fabs(weight[i] - flushed(product)) > T(1e-3) * std::fabs(product);  // never true of NaN
        }
    }
    return found != 0;
}

// Calls work(p, begin, end) for all chunks of all jobs; the same chunks go to the same threads every time.
template <typename Work>
void share(const Job* jobs, int64_t count, int64_t threads, const Work& work) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FlushDenormals flush;
        for (int64_t p = 0; p < count; ++p) {
            const int64_t n = jobs[p].size, chunks = (n + CHUNK - 1) / CHUNK;
#pragma omp for schedule(static) nowait
            for (int64_t c = 0; c < chunks; ++c) work(p, c * CHUNK, c * CHUNK + CHUNK < n ? c * CHUNK + CHUNK : n);
        }
    }
}

}  // namespace

extern "C" {

// 0: a gradient is not finite; 1: all is well; 2: somebody else has changed the weights.
int64_t secateurs_finite(const Job* jobs, const void* const* grads, int64_t count, int64_t threads) {
    std::atomic<bool> bad{false}, changed{false};
    share(jobs, count, threads, [&](int64_t p, int64_t begin, int64_t end) {
        const bool found = jobs[p].width == 4 ? broken<uint32_t>(grads[p], begin, end, 0x7f800000u)
                                              : broken<uint64_t>(grads[p], begin, end, 0x7ff0000000000000u);
        if (found) bad.store(true, std::memory_order_relaxed);
        const bool moved = jobs[p].width == 4 ? drifted<float>(jobs[p], begin, end) : drifted<double>(jobs[p], begin, end);
        if (moved) changed.store(true, std::memory_order_relaxed);
    });
    return bad.load() ? 0 : changed.load() ? 2 : 1;
}

void secateurs_step(const Job* jobs, const void* const* grads, int64_t count, const Rule* rules, int64_t threads) {
    share(jobs, count, threads, [&](int64_t p, int64_t begin, int64_t end) {
        const auto go = jobs[p].width == 4 ? move<float> : move<double>;
        go(jobs[p], rules[jobs[p].rule], grads[p], begin, end);
    });
}

}  // extern "C"
