"""The C functions that a file calls."""

_CONV = """
static void conv_KIND(const float *x, float *y, int height, int width, int outs, int rows,
                      int columns, int tall, int wide, int step_y, int step_x, int above,
                      int left, int apart_y, int apart_x, const int32_t *starts,
                      const KIND *place, const float *value, const float *bias,
                      const float *added) {
    for (int o = 0; o < outs; ++o) {
        float *out = y + o * rows * columns;
        for (int i = 0; i < rows * columns; ++i)
            out[i] = bias[o] + (added ? added[o * rows * columns + i] : 0.0f);
        for (int32_t k = starts[o]; k < starts[o + 1]; ++k) {
            const int kx = place[k] % wide, ky = place[k] / wide % tall, c = place[k] / wide / tall;
            const float *in = x + c * height * width;
            const int sx = kx * apart_x - left, sy = ky * apart_y - above;
            for (int r = 0; r < rows; ++r) {
                const int line = r * step_y + sy;
                if (line < 0 || line >= height) continue;
                for (int q = 0; q < columns; ++q) {
                    const int at = q * step_x + sx;
                    if (at < 0 || at >= width) continue;
                    out[r * columns + q] += value[k] * in[line * width + at];
                }
            }
        }
    }
}
"""
FUNCTIONS = """
#if defined(__GNUC__)
#define UNUSED __attribute__((unused))
#else
#define UNUSED
#endif

UNUSED static inline float relu(float v) { return v < 0.0f ? 0.0f : v; }

UNUSED static inline float shaped(float v, float slope, float cap) {
    const float w = v < 0.0f ? (slope == 0.0f ? 0.0f : slope * v) : v;
    return w > cap ? cap : w;
}

UNUSED static void pool(const float *x, float *y, int channels, int height, int width, int rows,
                        int columns, const int32_t *row, const int32_t *column,
                        const float *factor, int maximum) {
    for (int c = 0; c < channels; ++c, x += height * width)
        for (int r = 0; r < rows; ++r)
            for (int q = 0; q < columns; ++q) {
                float total = maximum ? x[row[3 * r] * width + column[3 * q]] : 0.0f;
                for (int i = row[3 * r]; i < row[3 * r + 1]; i += row[3 * r + 2])
                    for (int j = column[3 * q]; j < column[3 * q + 1]; j += column[3 * q + 2]) {
                        const float v = x[i * width + j];
                        if (!maximum) total += v;
                        else if (v > total) total = v;
                    }
                *y++ = maximum ? total : total * factor[r * columns + q];
            }
}
""" + "".join(
    # Twice, because places that fit into 16 bits need half the memory.
    _CONV.replace("KIND", kind).replace("\nstatic", "\nUNUSED static")
    for kind in ("uint16_t", "int32_t")
)
