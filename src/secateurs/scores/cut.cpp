// target = whole where the mask is true, else 0, for a target that holds entries of whole, or zeros, already: from round
// to round few entries change, so it reads target and mask and writes only blocks that are wrong.
#include <algorithm>
#include <cstdint>

namespace {

constexpr int64_t STEP = 64;       // entries looked at together
constexpr int64_t SPAN = 1 << 16;  // entries per unit of work

template <typename BITS>
void span(BITS* __restrict target, const BITS* __restrict whole, const uint8_t* __restrict mask, int64_t size) {
    for (int64_t begin = 0; begin < size; begin += STEP) {
        const int64_t end = std::min(begin + STEP, size);
        BITS wrong = end - begin < STEP;
        if (!wrong)
            for (int64_t i = begin; i < begin + STEP; ++i) wrong |= BITS(target[i] != 0) ^ BITS(mask[i] != 0);
        if (!wrong) continue;
        for (int64_t i = begin; i < end; ++i) target[i] = whole[i] & -BITS(mask[i] != 0);
    }
}

template <typename BITS>
void cut(BITS* target, const BITS* whole, const uint8_t* mask, int64_t size, int64_t threads) {
    const int64_t spans = (size + SPAN - 1) / SPAN;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && spans > 1)
    for (int64_t s = 0; s < spans; ++s)
        span(target + s * SPAN, whole + s * SPAN, mask + s * SPAN, std::min(SPAN, size - s * SPAN));
}

}  // namespace

extern "C" {

void secateurs_cut_32(int32_t* target, const int32_t* whole, const uint8_t* mask, int64_t size, int64_t threads) {
    cut(target, whole, mask, size, threads);
}

void secateurs_cut_64(int64_t* target, const int64_t* whole, const uint8_t* mask, int64_t size, int64_t threads) {
    cut(target, whole, mask, size, threads);
}

}  // extern "C"
