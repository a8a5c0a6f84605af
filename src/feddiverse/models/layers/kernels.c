/* GroupNorm with its activation, depthwise convolutions, MobileNetV2's block, and windows of 3×3, forward and
   backward, and SGD's step, for one CPU thread.

   Maps are [n, height, width, channels], so that every inner loop runs along channels that lie side by side, which the
   compiler turns into vector instructions. Several rows are taken at once where a sum over rows would otherwise be
   stored and loaded again for every row. Convolutions are 3×3 with a padding of one. Nothing here allocates: the caller
   hands over results and workspaces, as many floats as `…_workspace` says. `native.py` calls these.
*/

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
/* One copy for processors that multiply and add eight numbers at once, one for the others; chosen when the library is
   loaded, by what the processor can do: `arch=haswell` would ask for its maker too, and leave out AMD's. */
#define EXPORT __attribute__((target_clones("fma", "default")))
#else
#define EXPORT
#endif

#define INLINE static inline __attribute__((always_inline))
#define SIMD _Pragma("omp simd")

typedef int64_t Size;

/* Which copy runs: 1 if a·b + c is rounded once, for numbers where that makes a difference to zero. */
EXPORT int multiplies_and_adds_at_once(float a, float b, float c) { return a * b + c != 0; }

/* ---- Workspaces: what takes parts of one also says how large it is, with no memory to take them from ---- */

typedef struct {
    float *memory; /* NULL: only count */
    Size used;
} Workspace;

INLINE float *take(Workspace *workspace, Size count) {
    float *start = workspace->memory ? workspace->memory + workspace->used : NULL;
    workspace->used += count;
#ifdef __SANITIZE_ADDRESS__ /* a gap that nobody may touch, or one part's end could be the next one's beginning */
    enum { GAP = 16 };
    workspace->used += GAP;
    if (start) __asan_poison_memory_region(start + count, GAP * sizeof(float));
#endif
    return start;
}

/* ---- GroupNorm, then min(max(·, low), high) ---- */

INLINE void add_moments(const float *x, float *sums, float *squares, Size channels, const int rows) {
    SIMD for (Size c = 0; c < channels; c++) {
        float sum = 0, square = 0;
        for (int row = 0; row < rows; row++) {
            float value = x[row * channels + c];
            sum += value;
            square += value * value;
        }
        sums[c] += sum;
        squares[c] += square;
    }
}

INLINE void moments(const float *x, float *sums, float *squares, Size rows, Size channels) {
    memset(sums, 0, channels * sizeof(float));
    memset(squares, 0, channels * sizeof(float));
    for (; rows >= 4; rows -= 4, x += 4 * channels) add_moments(x, sums, squares, channels, 4);
    for (; rows > 0; rows--, x += channels) add_moments(x, sums, squares, channels, 1);
}

INLINE void normalise(const float *x, const float *scale, const float *shift, float *y, Size rows, Size channels,
                      float low, float high) {
    for (Size row = 0; row < rows; row++, x += channels, y += channels)
        SIMD for (Size c = 0; c < channels; c++) {
            float value = x[c] * scale[c] + shift[c];
            value = value < low ? low : value; /* keeps NaN */
            y[c] = value > high ? high : value;
        }
}

/* GroupNorm as one product and one sum a channel. */
INLINE void scale_and_shift(const float *statistics, const float *weight, const float *bias, float *scale, float *shift,
                            Size first, Size end) {
    float mean = statistics[0], rstd = statistics[1];
    SIMD for (Size c = first; c < end; c++) {
        scale[c] = rstd * weight[c];
        shift[c] = bias[c] - mean * scale[c];
    }
}

typedef struct {
    float *scale, *shift, *by_x, *by_one; /* [channels] each; the last two for backward only */
} PerChannel;

