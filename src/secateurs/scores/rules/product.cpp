// gradient *= weight, and what a score has to know of the product, in the same pass: is an entry negative, is one NaN or
// infinite.
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t SPAN = 1 << 16;  // entries per unit of work
constexpr int NEGATIVE = 1, BROKEN = 2;

template <typename T, typename BITS>
int span(T* __restrict gradient, const T* __restrict weight, int64_t size, BITS infinity) {
    // The bits of a float without its sign are ordered as its magnitude is, with NaN above infinity. Maxima of integers
    // are vectorised as they stand; those of floats are not, because of NaN.
    BITS largest = 0, negative = 0;
    for (int64_t i = 0; i < size; ++i) {
        const T product = gradient[i] * weight[i];
        gradient[i] = product;
        BITS bits;
        std::memcpy(&bits, &product, sizeof(T));
        largest = std::max(largest, BITS(bits & (BITS(-1) >> 1)));
        negative |= BITS(product < 0);
    }
    return (negative ? NEGATIVE : 0) | (largest >= infinity ? BROKEN : 0);
}

template <typename T, typename BITS>
int64_t product(T* gradient, const T* weight, int64_t size, int64_t threads, BITS infinity) {
    const int64_t spans = (size + SPAN - 1) / SPAN;
    int found = 0;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && spans > 1) reduction(| : found)
    for (int64_t s = 0; s < spans; ++s)
        found |= span<T, BITS>(gradient + s * SPAN, weight + s * SPAN, std::min(SPAN, size - s * SPAN), infinity);
    return found;
}

}  // namespace

extern "C" {

int64_t secateurs_product_f32(float* gradient, const float* weight, int64_t size, int64_t threads) {
    return product<float, uint32_t>(gradient, weight, size, threads, 0x7f800000u);
}

int64_t secateurs_product_f64(double* gradient, const double* weight, int64_t size, int64_t threads) {
    return product<double, uint64_t>(gradient, weight, size, threads, 0x7ff0000000000000ull);
}

}  // extern "C"
