// Bounds of f − g for two chains of dense layers, one box after the other: what `DenseChain` in dense_chain.py does for
// a batch, and its oracle. On a small box most neurons are off in both networks and most others are linear, each box
// has others, and what is left is too little for a product of whole matrices: here the neurons that are off are
// dropped, and only open ones are bounded again.
//
// Plain C interface, no torch headers. Names as there: a value z of f, z' of g, d = z − z'; behind a ReLU p and y.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int64_t LANES = 4;      // doubles moved together
constexpr int64_t TILE = 4;       // rows of a product whose sums stay in registers
constexpr int64_t NEURONS = 32;   // bounded in one pass: their rows stay in the nearest cache
constexpr double TIE = 1e-9;      // as in planes.py
constexpr double INF = std::numeric_limits<double>::infinity();

typedef double Lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));

inline int64_t padded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }
inline Lanes load(const double* from) { return *reinterpret_cast<const Lanes*>(from); }
inline void store(double* to, Lanes value) { *reinterpret_cast<Lanes*>(to) = value; }
inline double sum(Lanes v) { return (v[0] + v[1]) + (v[2] + v[3]); }

struct Layer {
    int64_t in, out, first;  // `first`: where its neurons begin among all hidden ones
    bool relu;
    const double *weight, *other, *change, *bias, *other_bias, *bias_change;
};

// The planes around p = relu(z): p ≤ s·z + c, p ≥ t·z.
struct Value {
    std::vector<double> s, c, t, bias, mass;
};

// What one layer of one box consists of: its neurons that are not off, and the maps that lead to them.
struct Compact {
    std::vector<int64_t> alive;
    int64_t stride = 0;
    std::vector<double> weight, other, change;  // (alive, stride of the layer before)
    Value f, g;
    std::vector<double> up_z, up_d, up_c, low_z, low_d, low_c, bias_change, mass;  // around y
    std::vector<double> size_p, size_g, size_y;                                  // largest |p|, |p'|, |y|
    std::vector<double> mid_p, rad_p, mid_g, rad_g, mid_y, rad_y;                // p, p' and y lie within mid ± rad
    auto reaches() { return std::array{&size_p, &size_g, &size_y, &mid_p, &rad_p, &mid_g, &rad_g, &mid_y, &rad_y}; }
};

// out (rows, width) = or += rows (rows, inner) · matrix (inner, width); rows and width are multiples of TILE and LANES.
template <bool ADD>
void product(double* out, const double* rows, const double* matrix, int64_t count, int64_t inner, int64_t stride,
             int64_t width) {
    for (int64_t r = 0; r < count; r += TILE) {
        const double *r0 = rows + r * stride, *r1 = r0 + stride, *r2 = r1 + stride, *r3 = r2 + stride;
        double *o0 = out + r * width, *o1 = o0 + width, *o2 = o1 + width, *o3 = o2 + width;
        int64_t j = 0;
        for (; j + 2 * LANES <= width; j += 2 * LANES) {
            Lanes a0{}, a1{}, b0{}, b1{}, c0{}, c1{}, d0{}, d1{};
            for (int64_t i = 0; i < inner; ++i) {
                const Lanes m0 = load(matrix + i * width + j), m1 = load(matrix + i * width + j + LANES);
                a0 += r0[i] * m0, a1 += r0[i] * m1;
                b0 += r1[i] * m0, b1 += r1[i] * m1;
                c0 += r2[i] * m0, c1 += r2[i] * m1;
                d0 += r3[i] * m0, d1 += r3[i] * m1;
            }
            const auto put = [&](double* o, Lanes x0, Lanes x1) {
                store(o + j, ADD ? load(o + j) + x0 : x0);
                store(o + j + LANES, ADD ? load(o + j + LANES) + x1 : x1);
            };
            put(o0, a0, a1), put(o1, b0, b1), put(o2, c0, c1), put(o3, d0, d1);
        }
        if (j < width) {
            Lanes a{}, b{}, c{}, d{};
            for (int64_t i = 0; i < inner; ++i) {
                const Lanes m = load(matrix + i * width + j);
                a += r0[i] * m, b += r1[i] * m, c += r2[i] * m, d += r3[i] * m;
            }
            const auto put = [&](double* o, Lanes x) { store(o + j, ADD ? load(o + j) + x : x); };
            put(o0, a), put(o1, b), put(o2, c), put(o3, d);
        }
    }
}