INLINE PerChannel take_per_channel(Workspace *workspace, Size channels) {
    PerChannel per;
    per.scale = take(workspace, channels);
    per.shift = take(workspace, channels);
    per.by_x = take(workspace, channels);
    per.by_one = take(workspace, channels);
    return per;
}

/* One picture. statistics: [groups, (mean, 1/deviation)]. y may be x itself. */
INLINE void norm(const float *x, const float *weight, const float *bias, float *y, float *statistics, PerChannel per,
                 Size rows, Size channels, Size groups, double eps, float low, float high) {
    Size width = channels / groups;
    double count = (double)(width * rows);
    float *scale = per.scale, *shift = per.shift;
    moments(x, scale, shift, rows, channels);
    for (Size g = 0; g < groups; g++, statistics += 2) {
        Size first = g * width, end = first + width;
        float sum = 0, square = 0;
        _Pragma("omp simd reduction(+ : sum, square)") for (Size c = first; c < end; c++) {
            sum += scale[c];
            square += shift[c];
        }
        double variance = square / count - (sum / count) * (sum / count);
        statistics[0] = (float)(sum / count);
        statistics[1] = (float)(1 / sqrt((variance < 0 ? 0 : variance) + eps));
        scale_and_shift(statistics, weight, bias, scale, shift, first, end);
    }
    normalise(x, scale, shift, y, rows, channels, low, high);
}

/* The same y again, from the statistics. */
INLINE void norm_again(const float *x, const float *weight, const float *bias, float *y, const float *statistics,
                       PerChannel per, Size rows, Size channels, Size groups, float low, float high) {
    Size width = channels / groups;
    float *scale = per.scale, *shift = per.shift;
    for (Size g = 0; g < groups; g++)
        scale_and_shift(statistics + 2 * g, weight, bias, scale, shift, g * width, (g + 1) * width);
    normalise(x, scale, shift, y, rows, channels, low, high);
}

/* What the activation lets through of dy. The value is computed as `normalise` does, so that the two always agree. */
INLINE float passed(float dy, float x, float scale, float shift, float low, float high) {
    float value = x * scale + shift;
    return (value > low) & (value < high) ? dy : 0.0f;
}

INLINE void add_passed(const float *dy, const float *x, const float *scale, const float *shift, float *products,
                       float *sums, Size channels, float low, float high, const int rows) {
    SIMD for (Size c = 0; c < channels; c++) {
        float product = 0, sum = 0;
        for (int row = 0; row < rows; row++) {
            Size at = row * channels + c;
            float slope = passed(dy[at], x[at], scale[c], shift[c], low, high);
            product += slope * x[at];
            sum += slope;
        }
        products[c] += product;
        sums[c] += sum;
    }
}

/* One picture. Puts the input's gradient in dy's place; adds to dweight and dbias. */
INLINE void norm_backward(float *dy, const float *x, const float *weight, const float *bias, const float *statistics,
                          float *dweight, float *dbias, PerChannel per, Size rows, Size channels, Size groups,
                          float low, float high) {
    Size width = channels / groups, row;
    double count = (double)(width * rows);
    float *scale = per.scale, *shift = per.shift, *by_x = per.by_x, *by_one = per.by_one;
    for (Size g = 0; g < groups; g++)
        scale_and_shift(statistics + 2 * g, weight, bias, scale, shift, g * width, (g + 1) * width);
    memset(by_x, 0, channels * sizeof(float));
    memset(by_one, 0, channels * sizeof(float));
    for (row = 0; row + 4 <= rows; row += 4)
        add_passed(dy + row * channels, x + row * channels, scale, shift, by_x, by_one, channels, low, high, 4);
    for (; row < rows; row++)
        add_passed(dy + row * channels, x + row * channels, scale, shift, by_x, by_one, channels, low, high, 1);
    for (Size g = 0; g < groups; g++) {
        Size first = g * width, end = first + width;
        float mean = statistics[2 * g], rstd = statistics[2 * g + 1], product = 0, sum = 0;
        _Pragma("omp simd reduction(+ : product, sum)") for (Size c = first; c < end; c++) {
            product += weight[c] * by_x[c];
            sum += weight[c] * by_one[c];
            dweight[c] += (by_x[c] - mean * by_one[c]) * rstd;
            dbias[c] += by_one[c];
        }
        double slope = ((double)sum * mean - product) * rstd * rstd * rstd / count;
        float of_x = (float)slope, of_one = (float)(-slope * mean - (double)sum * rstd / count);
        SIMD for (Size c = first; c < end; c++) by_x[c] = of_x, by_one[c] = of_one;
    }
    for (row = 0; row < rows; row++, dy += channels, x += channels)
        SIMD for (Size c = 0; c < channels; c++)
            dy[c] = scale[c] * passed(dy[c], x[c], scale[c], shift[c], low, high) + (by_x[c] * x[c] + by_one[c]);
}

