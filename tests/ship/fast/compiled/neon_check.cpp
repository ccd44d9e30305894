// Run on an emulated processor of another kind, without Python: vectors put in order, strided copies, and a Winograd
// layer against plain sums. Prints the largest difference.
#include "../../../../src/secateurs/ship/fast/kernels.cpp"

#include <cmath>
#include <cstdio>

template <class R>
double vectors() {
    constexpr int n = Lanes<R>::count;
    R numbers[n * n], row[2 * n], picked[n];
    for (int i = 0; i < n * n; ++i) numbers[i] = R(i);
    for (int i = 0; i < 2 * n; ++i) row[i] = R(i);
    Vec<R> square[n];
    for (int i = 0; i < n; ++i) square[i] = load(numbers + i * n);
    transposed<R>(square);
    double worst = 0;
    for (int i = 0; i < n; ++i) {
        store(picked, square[i]);
        for (int j = 0; j < n; ++j) worst = std::max(worst, std::fabs(double(picked[j] - numbers[j * n + i])));
    }
    store(picked, half<R, 1>(load(row), load(row + n)));
    for (int i = 0; i < n; ++i) worst = std::max(worst, std::fabs(double(picked[i] - row[2 * i + 1])));
    return worst;
}

// 3 channels of 5x7 become 6, by the kernel and by plain sums.
template <class R>
double layer() {
    constexpr int in = 3, out = 6, height = 5, width = 7, tall = 3, wide = 4, block = 4, lanes = Lanes<R>::count;
    constexpr int stride = 64, far = in * stride + lanes, tiles = 3 * 64;
    Arena<R> arena(60'000);
    std::vector<R> g(out * in * 9), bias(out), u(2 * 16 * in * block);
    for (size_t i = 0; i < g.size(); ++i) g[i] = R(int(i * 37 % 19) - 9) / 10;
    for (int o = 0; o < out; ++o) bias[o] = R(o) / 4;
    const double weights[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
    for (int o = 0; o < out; ++o)
        for (int c = 0; c < in; ++c)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) {
                    double sum = 0;
                    for (int a = 0; a < 3; ++a)
                        for (int b = 0; b < 3; ++b) sum += weights[i][a] * g[(o * in + c) * 9 + a * 3 + b] * weights[j][b];
                    u[((o / block * 16 + i * 4 + j) * in + c) * block + o % block] = R(sum);
                }
    Winograd op{};
    op.from = {1024, in, height, width, 64}, op.to = {4096, out, height, width, 64};
    op.shape = {0, 1e30, 1}, op.above = op.left = 1, op.tall = tall, op.wide = wide, op.rows = 2;
    op.stride = stride, op.tile = 1, op.block = block, op.blocks = 2;
    op.inputs = 8192, op.sums = op.inputs + 16 * far + 64, op.result = op.sums + 16 * block * tiles;
    op.weights = u.data(), op.bias = bias.data();
    R *x = arena.data + 1024, *y = arena.data + 4096;
    for (int c = 0; c < in; ++c)
        for (int i = 0; i < height * width; ++i) x[c * 64 + i] = R(int((c * 61 + i * 13) % 23) - 11) / 8;
    run_winograd(op, Share<R>{arena.data, arena.data, 0, op.blocks}, 1);
    double worst = 0;
    for (int o = 0; o < out; ++o)
        for (int r = 0; r < height; ++r)
            for (int q = 0; q < width; ++q) {
                double sum = bias[o];
                for (int c = 0; c < in; ++c)
                    for (int a = 0; a < 3; ++a)
                        for (int b = 0; b < 3; ++b) {
                            const int i = r + a - 1, j = q + b - 1;
                            if (i < 0 || i >= height || j < 0 || j >= width) continue;
                            sum += double(g[(o * in + c) * 9 + a * 3 + b]) * x[c * 64 + i * width + j];
                        }
                worst = std::max(worst, std::fabs(std::max(sum, 0.0) - y[o * 64 + r * width + q]));
            }
    return worst;
}

int main() {
    const double worst = std::max({vectors<float>(), vectors<double>(), layer<float>(), layer<double>() * 1e6});
    std::printf("%d lanes, largest difference %.1e\n", Lanes<float>::count, worst);
    return worst < 1e-5 ? 0 : 1;
}