struct Plane {
    double p, q, c;
    double at(double z, double d) const { return p * z + q * d + c; }
};

struct Range {
    double l, h, gl, gh, dl, dh;
    bool off() const { return h <= 0 && gh <= 0; }
    bool settled() const { return (l >= 0 || h <= 0) && (gl >= 0 || gh <= 0); }
    double size_z() const { return std::max(std::fabs(l), std::fabs(h)); }
    double size_g() const { return std::max(std::fabs(gl), std::fabs(gh)); }
    double size_d() const { return std::max(std::fabs(dl), std::fabs(dh)); }
    void write(double* to, int64_t step) const {
        const double ends[] = {l, h, gl, gh, dl, dh};
        for (int64_t e = 0; e < 6; ++e) to[e * step] = ends[e];
    }
    Range exchanged() const { return {gl, gh, l, h, -dh, -dl}; }
    // Narrower where the other one is; what is no number says nothing.
    void meet(const Range& o) {
        l = std::max(l, o.l), h = std::min(h, o.h), gl = std::max(gl, o.gl), gh = std::min(gh, o.gh);
        dl = std::max(dl, o.dl), dh = std::min(dh, o.dh);
    }
    // The largest relu(z) − relu(z').
    double most_y() const {
        const double behind = std::max(gl, 0.0);
        return dh >= 0 ? std::min(std::max(h, 0.0) - behind, dh) : std::max(dh, -behind);
    }
};

inline Plane chord(double l, double h) {
    if (l >= 0) return {1, 0, 0};
    if (h <= 0) return {0, 0, 0};
    const double slope = h / (h - l);
    return {slope, 0, -slope * l};
}

// The lowest of the planes of `planes.difference_above` in the middle of the ranges.
Plane above(const Range& b) {
    const double z = (b.l + b.h) / 2, d = (b.dl + b.dh) / 2, close = TIE * (b.h - b.l + b.dh - b.dl);
    const Plane of_d = chord(b.dl, b.dh), of_z = chord(b.l, b.h);
    Plane best{0, of_d.p, of_d.c};
    const auto offer = [&](const Plane& plane) {
        if (plane.at(z, d) < best.at(z, d) - close) best = plane;
    };
    offer(of_z);
    offer({of_z.p - 1, 1, of_z.c});
    if (b.dh > 0 && b.l < 0) {
        const double slope = b.dh / (b.dh - b.l);
        offer({slope, 0, -slope * b.l});
    }
    if (b.dh > 0 && b.gl + b.dh < 0) {
        const double slope = b.dh / -b.gl;
        offer({slope, -slope, -slope * b.gl});
    }
    if (b.dh < 0 && b.gh > 0) {
        const double slope = std::min(-b.dh, b.gh) / b.gh;
        offer({-slope, slope, 0});
    }
    return best;
}

inline Plane below(const Range& b) {
    const Plane plane = above(b.exchanged());
    return {-plane.p, plane.p + plane.q, -plane.c};
}

class Pass {
  public:
    Pass(const std::vector<Layer>& layers, double unit, double gamma)
        : layers_(layers), unit_(unit), gamma_(gamma), parts_(layers.size() + 1) {
        int64_t widest = layers[0].in;
        for (const Layer& layer : layers) widest = std::max({widest, layer.in, layer.out});
        const int64_t cells = 2 * NEURONS * padded(widest, LANES);
        for (auto* buffer : {&p_, &y_, &z_, &d_, &next_}) buffer->assign(cells, 0.0);
        for (auto* column : {&constant_, &lost_}) column->assign(2 * NEURONS, 0.0);
        for (auto* column : {&mass_z_, &mass_g_, &mass_d_}) column->assign(widest, 0.0);
        forward_.resize(widest);
        middle_.assign(padded(layers[0].in, LANES), 0.0), radius_ = middle_;
        ranges_.resize(widest);
    }