Size group_norm_workspace(Size channels) {
    Workspace counted = {NULL, 0};
    take_per_channel(&counted, channels);
    return counted.used;
}

EXPORT void group_norm(const float *x, const float *weight, const float *bias, float *y, float *statistics,
                       float *memory, Size n, Size rows, Size channels, Size groups, double eps, float low,
                       float high) {
    Workspace workspace = {memory, 0};
    PerChannel per = take_per_channel(&workspace, channels);
    for (Size i = 0, map = rows * channels; i < n; i++)
        norm(x + i * map, weight, bias, y + i * map, statistics + i * 2 * groups, per, rows, channels, groups, eps, low,
             high);
}

EXPORT void group_norm_backward(float *dy, const float *x, const float *weight, const float *bias,
                                const float *statistics, float *dweight, float *dbias, float *memory, Size n,
                                Size rows, Size channels, Size groups, float low, float high) {
    Workspace workspace = {memory, 0};
    PerChannel per = take_per_channel(&workspace, channels);
    for (Size i = 0, map = rows * channels; i < n; i++)
        norm_backward(dy + i * map, x + i * map, weight, bias, statistics + i * 2 * groups, dweight, dbias, per, rows,
                      channels, groups, low, high);
}

/* ---- 3×3 windows: tap (ky, kx) of output (oy, ox) meets input (oy·stride + ky − 1, ox·stride + kx − 1) ---- */

typedef struct {
    int count;
    const float *a[9], *b[9];
} Pairs; /* of rows of channels: what is to be multiplied and summed */

INLINE void push(Pairs *pairs, const float *a, const float *b) {
    pairs->a[pairs->count] = a;
    pairs->b[pairs->count++] = b;
}

INLINE void sum_products(const Pairs *pairs, float *y, Size channels, const int add, const int count) {
    const float *a[9], *b[9];
    for (int k = 0; k < count; k++) a[k] = pairs->a[k], b[k] = pairs->b[k];
    SIMD for (Size c = 0; c < channels; c++) {
        float sum = add ? y[c] : 0;
        for (int k = 0; k < count; k++) sum += a[k][c] * b[k][c];
        y[c] = sum;
    }
}

/* y = Σ a·b, or y + Σ a·b; the compiler unrolls each count. */
INLINE void flush(Pairs *pairs, float *y, Size channels, const int add) {
    switch (pairs->count) {
    case 0: /* an input that no output sees, with strides above two */
        if (!add) memset(y, 0, channels * sizeof(float));
        break;
#define CASE(k)                                                                                                        \
    case k:                                                                                                            \
        sum_products(pairs, y, channels, add, k);                                                                      \
        break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9)
    }
    pairs->count = 0;
}

/* How many outputs there are along a side. */
#define OUTPUTS(size) (((size)-1) / stride + 1)
#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

/* Of the three taps along a side, those from FIRST to before END meet an input that is there. */
#define FIRST(o) ((o) == 0)
#define END(o, size) SMALLER(3, (size) + 1 - (o)*stride)

