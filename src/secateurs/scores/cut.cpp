// target = whole where the mask is true, else 0, for a target that was cut by another mask before: from round to round
// few entries change, so only the masks are read (a byte per entry each), and only what changed is written.
#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t WORD = 8;        // flags looked at together
constexpr int64_t SPAN = 1 << 16;  // entries per unit of work

template <typename BITS>
void settle(BITS* target, const BITS* whole, const uint8_t* mask, uint8_t* last, int64_t i) {
    last[i] = mask[i] != 0;
    target[i] = last[i] ? whole[i] : 0;
}

template <typename BITS>
void span(BITS* target, const BITS* whole, const uint8_t* mask, uint8_t* last, int64_t size) {
    int64_t begin = 0;
    for (; begin + WORD <= size; begin += WORD) {
        uint64_t now, before;
        std::memcpy(&now, mask + begin, WORD);
        std::memcpy(&before, last + begin, WORD);
        // The lowest byte is the first entry; where it is not, the caller's trial refuses this binary.
        for (uint64_t changed = now ^ before; changed;) {
            const int64_t byte = __builtin_ctzll(changed) / 8;
            settle(target, whole, mask, last, begin + byte);
            changed &= ~(uint64_t(255) << (8 * byte));
        }
    }
    for (; begin < size; ++begin)
        if (mask[begin] != last[begin]) settle(target, whole, mask, last, begin);
}

template <typename BITS>
void cut(BITS* target, const BITS* whole, const uint8_t* mask, uint8_t* last, int64_t size, int64_t threads) {
    const int64_t spans = (size + SPAN - 1) / SPAN;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && spans > 1)
    for (int64_t s = 0; s < spans; ++s) {
        const int64_t from = s * SPAN;
        span(target + from, whole + from, mask + from, last + from, std::min(SPAN, size - from));
    }
}

}  // namespace

extern "C" {

void secateurs_cut_32(int32_t* target, const int32_t* whole, const uint8_t* mask, uint8_t* last, int64_t size,
                      int64_t threads) {
    cut(target, whole, mask, last, size, threads);
}

void secateurs_cut_64(int64_t* target, const int64_t* whole, const uint8_t* mask, uint8_t* last, int64_t size,
                      int64_t threads) {
    cut(target, whole, mask, last, size, threads);
}

}  // extern "C"