    void run(const double* lo, const double* hi, const double* known, double* found, double* ends, bool values,
             const uint8_t* wanted, double* influence, double* corner) {
        const int64_t inputs = layers_[0].in, hidden = layers_.back().first;
        begin(lo, hi);
        std::fill(influence, influence + inputs, 0.0);
        for (size_t k = 0; k + 1 < layers_.size(); ++k) {
            const Layer& layer = layers_[k];
            masses(k);
            read(known, layer, hidden);
            if (layer.relu) {
                open_.clear();
                for (int64_t i = 0; i < layer.out; ++i)
                    if (!ranges_[i].settled()) open_.push_back(i);
                for (size_t from = 0; from < open_.size(); from += NEURONS)
                    improve(k, open_.data() + from, std::min<int64_t>(NEURONS, open_.size() - from), influence);
            }
            keep(k);
            for (int64_t i = 0; i < layer.out; ++i) ranges_[i].write(found + layer.first + i, hidden);
        }
        for (int64_t i = 0; i < inputs; ++i) influence[i] *= 2 * radius_[i];
        outputs(lo, hi, ends, values, wanted, corner);
    }

  private:
    void begin(const double* lo, const double* hi) {
        Compact& input = parts_[0];
        const int64_t n = layers_[0].in;
        if (input.alive.empty()) {
            for (int64_t i = 0; i < n; ++i) input.alive.push_back(i);
            input.stride = padded(n, LANES);
        }
        for (auto* column : input.reaches()) column->assign(input.stride, 0.0);
        for (int64_t i = 0; i < n; ++i) {
            middle_[i] = (lo[i] + hi[i]) / 2;
            radius_[i] = std::max(hi[i] - middle_[i], middle_[i] - lo[i]) * (1 + 4 * unit_);
            input.size_p[i] = input.size_g[i] = std::max(std::fabs(lo[i]), std::fabs(hi[i]));
            input.mid_p[i] = input.mid_g[i] = middle_[i], input.rad_p[i] = input.rad_g[i] = radius_[i];
        }
    }

    // Sums of absolute values behind z, z' and d: no value exceeds them, and rounding is counted from them. Beside them
    // the intervals that follow from those of the layer before.
    void masses(size_t k) {
        const Layer& layer = layers_[k];
        const Compact& b = parts_[k];
        for (int64_t i = 0; i < layer.out; ++i) {
            const double *w = layer.weight + i * layer.in, *v = layer.other + i * layer.in;
            const double* change = layer.change + i * layer.in;
            double z = std::fabs(layer.bias[i]), g = std::fabs(layer.other_bias[i]);
            double d = std::fabs(layer.bias_change[i]);
            double mid_z = layer.bias[i], mid_g = layer.other_bias[i], mid_d = layer.bias_change[i];
            double rad_z = 0, rad_g = 0, rad_d = 0;
            for (size_t a = 0; a < b.alive.size(); ++a) {
                const int64_t j = b.alive[a];
                const double size_w = std::fabs(w[j]), size_v = std::fabs(v[j]), size_c = std::fabs(change[j]);
                z += size_w * b.size_p[a];
                g += size_v * b.size_g[a];
                d += size_c * b.size_p[a] + size_v * b.size_y[a];
                mid_z += w[j] * b.mid_p[a], rad_z += size_w * b.rad_p[a];
                mid_g += v[j] * b.mid_g[a], rad_g += size_v * b.rad_g[a];
                mid_d += change[j] * b.mid_p[a] + v[j] * b.mid_y[a];
                rad_d += size_c * b.rad_p[a] + size_v * b.rad_y[a];
            }
            mass_z_[i] = z, mass_g_[i] = g, mass_d_[i] = d;
            // Middles and radii are rounded, too: by less than a unit of what the mass counts.
            rad_z += gamma_ * z, rad_g += gamma_ * g, rad_d += gamma_ * d;
            // The sums were rounded themselves.
            const double up = 1 + 4 * gamma_;
            forward_[i] = {-z * up, z * up, -g * up, g * up, -d * up, d * up};
            forward_[i].meet({mid_z - rad_z, mid_z + rad_z, mid_g - rad_g, mid_g + rad_g, mid_d - rad_d, mid_d + rad_d});
        }
    }