#define FOR_EACH_OUTPUT                                                                                                \
    for (Size oy = 0; oy < OUTPUTS(height); oy++)                                                                      \
        for (Size ox = 0; ox < OUTPUTS(width); ox++)
#define FOR_EACH_TAP_INSIDE                                                                                            \
    for (Size ky = FIRST(oy); ky < END(oy, height); ky++)                                                              \
        for (Size kx = FIRST(ox); kx < END(ox, width); kx++)
#define TAP ((ky * 3 + kx) * channels)
#define INPUT (((oy * stride + ky - 1) * width + ox * stride + kx - 1) * channels)
#define OUTPUT ((oy * OUTPUTS(width) + ox) * channels)
#define MAP_IN (height * width * channels)
#define MAP_OUT (OUTPUTS(height) * OUTPUTS(width) * channels)

/* kernel: [channels, 9] as PyTorch keeps it → [9, channels]. */
INLINE void taps_first(const float *restrict kernel, float *restrict taps, Size channels) {
    for (Size c = 0; c < channels; c++)
        for (Size tap = 0; tap < 9; tap++) taps[tap * channels + c] = kernel[c * 9 + tap];
}

/* One picture. */
INLINE void filter(const float *x, const float *taps, float *y, Size height, Size width, Size channels, Size stride) {
    Pairs pairs = {0};
    FOR_EACH_OUTPUT {
        FOR_EACH_TAP_INSIDE push(&pairs, x + INPUT, taps + TAP);
        flush(&pairs, y + OUTPUT, channels, 0);
    }
}

/* The first output along a side that sees input i, and the one after the last. */
#define SEEN_FROM(i) (((i) + stride - 1 - ((i) > 0)) / stride)
#define SEEN_TO(i, size) SMALLER(((i) + 1) / stride + 1, OUTPUTS(size))

INLINE void gradient_of_inputs(const float *dy, const float *taps, float *dx, Size height, Size width, Size channels,
                               Size stride) {
    Pairs pairs = {0};
    for (Size iy = 0; iy < height; iy++)
        for (Size ix = 0; ix < width; ix++, dx += channels) {
            for (Size oy = SEEN_FROM(iy); oy < SEEN_TO(iy, height); oy++)
                for (Size ox = SEEN_FROM(ix); ox < SEEN_TO(ix, width); ox++) {
                    Size ky = iy + 1 - oy * stride, kx = ix + 1 - ox * stride;
                    push(&pairs, dy + OUTPUT, taps + TAP);
                }
            flush(&pairs, dx, channels, 0);
        }
}

INLINE void add_gradient_of_taps(const float *dy, const float *x, float *dtaps, Size height, Size width, Size channels,
                                 Size stride) {
    Pairs pairs = {0};
    for (Size ky = 0; ky < 3; ky++)
        for (Size kx = 0; kx < 3; kx++) {
            for (Size oy = ky == 0; oy < SMALLER((height - ky + stride) / stride, OUTPUTS(height)); oy++)
                for (Size ox = kx == 0; ox < SMALLER((width - kx + stride) / stride, OUTPUTS(width)); ox++) {
                    push(&pairs, dy + OUTPUT, x + INPUT);
                    if (pairs.count == 8) flush(&pairs, dtaps + TAP, channels, 1);
                }
            flush(&pairs, dtaps + TAP, channels, 1);
        }
}

INLINE void add_taps_last(const float *restrict dtaps, float *restrict dkernel, Size channels) {
    for (Size c = 0; c < channels; c++)
        for (Size tap = 0; tap < 9; tap++) dkernel[c * 9 + tap] += dtaps[tap * channels + c];
}

typedef struct {
    float *taps, *dtaps; /* [9, channels] each; the second for backward only */
} Taps;

