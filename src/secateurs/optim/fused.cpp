// One fused step of SGD on the factors of a weight: every factor and momentum is read and written once.
//
// Plain C interface, no torch headers: it compiles in about a second and does not depend on the torch build.
// The pure-torch oracle is factors.step in factors.py; tests compare the two on the case grid.
#include <cmath>
#include <cstdint>
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

namespace {

constexpr int64_t CHUNK = 4096;  // one chunk of every factor and momentum stays in the L2 cache

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
        T omega[D], others[D], buffer[D], prefix = T(1), suffix = T(1), largest = T(0), product = T(1);
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
            const T size = std::fabs(omega[d]);
            largest = size > largest ? size : largest;
        }
        const T alive = largest < freeze ? T(0) : T(1);
#pragma GCC unroll 8
        for (int d = 0; d < D; ++d) {
            omega[d] *= alive;
            factors[d * n + i] = omega[d];
            if (HEAVY) momenta[d * n + i] = buffer[d] * alive;
            product *= omega[d];
        }
        weight[i] = flushed(product);
    }
}

template <typename T, int D>
void variant(T* w, const T* g, T* f, T* m, int64_t n, int64_t begin, int64_t end, const Rule& rule) {
    if (rule.momentum == 0) return span<T, D, false, false>(w, g, f, m, n, begin, end, rule);
    if (rule.nesterov) return span<T, D, true, true>(w, g, f, m, n, begin, end, rule);
    return span<T, D, true, false>(w, g, f, m, n, begin, end, rule);
}

template <typename T>
void dispatch(int64_t depth, T* w, const T* g, T* f, T* m, int64_t n, int64_t begin, int64_t end, const Rule& rule) {
    switch (depth) {
        case 2: return variant<T, 2>(w, g, f, m, n, begin, end, rule);
        case 3: return variant<T, 3>(w, g, f, m, n, begin, end, rule);
        case 4: return variant<T, 4>(w, g, f, m, n, begin, end, rule);
        case 5: return variant<T, 5>(w, g, f, m, n, begin, end, rule);
        case 6: return variant<T, 6>(w, g, f, m, n, begin, end, rule);
        case 7: return variant<T, 7>(w, g, f, m, n, begin, end, rule);
        case 8: return variant<T, 8>(w, g, f, m, n, begin, end, rule);
    }
}

template <typename T>
void step(int64_t count, void* const* weights, void* const* grads, void* const* factors, void* const* momenta,
          const int64_t* sizes, const int64_t* depths, const Rule* rules, int64_t threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        FlushDenormals flush;
        for (int64_t p = 0; p < count; ++p) {
            const int64_t n = sizes[p], chunks = (n + CHUNK - 1) / CHUNK;
#pragma omp for schedule(static) nowait
            for (int64_t c = 0; c < chunks; ++c) {
                const int64_t begin = c * CHUNK, end = begin + CHUNK < n ? begin + CHUNK : n;
                dispatch<T>(depths[p], static_cast<T*>(weights[p]), static_cast<const T*>(grads[p]),
                            static_cast<T*>(factors[p]), static_cast<T*>(momenta[p]), n, begin, end, rules[p]);
            }
        }
    }
}

}  // namespace

extern "C" {

void secateurs_step_f32(int64_t count, void* const* weights, void* const* grads, void* const* factors,
                        void* const* momenta, const int64_t* sizes, const int64_t* depths, const Rule* rules,
                        int64_t threads) {
    step<float>(count, weights, grads, factors, momenta, sizes, depths, rules, threads);
}

void secateurs_step_f64(int64_t count, void* const* weights, void* const* grads, void* const* factors,
                        void* const* momenta, const int64_t* sizes, const int64_t* depths, const Rule* rules,
                        int64_t threads) {
    step<double>(count, weights, grads, factors, momenta, sizes, depths, rules, threads);
}

}  // extern "C"