    void read(const double* known, const Layer& layer, int64_t hidden) {
        for (int64_t i = 0; i < layer.out; ++i) {
            if (!layer.relu || known == nullptr) {
                ranges_[i] = layer.relu ? Range{-INF, INF, -INF, INF, -INF, INF} : forward_[i];
            } else {
                const double* end = known + layer.first + i;
                ranges_[i] = {end[0],          end[hidden],     end[2 * hidden],
                              end[3 * hidden], end[4 * hidden], end[5 * hidden]};
            }
            ranges_[i].meet(forward_[i]);
        }
    }

    // Bounds of z, z' and d of some neurons, met with what is known of them.
    void improve(size_t k, const int64_t* open, int64_t count, double* influence) {
        of_f(k, open, count);
        const std::vector<double>& slope = *slope_;
        const int64_t stride = parts_[0].stride;
        for (int64_t i = 0; i < count; ++i) {
            const Range& r = ranges_[open[i]];
            const double loss = r.h > 0 && r.l < 0 ? std::min(r.h, -r.l) / (r.h - r.l) : 0;
            for (int64_t j = 0; j < layers_[0].in; ++j)
                influence[j] += loss * (std::fabs(slope[i * stride + j]) + std::fabs(slope[(count + i) * stride + j]));
        }
        of_g(k, open, count);
        of_d(k, open, count);
        for (int64_t i = 0; i < count; ++i) meet(ranges_[open[i]]);
    }

    void of_f(size_t k, const int64_t* open, int64_t count) {
        alone(k, open, count, layers_[k].weight, layers_[k].bias, mass_z_, &Compact::weight, &Compact::f);
        narrow(open, count, &Range::l, &Range::h, mass_z_);
    }

    void of_g(size_t k, const int64_t* open, int64_t count) {
        alone(k, open, count, layers_[k].other, layers_[k].other_bias, mass_g_, &Compact::other, &Compact::g);
        narrow(open, count, &Range::gl, &Range::gh, mass_g_);
    }

    void of_d(size_t k, const int64_t* open, int64_t count) {
        both(k, open, count);
        narrow(open, count, &Range::dl, &Range::dh, mass_d_);
    }

    // What the last pass says; no value can exceed the sum of absolute values behind it.
    void narrow(const int64_t* open, int64_t count, double Range::*low, double Range::*high,
                const std::vector<double>& mass) {
        for (int64_t i = 0; i < count; ++i) {
            Range& r = ranges_[open[i]];
            const double most = mass[open[i]] * (1 + 4 * gamma_);
            // Written so that what is no number leaves the mass.
            const double up = lost_[i] < most ? lost_[i] : most;
            const double down = lost_[count + i] < most ? lost_[count + i] : most;
            r.*high = std::min(r.*high, up), r.*low = std::max(r.*low, -down);
        }
    }

    // d = z − z' in all three directions, rounded outwards.
    void meet(Range& r) const {
        const Range old = r;
        const auto least = [&](double a, double b) { return a + b - 4 * unit_ * (std::fabs(a) + std::fabs(b)); };
        r.l = std::max(old.l, least(old.gl, old.dl)), r.h = std::min(old.h, -least(-old.gh, -old.dh));
        r.gl = std::max(old.gl, least(old.l, -old.dh)), r.gh = std::min(old.gh, -least(-old.h, old.dl));
        r.dl = std::max(old.dl, least(old.l, -old.gh)), r.dh = std::min(old.dh, -least(-old.h, old.gl));
    }