INLINE Taps take_taps(Workspace *workspace, Size channels) {
    Taps both;
    both.taps = take(workspace, 9 * channels);
    both.dtaps = take(workspace, 9 * channels);
    return both;
}

Size depthwise_workspace(Size channels) {
    Workspace counted = {NULL, 0};
    take_taps(&counted, channels);
    return counted.used;
}

EXPORT void depthwise(const float *x, const float *kernel, float *y, float *memory, Size n, Size height, Size width,
                      Size channels, Size stride) {
    Workspace workspace = {memory, 0};
    float *taps = take_taps(&workspace, channels).taps;
    taps_first(kernel, taps, channels);
    for (Size i = 0; i < n; i++) filter(x + i * MAP_IN, taps, y + i * MAP_OUT, height, width, channels, stride);
}

/* Adds to dkernel. */
EXPORT void depthwise_backward(const float *dy, const float *x, const float *kernel, float *dx, float *dkernel,
                               float *memory, Size n, Size height, Size width, Size channels, Size stride) {
    Workspace workspace = {memory, 0};
    Taps both = take_taps(&workspace, channels);
    float *taps = both.taps, *dtaps = both.dtaps;
    taps_first(kernel, taps, channels);
    memset(dtaps, 0, 9 * channels * sizeof(float));
    for (Size i = 0; i < n; i++, dy += MAP_OUT, x += MAP_IN, dx += MAP_IN) {
        gradient_of_inputs(dy, taps, dx, height, width, channels, stride);
        add_gradient_of_taps(dy, x, dtaps, height, width, channels, stride);
    }
    add_taps_last(dtaps, dkernel, channels);
}

/* ---- MobileNetV2's inverted residual: widen, filter, narrow, add the input ---- */

/* BLAS's own, as Fortran calls it. */
typedef void Sgemm(const char *, const char *, const void *, const void *, const void *, const float *, const float *,
                   const void *, const float *, const void *, const float *, float *, const void *);

enum { AS_IT_IS = 'N', TRANSPOSED = 'T' };

/* c = a·b + beta·c for matrices that lie row by row, [rows, inner]·[inner, columns], or transposed. */
INLINE void product(Sgemm *sgemm, const float *a, char a_lies, const float *b, char b_lies, float *c, Size rows,
                    Size inner, Size columns, float beta) {
    /* Fortran reads rows as columns: it computes cᵀ = bᵀ·aᵀ. Eight bytes each, for builds of BLAS that read so many. */
    Size b_step = b_lies == AS_IT_IS ? columns : inner, a_step = a_lies == AS_IT_IS ? inner : rows;
    float one = 1;
    sgemm(&b_lies, &a_lies, &columns, &rows, &inner, &one, b, &b_step, a, &a_step, &beta, c, &columns);
}

/* For `library.py` to try whether `sgemm` is what it should be. */
void multiply(Sgemm *sgemm, const float *a, char a_lies, const float *b, char b_lies, float *c, Size rows, Size inner,
              Size columns, float beta) {
    product(sgemm, a, a_lies, b, b_lies, c, rows, inner, columns, beta);
}

typedef struct {
    float *widen, *widened_weight, *widened_bias; /* [hidden, inputs], and GroupNorm's */
    float *kernel, *filtered_weight, *filtered_bias;
    float *narrow, *narrowed_weight, *narrowed_bias; /* [outputs, hidden], and GroupNorm's */
} Parameters; /* or their gradients */

typedef struct {
    float *widened, *filtered, *narrowed;                                  /* before their GroupNorms */
    float *widened_statistics, *filtered_statistics, *narrowed_statistics; /* [n, groups, 2] each */
} Maps;                                                                    /* what backward needs */

typedef struct {
    Size n, height, width, inputs, hidden, outputs, stride, groups;
    Size together; /* so many pictures at once, that their maps stay in the cache from one layer to the next */
} Shape;

#define UNUSED __attribute__((unused))
#define SHAPE                                                                                                          \
    UNUSED Size height = shape->height, width = shape->width, stride = shape->stride, groups = shape->groups;          \
    UNUSED Size inputs = shape->inputs, channels = shape->hidden, outputs = shape->outputs;                            \
    UNUSED Size together = shape->together, in = height * width, out = OUTPUTS(height) * OUTPUTS(width);
#define FOR_EACH_CHUNK for (Size i = 0, some; some = SMALLER(together, shape->n - i), some > 0; i += some)
#define STATISTICS(name) (maps->name##_statistics + (i + j) * 2 * groups)

/* The chunk's pictures side by side. With stochastic depth, only n of a batch take part: those in `pictures`. */
#define PICTURE (pictures ? pictures[i + j] : i + j)
INLINE const float *gather(const float *x, const Size *pictures, float *workspace, Size i, Size some, Size map) {
    if (!pictures) return x + i * map;
    for (Size j = 0; j < some; j++) memcpy(workspace + j * map, x + PICTURE * map, map * sizeof(float));
    return workspace;
}

/* With `keep` the maps are those of all n pictures, for backward, else of `together`. */
INLINE Maps take_maps(Workspace *workspace, const Shape *shape, int keep) {
    SHAPE
    Size kept = keep ? shape->n : together;
    Maps maps;
    maps.widened = take(workspace, kept * in * channels);
    maps.filtered = take(workspace, kept * out * channels);
    maps.narrowed = take(workspace, kept * out * outputs);
    maps.widened_statistics = take(workspace, shape->n * 2 * groups);
    maps.filtered_statistics = take(workspace, shape->n * 2 * groups);
    maps.narrowed_statistics = take(workspace, shape->n * 2 * groups);
    return maps;
}

Size inverted_residual_maps(const Shape *shape, int keep) {
    Workspace counted = {NULL, 0};
    take_maps(&counted, shape, keep);
    return counted.used;
}

typedef struct {
    float *gathered, *active, *normed; /* of `together` pictures the first two, of one the third */
    Taps taps;
    PerChannel per;
} Parts;

INLINE Parts take_parts(Workspace *workspace, const Shape *shape) {
    SHAPE
    Parts parts;
    parts.gathered = take(workspace, together * in * inputs);
    parts.active = take(workspace, together * out * channels);
    parts.normed = take(workspace, in * channels);
    parts.taps = take_taps(workspace, channels);
    parts.per = take_per_channel(workspace, LARGER(channels, outputs));
    return parts;
}

Size inverted_residual_workspace(const Shape *shape) {
    Workspace counted = {NULL, 0};
    take_parts(&counted, shape);
    return counted.used;
}

/* y = narrow(filter(widen(x))), each with its GroupNorm, the first two with ReLU6; as a residual y = x + factor·that.
   pictures: n indices, or NULL for all. */