    // The neurons of layer k that are not off, with their planes and the maps that lead to them.
    void keep(size_t k) {
        const Layer& layer = layers_[k];
        const Compact& before = parts_[k];
        Compact& now = parts_[k + 1];
        now.alive.clear();
        for (int64_t i = 0; i < layer.out; ++i)
            if (!layer.relu || !ranges_[i].off()) now.alive.push_back(i);
        const int64_t count = now.alive.size(), inner = before.alive.size();
        now.stride = padded(count, LANES);
        for (auto* map : {&now.weight, &now.other, &now.change}) map->assign(count * before.stride, 0.0);
        for (auto* one : {&now.f.s, &now.f.c, &now.f.t, &now.f.bias, &now.f.mass, &now.g.s, &now.g.c, &now.g.t,
                          &now.g.bias, &now.g.mass, &now.up_z, &now.up_d, &now.up_c, &now.low_z, &now.low_d,
                          &now.low_c, &now.bias_change, &now.mass})
            one->assign(now.stride, 0.0);
        for (auto* one : now.reaches()) one->assign(now.stride, 0.0);
        for (int64_t a = 0; a < count; ++a) {
            const int64_t i = now.alive[a];
            for (int64_t b = 0; b < inner; ++b) {
                const int64_t from = i * layer.in + before.alive[b], to = a * before.stride + b;
                now.weight[to] = layer.weight[from], now.other[to] = layer.other[from];
                now.change[to] = layer.change[from];
            }
            now.f.bias[a] = layer.bias[i], now.g.bias[a] = layer.other_bias[i];
            now.bias_change[a] = layer.bias_change[i];
            now.f.mass[a] = mass_z_[i], now.g.mass[a] = mass_g_[i], now.mass[a] = mass_d_[i];
            const Range& r = ranges_[i];
            // No ReLU makes a difference larger.
            now.size_y[a] = r.size_d();
            const auto set = [a](std::vector<double>& mid, std::vector<double>& rad, double low, double high) {
                mid[a] = (low + high) / 2, rad[a] = (high - low) / 2;
            };
            if (!layer.relu) {
                set(now.mid_p, now.rad_p, r.l, r.h), set(now.mid_g, now.rad_g, r.gl, r.gh);
                set(now.mid_y, now.rad_y, r.dl, r.dh);
                now.f.s[a] = now.f.t[a] = now.g.s[a] = now.g.t[a] = now.up_d[a] = now.low_d[a] = 1;
                now.size_p[a] = r.size_z(), now.size_g[a] = r.size_g();
                continue;
            }
            now.size_p[a] = std::max(r.h, 0.0), now.size_g[a] = std::max(r.gh, 0.0);
            set(now.mid_p, now.rad_p, std::max(r.l, 0.0), now.size_p[a]);
            set(now.mid_g, now.rad_g, std::max(r.gl, 0.0), now.size_g[a]);
            set(now.mid_y, now.rad_y, -r.exchanged().most_y(), r.most_y());
            around(now.f, a, r.l, r.h), around(now.g, a, r.gl, r.gh);
            const Plane up = above(r), low = below(r);
            // Slopes err by a few units, none is above one: offsets are moved outwards by what that can matter.
            const double most = r.size_z() + r.size_g() + r.size_d();
            const double far = r.settled() ? 0 : 16 * unit_ * (most + std::fabs(up.c) + std::fabs(low.c));
            now.up_z[a] = up.p, now.up_d[a] = up.q, now.up_c[a] = up.c + far;
            now.low_z[a] = low.p, now.low_d[a] = low.q, now.low_c[a] = low.c - far;
        }
    }

    void around(Value& value, int64_t a, double l, double h) const {
        const Plane top = chord(l, h);
        value.s[a] = top.p;
        value.c[a] = l < 0 && h > 0 ? top.c + 16 * unit_ * (h - l) : 0;
        value.t[a] = h > 0 && (l >= 0 || h + l > TIE * (h - l)) ? 1 : 0;
    }

    // Upper bounds of ± rows of one network's map behind layer k − 1; they end in `lost_`, slopes in `slope_`.
    void alone(size_t k, const int64_t* open, int64_t count, const double* map, const double* bias,
               const std::vector<double>& mass, std::vector<double> Compact::*weight, Value Compact::*planes) {
        const int64_t rows = start(open, count, bias, mass);
        gather(p_, k, open, count, map);
        double *in = p_.data(), *out = next_.data();
        for (size_t j = k; j > 0; --j) {
            const Compact& part = parts_[j];
            const Value& value = part.*planes;
            const int64_t stride = part.stride;
            for (int64_t r = 0; r < rows; ++r) {
                double *c = in + r * stride;
                Lanes constant{}, lost{};
                for (int64_t i = 0; i < stride; i += LANES) {
                    const Lanes v = load(c + i), zero{};
                    const Lanes high = v > zero ? v : zero, low = v < zero ? v : zero;
                    const Lanes z = high * load(&value.s[i]) + low * load(&value.t[i]);
                    constant += high * load(&value.c[i]) + z * load(&value.bias[i]);
                    lost += (high - low) * load(&value.mass[i]);
                    store(c + i, z);
                }
                constant_[r] += sum(constant), lost_[r] += 2 * sum(lost);
            }
            product<false>(out, in, (part.*weight).data(), rows, part.alive.size(), stride, parts_[j - 1].stride);
            std::swap(in, out);
        }
        slope_ = in == p_.data() ? &p_ : &next_;
        finish(rows);
    }