EXPORT void inverted_residual(Sgemm *sgemm, const Shape *shape, const Parameters *p, float *map_memory, const float *x,
                              const Size *pictures, float *y, float *memory, double eps, float factor, int is_residual,
                              int keep) {
    SHAPE
    Workspace map_space = {map_memory, 0}, workspace = {memory, 0};
    Maps own_maps = take_maps(&map_space, shape, keep), *maps = &own_maps;
    Parts parts = take_parts(&workspace, shape);
    float *gathered = parts.gathered, *active = parts.active, *normed = parts.normed, *taps = parts.taps.taps;
    PerChannel rest = parts.per;
    taps_first(p->kernel, taps, channels);
    FOR_EACH_CHUNK {
        Size kept = keep ? i : 0;
        float *widened = maps->widened + kept * in * channels, *filtered = maps->filtered + kept * out * channels;
        float *narrowed = maps->narrowed + kept * out * outputs;
        const float *xs = gather(x, pictures, gathered, i, some, in * inputs);
        product(sgemm, xs, AS_IT_IS, p->widen, TRANSPOSED, widened, some * in, inputs, channels, 0);
        for (Size j = 0; j < some; j++) {
            norm(widened + j * in * channels, p->widened_weight, p->widened_bias, normed, STATISTICS(widened), rest, in,
                 channels, groups, eps, 0, 6);
            filter(normed, taps, filtered + j * out * channels, height, width, channels, stride);
            norm(filtered + j * out * channels, p->filtered_weight, p->filtered_bias, active + j * out * channels,
                 STATISTICS(filtered), rest, out, channels, groups, eps, 0, 6);
        }
        product(sgemm, active, AS_IT_IS, p->narrow, TRANSPOSED, narrowed, some * out, channels, outputs, 0);
        for (Size j = 0, map = out * outputs; j < some; j++) {
            float *to = y + PICTURE * map;
            const float *from = xs + j * map;
            norm(narrowed + j * map, p->narrowed_weight, p->narrowed_bias, to, STATISTICS(narrowed), rest, out, outputs,
                 groups, eps, -INFINITY, INFINITY);
            if (is_residual) SIMD for (Size c = 0; c < map; c++) to[c] = from[c] + factor * to[c];
        }
    }
}

typedef struct {
    float *dgathered, *dnarrowed, *dfiltered, *dwidened; /* of `together` pictures */
} Gradients;

INLINE Gradients take_gradients(Workspace *workspace, const Shape *shape) {
    SHAPE
    Gradients gradients;
    gradients.dgathered = take(workspace, together * in * inputs);
    gradients.dnarrowed = take(workspace, together * out * outputs);
    gradients.dfiltered = take(workspace, together * out * channels);
    gradients.dwidened = take(workspace, together * in * channels);
    return gradients;
}

Size inverted_residual_backward_workspace(const Shape *shape) {
    Workspace counted = {NULL, 0};
    take_parts(&counted, shape);
    take_gradients(&counted, shape);
    return counted.used;
}