    // The same of ± the rows of d, whose maps begin at p and at y.
    void both(size_t k, const int64_t* open, int64_t count) {
        const Layer& layer = layers_[k];
        const int64_t rows = start(open, count, layer.bias_change, mass_d_);
        gather(p_, k, open, count, layer.change), gather(y_, k, open, count, layer.other);
        for (size_t j = k; j > 0; --j) {
            const Compact& part = parts_[j];
            const int64_t stride = part.stride, before = parts_[j - 1].stride;
            for (int64_t r = 0; r < rows; ++r) {
                const double *p = &p_[r * stride], *y = &y_[r * stride];
                double *to_z = &z_[r * stride], *to_d = &d_[r * stride];
                Lanes constant{}, lost{};
                for (int64_t i = 0; i < stride; i += LANES) {
                    const Lanes v = load(p + i), u = load(y + i), zero{};
                    const Lanes high = v > zero ? v : zero, low = v < zero ? v : zero;
                    const Lanes over = u > zero ? u : zero, under = u < zero ? u : zero;
                    const Lanes z = high * load(&part.f.s[i]) + low * load(&part.f.t[i]) +
                                    over * load(&part.up_z[i]) + under * load(&part.low_z[i]);
                    const Lanes d = over * load(&part.up_d[i]) + under * load(&part.low_d[i]);
                    constant += high * load(&part.f.c[i]) + over * load(&part.up_c[i]) +
                                under * load(&part.low_c[i]) + z * load(&part.f.bias[i]) +
                                d * load(&part.bias_change[i]);
                    const Lanes size = over - under;
                    lost += (high - low + size) * load(&part.f.mass[i]) + size * load(&part.mass[i]);
                    store(to_z + i, z), store(to_d + i, d);
                }
                constant_[r] += sum(constant), lost_[r] += 2 * sum(lost);
            }
            const int64_t inner = part.alive.size();
            product<false>(p_.data(), z_.data(), part.weight.data(), rows, inner, stride, before);
            product<true>(p_.data(), d_.data(), part.change.data(), rows, inner, stride, before);
            // Both networks see one input: there y is zero.
            if (j > 1) product<false>(y_.data(), d_.data(), part.other.data(), rows, inner, stride, before);
        }
        slope_ = &p_;
        finish(rows);
    }

    int64_t start(const int64_t* open, int64_t count, const double* bias, const std::vector<double>& mass) {
        for (int64_t i = 0; i < count; ++i) {
            constant_[i] = bias[open[i]], constant_[count + i] = -bias[open[i]];
            lost_[i] = lost_[count + i] = mass[open[i]];
        }
        const int64_t rows = padded(2 * count, TILE);
        for (int64_t r = 2 * count; r < rows; ++r) constant_[r] = lost_[r] = 0;
        return rows;
    }

    void gather(std::vector<double>& into, size_t k, const int64_t* open, int64_t count, const double* map) {
        const Compact& before = parts_[k];
        const int64_t stride = before.stride, inner = before.alive.size();
        std::fill(into.begin(), into.begin() + padded(2 * count, TILE) * stride, 0.0);
        for (int64_t i = 0; i < count; ++i) {
            const double* row = map + open[i] * layers_[k].in;
            for (int64_t b = 0; b < inner; ++b) {
                into[i * stride + b] = row[before.alive[b]];
                into[(count + i) * stride + b] = -row[before.alive[b]];
            }
        }
    }

    // The largest value over the box, with all that rounding may have taken; left in `lost_`.
    void finish(int64_t rows) {
        const std::vector<double>& slope = *slope_;
        const int64_t stride = parts_[0].stride;
        for (int64_t r = 0; r < rows; ++r) {
            double value = constant_[r], lost = lost_[r];
            for (int64_t j = 0; j < layers_[0].in; ++j) {
                const double own = slope[r * stride + j];
                value += own * middle_[j] + std::fabs(own) * radius_[j];
                lost += 2 * std::fabs(own) * parts_[0].size_p[j];
            }
            lost_[r] = value + gamma_ * lost;
        }
    }