/* Adds to the parameters' gradients, and, for a residual, to dy, which is dx; else dx is written. */
EXPORT void inverted_residual_backward(Sgemm *sgemm, const Shape *shape, const Parameters *p, const Parameters *d,
                                       float *map_memory, const float *x, const Size *pictures, const float *dy,
                                       float *dx, float *memory, float factor, int is_residual) {
    SHAPE
    Workspace map_space = {map_memory, 0}, workspace = {memory, 0};
    Maps own_maps = take_maps(&map_space, shape, 1), *maps = &own_maps;
    Parts parts = take_parts(&workspace, shape);
    Gradients gradients = take_gradients(&workspace, shape);
    float *gathered = parts.gathered, *active = parts.active, *normed = parts.normed;
    float *dgathered = gradients.dgathered, *dnarrowed = gradients.dnarrowed;
    float *dfiltered = gradients.dfiltered, *dwidened = gradients.dwidened;
    float *taps = parts.taps.taps, *dtaps = parts.taps.dtaps;
    PerChannel rest = parts.per;
    taps_first(p->kernel, taps, channels);
    memset(dtaps, 0, 9 * channels * sizeof(float));
    FOR_EACH_CHUNK {
        const float *xs = gather(x, pictures, gathered, i, some, in * inputs);
        for (Size j = 0, map = out * outputs; j < some; j++) {
            const float *from = dy + PICTURE * map, *filtered = maps->filtered + (i + j) * out * channels;
            float *to = dnarrowed + j * map;
            SIMD for (Size c = 0; c < map; c++) to[c] = factor * from[c];
            norm_backward(to, maps->narrowed + (i + j) * map, p->narrowed_weight, p->narrowed_bias,
                          STATISTICS(narrowed), d->narrowed_weight, d->narrowed_bias, rest, out, outputs, groups,
                          -INFINITY, INFINITY);
            norm_again(filtered, p->filtered_weight, p->filtered_bias, active + j * out * channels,
                       STATISTICS(filtered), rest, out, channels, groups, 0, 6);
        }
        product(sgemm, dnarrowed, TRANSPOSED, active, AS_IT_IS, d->narrow, outputs, some * out, channels, 1);
        product(sgemm, dnarrowed, AS_IT_IS, p->narrow, AS_IT_IS, dfiltered, some * out, outputs, channels, 0);
        for (Size j = 0; j < some; j++) {
            const float *widened = maps->widened + (i + j) * in * channels;
            float *of_outputs = dfiltered + j * out * channels, *of_inputs = dwidened + j * in * channels;
            norm_backward(of_outputs, maps->filtered + (i + j) * out * channels, p->filtered_weight, p->filtered_bias,
                          STATISTICS(filtered), d->filtered_weight, d->filtered_bias, rest, out, channels, groups, 0,
                          6);
            gradient_of_inputs(of_outputs, taps, of_inputs, height, width, channels, stride);
            norm_again(widened, p->widened_weight, p->widened_bias, normed, STATISTICS(widened), rest, in, channels,
                       groups, 0, 6);
            add_gradient_of_taps(of_outputs, normed, dtaps, height, width, channels, stride);
            norm_backward(of_inputs, widened, p->widened_weight, p->widened_bias, STATISTICS(widened),
                          d->widened_weight, d->widened_bias, rest, in, channels, groups, 0, 6);
        }
        product(sgemm, dwidened, TRANSPOSED, xs, AS_IT_IS, d->widen, channels, some * in, inputs, 1);
        product(sgemm, dwidened, AS_IT_IS, p->widen, AS_IT_IS, dgathered, some * in, channels, inputs, 0);
        for (Size j = 0, map = in * inputs; j < some; j++) {
            float *to = dx + PICTURE * map;
            const float *from = dgathered + j * map;
            SIMD for (Size c = 0; c < map; c++) to[c] = from[c] + (is_residual ? to[c] : 0);
        }
    }
    add_taps_last(dtaps, d->kernel, channels);
}

/* ---- SGD ---- */

/* One step of SGD with momentum, and with FedProx's pull towards `start` (or NULL); zeroes the gradient. */
EXPORT void sgd(float *theta, float *gradient, float *velocity, const float *start, Size count, float lr,
                float momentum, float weight_decay, float mu) {
    SIMD for (Size i = 0; i < count; i++) {
        float slope = gradient[i] + weight_decay * theta[i] + (start ? mu * (theta[i] - start[i]) : 0);
        velocity[i] = momentum * velocity[i] + slope;
        theta[i] -= lr * velocity[i];
        gradient[i] = 0;
    }
}

/* ---- Windows of 3×3 side by side, so that a convolution is a product of matrices ---- */

/* windows: [n, outputs, 9, channels], zero where the window leaves the map. */
EXPORT void windows(const float *x, float *windows, Size n, Size height, Size width, Size channels, Size stride) {
    if (n) memset(windows, 0, n * 9 * MAP_OUT * sizeof(float)); /* no pictures have no memory */
    for (Size i = 0; i < n; i++, x += MAP_IN)
        FOR_EACH_OUTPUT {
            FOR_EACH_TAP_INSIDE memcpy(windows + TAP, x + INPUT, channels * sizeof(float));
            windows += 9 * channels;
        }
}

EXPORT void windows_backward(const float *dwindows, float *dx, Size n, Size height, Size width, Size channels,
                             Size stride) {
    if (n) memset(dx, 0, n * MAP_IN * sizeof(float));
    for (Size i = 0; i < n; i++, dx += MAP_IN)
        FOR_EACH_OUTPUT {
            FOR_EACH_TAP_INSIDE SIMD for (Size c = 0; c < channels; c++) dx[INPUT + c] += dwindows[TAP + c];
            dwindows += 9 * channels;
        }
}