    // Ends of the outputs, those of f and g only where they are asked for, and the corner where the largest difference
    // of all is reached. Outputs that are not wanted keep their intervals.
    void outputs(const double* lo, const double* hi, double* ends, bool values, const uint8_t* wanted,
                 double* corner) {
        const size_t k = layers_.size() - 1;
        const Layer& last = layers_[k];
        masses(k);
        const int64_t stride = parts_[0].stride;
        double furthest = -1;
        std::copy(hi, hi + layers_[0].in, corner);
        for (int64_t i = 0; i < last.out; ++i) {
            ranges_[i] = forward_[i];
            if (wanted != nullptr && !wanted[i]) ranges_[i].write(ends + i, last.out);
        }
        for (int64_t from = 0; from < last.out;) {
            open_.clear();
            for (; from < last.out && static_cast<int64_t>(open_.size()) < NEURONS; ++from)
                if (wanted == nullptr || wanted[from]) open_.push_back(from);
            const int64_t count = open_.size();
            if (count == 0) break;
            if (values) of_f(k, open_.data(), count), of_g(k, open_.data(), count);
            of_d(k, open_.data(), count);
            for (int64_t i = 0; i < count; ++i) {
                Range& r = ranges_[open_[i]];
                for (int side : {0, 1}) {
                    const double end = side == 0 ? r.dh : -r.dl;
                    if (!(end > furthest)) continue;
                    furthest = end;
                    for (int64_t j = 0; j < layers_[0].in; ++j)
                        corner[j] = p_[(side * count + i) * stride + j] > 0 ? hi[j] : lo[j];
                }
                if (values) meet(r);
                r.write(ends + open_[i], last.out);
            }
        }
    }

    const std::vector<Layer>& layers_;
    const double unit_, gamma_;
    std::vector<Compact> parts_;  // the input first
    std::vector<double> p_, y_, z_, d_, next_, constant_, lost_, mass_z_, mass_g_, mass_d_, middle_, radius_;
    const std::vector<double>* slope_ = nullptr;
    std::vector<int64_t> open_;
    std::vector<Range> ranges_, forward_;
};

}  // namespace

extern "C" {

// sizes: inputs, then outputs of every layer. numbers: of each layer weight, other, change, bias, other_bias and
// bias_change, one after the other. known: (rows, 6, hidden) or null; box b takes row `row[b]`. The others have a row
// for each box; ends: of the outputs, (boxes, 6, outputs). wanted: which outputs of each box get a pass, or null.
void secateurs_dense_chain(const int64_t* sizes, const uint8_t* relu, int64_t depth, const double* numbers, double unit,
                           double gamma, const double* lo, const double* hi, const double* known, const int64_t* row,
                           int64_t boxes, double* found, double* ends, int64_t values, const uint8_t* wanted,
                           double* influence, double* corner, int64_t threads) {
    std::vector<Layer> layers;
    int64_t hidden = 0;
    for (int64_t k = 0; k < depth; ++k) {
        const int64_t in = sizes[k], out = sizes[k + 1], cells = in * out;
        const double *maps = numbers, *biases = numbers + 3 * cells;
        layers.push_back({in, out, hidden, relu[k] != 0, maps, maps + cells, maps + 2 * cells, biases, biases + out,
                          biases + 2 * out});
        numbers += 3 * (cells + out);
        if (k + 1 < depth) hidden += out;
    }
    const int64_t inputs = sizes[0], outs = sizes[depth];
#pragma omp parallel num_threads(threads) if (threads > 1 && boxes > 1)
    {
        Pass pass(layers, unit, gamma);
#pragma omp for schedule(dynamic, 8)
        for (int64_t b = 0; b < boxes; ++b)
            pass.run(lo + b * inputs, hi + b * inputs, known == nullptr ? nullptr : known + row[b] * 6 * hidden,
                     found + b * 6 * hidden, ends + b * 6 * outs, values != 0,
                     wanted == nullptr ? nullptr : wanted + b * outs, influence + b * inputs, corner + b * inputs);
    }
}

}  // extern "C"
