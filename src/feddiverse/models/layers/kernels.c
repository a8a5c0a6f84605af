/* GroupNorm with its activation, products of matrices, MobileNetV2's block, and windows of 3×3, forward and
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

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(__AVX512F__)
/* One copy for processors that multiply and add eight numbers at once, one for the others; chosen when the library is
   loaded, by what the processor can do: `arch=haswell` would ask for its maker too, and leave out AMD's. */
#define EXPORT __attribute__((target_clones("fma", "default")))
#else
#define EXPORT
#endif

#define INLINE static inline __attribute__((always_inline))
#define SIMD _Pragma("omp simd")
#define UNROLL _Pragma("GCC unroll 16")
#define SMALLER(a, b) ((a) < (b) ? (a) : (b))
#define LARGER(a, b) ((a) > (b) ? (a) : (b))

typedef int64_t Size;
enum { LINE = 16 }; /* floats of a cache line */

/* Numbers that one instruction takes: where sums have to stay in registers the compiler is told what a register is. */
#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__x86_64__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
#define VECTOR(lanes) __attribute__((vector_size((lanes) * sizeof(float)), aligned(sizeof(float)), may_alias))
typedef float Vector VECTOR(LANES);
typedef float HalfVector VECTOR(LANES / 2);

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

/* ---- Products of matrices that lie row by row ---- */

#ifdef __AVX512F__
enum { TILE_ROWS = 12, TILE_COLUMNS = 2 * LANES }; /* 24 sums and what they need fill 32 registers */
#define EACH_NUMBER_OF_ROWS                                                                                            \
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#else
enum { TILE_ROWS = 6, TILE_COLUMNS = 2 * LANES }; /* twelve sums and what they need fill sixteen registers */
#define EACH_NUMBER_OF_ROWS CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#endif

/* c[i][j] = Σ_k a[i·a_row + k·a_step] · b[k·b_step + j], or c + that, in `rows`×`across` registers of T. */
#define DEFINE_TILE(name, T, across)                                                                                   \
    INLINE void name(const float *a, Size a_row, Size a_step, const float *b, Size b_step, float *c, Size c_row,       \
                     Size inner, const int add, const int rows) {                                                      \
        enum { WIDE = sizeof(T) / sizeof(float) };                                                                     \
        T sums[TILE_ROWS * across];                                                                                    \
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int q = 0; q < across; q++)                                  \
            sums[i * across + q] = add ? *(const T *)(c + i * c_row + q * WIDE) : (T){0};                              \
        for (Size k = 0; k < inner; k++, a += a_step, b += b_step) {                                                   \
            T factors[across];                                                                                         \
            UNROLL for (int q = 0; q < across; q++) factors[q] = *(const T *)(b + q * WIDE);                           \
            UNROLL for (int i = 0; i < rows; i++) UNROLL for (int q = 0; q < across; q++)                              \
                sums[i * across + q] += a[i * a_row] * factors[q];                                                     \
        }                                                                                                              \
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int q = 0; q < across; q++)                                  \
            *(T *)(c + i * c_row + q * WIDE) = sums[i * across + q];                                                   \
    }
DEFINE_TILE(wide_tile, Vector, 2)
DEFINE_TILE(narrow_tile, Vector, 1)
DEFINE_TILE(half_tile, HalfVector, 1)
DEFINE_TILE(single_tile, float, 1)

/* As many columns as there are: a whole tile, or half of one, a quarter, and single columns of what is left. Each sum is
   added up in the same order whatever the registers: the same bits. */
INLINE void tiles(const float *a, Size a_row, Size a_step, const float *b, Size b_step, float *c, Size c_row,
                  Size columns, Size inner, const int add, const int rows) {
    if (columns == TILE_COLUMNS) {
        wide_tile(a, a_row, a_step, b, b_step, c, c_row, inner, add, rows);
        return;
    }
    Size j = 0;
    if (columns >= LANES) narrow_tile(a, a_row, a_step, b, b_step, c, c_row, inner, add, rows), j = LANES;
    if (columns - j >= LANES / 2)
        half_tile(a, a_row, a_step, b + j, b_step, c + j, c_row, inner, add, rows), j += LANES / 2;
    for (; j < columns; j++) single_tile(a, a_row, a_step, b + j, b_step, c + j, c_row, inner, add, rows);
}

/* Rows shared out evenly, so that no tile of one row is left at the end. */
#define FOR_EACH_TILE(rows)                                                                                            \
    for (Size row = 0, left = ((rows) + TILE_ROWS - 1) / TILE_ROWS, some; left > 0; row += some, left--)               \
        if ((some = ((rows)-row + left - 1) / left), 1)

/* Columns of a matrix in panels of TILE_COLUMNS, each [inner, TILE_COLUMNS]: so many floats. */
#define PANELS(inner, columns) (((columns) + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS * (inner))

/* LANES rows of LANES numbers in registers, turned: what was row i is column i. */
#if defined(__GNUC__) && !defined(__clang__)
typedef int32_t Indices VECTOR(LANES);
INLINE void turn(Vector *rows) {
    UNROLL for (int half = LANES / 2; half > 0; half /= 2) {
        Indices near, far; /* of two rows side by side: what stays and what is swapped */
        UNROLL for (int i = 0; i < LANES; i++) {
            near[i] = i & half ? LANES + i - half : i;
            far[i] = (i & half ? LANES : half) + i;
        }
        UNROLL for (int i = 0; i < LANES; i++) {
            if (i & half) continue;
            Vector first = rows[i], second = rows[i + half];
            rows[i] = __builtin_shuffle(first, second, near);
            rows[i + half] = __builtin_shuffle(first, second, far);
        }
    }
}
#else
INLINE void turn(Vector *rows) {
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            float swapped = rows[i][j];
            rows[i][j] = rows[j][i], rows[j][i] = swapped;
        }
}
#endif

/* to[j·to_row + i] = from[i·from_row + j], or to + that. */
EXPORT void transpose(const float *restrict from, Size from_row, float *restrict to, Size to_row, Size rows,
                      Size columns, int add) {
    for (Size i = 0; i < rows; i += LANES)
        for (Size j = 0; j < columns; j += LANES) {
            const float *corner = from + i * from_row + j;
            float *target = to + j * to_row + i;
            if (rows - i >= LANES && columns - j >= LANES) {
                Vector block[LANES];
                UNROLL for (int q = 0; q < LANES; q++) {
                    block[q] = *(const Vector *)(corner + q * from_row);
                    __builtin_prefetch(corner + (q + LANES) * from_row);
                }
                turn(block);
                if (add) UNROLL for (int q = 0; q < LANES; q++) block[q] += *(Vector *)(target + q * to_row);
                UNROLL for (int q = 0; q < LANES; q++) *(Vector *)(target + q * to_row) = block[q];
            } else
                for (Size p = 0; p < SMALLER(LANES, rows - i); p++)
                    for (Size q = 0; q < SMALLER(LANES, columns - j); q++)
                        target[q * to_row + p] = corner[p * from_row + q] + (add ? target[q * to_row + p] : 0);
        }
}

/* b[j·inner + k] → panels. */
INLINE void pack(const float *b, float *panels, Size inner, Size columns) {
    for (Size j = 0; j < columns; j += TILE_COLUMNS)
        transpose(b + j * inner, inner, panels + j * inner, TILE_COLUMNS, SMALLER(TILE_COLUMNS, columns - j), inner, 0);
}

/* c = a·b: [rows, inner]·[inner, columns]. b lies in panels, or row by row: then its columns are `across` = 1 apart, and
   its rows `down` = columns. */
INLINE void multiply_by(const float *a, const float *b, Size across, Size down, float *c, Size rows, Size inner,
                        Size columns) {
    FOR_EACH_TILE(rows)
        for (Size j = 0; j < columns; j += TILE_COLUMNS)
            switch (some) {
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        tiles(a + row * inner, inner, 1, b + j * across, down, c + row * columns + j, columns,                         \
              SMALLER(TILE_COLUMNS, columns - j), inner, 0, n);                                                        \
        break;
                EACH_NUMBER_OF_ROWS
#undef CASE
            }
}

EXPORT void multiply(const float *a, const float *panels, float *c, Size rows, Size inner, Size columns) {
    multiply_by(a, panels, inner, TILE_COLUMNS, c, rows, inner, columns);
}

EXPORT void multiply_unpacked(const float *a, const float *b, float *c, Size rows, Size inner, Size columns) {
    multiply_by(a, b, 1, columns, c, rows, inner, columns);
}

/* c += aᵀ·b: [rows, m]ᵀ·[rows, columns], so few rows at a time that they stay in the first cache. */
EXPORT void add_transposed_times(const float *a, const float *b, float *c, Size rows, Size m, Size columns) {
    enum { ROWS = 64 };
    for (Size inner; inner = SMALLER(ROWS, rows), inner > 0; rows -= inner, a += inner * m, b += inner * columns)
        for (Size j = 0; j < columns; j += TILE_COLUMNS)
            FOR_EACH_TILE(m) {
                for (Size i = row + some; i < SMALLER(row + 2 * some, m); i++) /* what the next tile adds to */
                    for (Size q = 0; q < TILE_COLUMNS; q += LINE) __builtin_prefetch(c + i * columns + j + q, 1);
                switch (some) {
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        tiles(a + row, 1, m, b + j, columns, c + row * columns + j, columns, SMALLER(TILE_COLUMNS, columns - j),       \
              inner, 1, n);                                                                                            \
        break;
                    EACH_NUMBER_OF_ROWS
#undef CASE
                }
            }
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

EXPORT void add_all_moments(const float *x, float *sums, float *squares, Size rows, Size channels) {
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

/* Those of the j-th of several pictures that were taken together. */
INLINE PerChannel of_picture(PerChannel per, Size j, Size channels) {
    Size skipped = j * channels;
    return (PerChannel){per.scale + skipped, per.shift + skipped, per.by_x + skipped, per.by_one + skipped};
}

typedef struct {
    const float *weight, *bias;
    Size channels, groups, rows; /* of one picture */
    float low, high;
} Norm;

INLINE void clear(float *sums, float *others, Size channels) {
    memset(sums, 0, channels * sizeof(float));
    memset(others, 0, channels * sizeof(float));
}

/* One picture, in steps, so that they can be taken while its rows are in the cache for another reason: `clear(scale,
   shift)`, `add_all_moments` to them, then this, then `normalise`. statistics: [groups, (mean, 1/deviation)]. */
INLINE void find_statistics(const Norm *norm, PerChannel per, float *statistics, double eps) {
    Size width = norm->channels / norm->groups;
    double count = (double)(width * norm->rows);
    for (Size g = 0; g < norm->groups; g++, statistics += 2) {
        Size first = g * width, end = first + width;
        float sum = 0, square = 0;
        _Pragma("omp simd reduction(+ : sum, square) simdlen(8)") for (Size c = first; c < end; c++) {
            sum += per.scale[c];
            square += per.shift[c];
        }
        double variance = square / count - (sum / count) * (sum / count);
        statistics[0] = (float)(sum / count);
        statistics[1] = (float)(1 / sqrt((variance < 0 ? 0 : variance) + eps));
    }
}

INLINE void find_scale_and_shift(const Norm *norm, PerChannel per, const float *statistics) {
    Size width = norm->channels / norm->groups;
    for (Size g = 0; g < norm->groups; g++)
        scale_and_shift(statistics + 2 * g, norm->weight, norm->bias, per.scale, per.shift, g * width, (g + 1) * width);
}

EXPORT void normalise_rows(const Norm *norm, PerChannel per, const float *x, float *y, Size rows) {
    normalise(x, per.scale, per.shift, y, rows, norm->channels, norm->low, norm->high);
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

/* Backward, one picture, in steps too: `find_scale_and_shift`, `clear(by_x, by_one)`, this for all rows, then
   `find_slopes`, then `put_slopes`. */
EXPORT void add_all_passed(const Norm *norm, PerChannel per, const float *dy, const float *x, Size rows) {
    Size channels = norm->channels;
    for (; rows >= 4; rows -= 4, dy += 4 * channels, x += 4 * channels)
        add_passed(dy, x, per.scale, per.shift, per.by_x, per.by_one, channels, norm->low, norm->high, 4);
    for (; rows > 0; rows--, dy += channels, x += channels)
        add_passed(dy, x, per.scale, per.shift, per.by_x, per.by_one, channels, norm->low, norm->high, 1);
}

/* Adds to dweight and dbias. */
INLINE void find_slopes(const Norm *norm, PerChannel per, const float *statistics, float *dweight, float *dbias) {
    Size width = norm->channels / norm->groups;
    double count = (double)(width * norm->rows);
    float *by_x = per.by_x, *by_one = per.by_one;
    for (Size g = 0; g < norm->groups; g++) {
        Size first = g * width, end = first + width;
        float mean = statistics[2 * g], rstd = statistics[2 * g + 1], product = 0, sum = 0;
        _Pragma("omp simd reduction(+ : product, sum) simdlen(8)") for (Size c = first; c < end; c++) {
            product += norm->weight[c] * by_x[c];
            sum += norm->weight[c] * by_one[c];
            dweight[c] += (by_x[c] - mean * by_one[c]) * rstd;
            dbias[c] += by_one[c];
        }
        double slope = ((double)sum * mean - product) * rstd * rstd * rstd / count;
        float of_x = (float)slope, of_one = (float)(-slope * mean - (double)sum * rstd / count);
        SIMD for (Size c = first; c < end; c++) by_x[c] = of_x, by_one[c] = of_one;
    }
}

/* The input's gradient; dx may be dy itself. */
EXPORT void put_slopes(const Norm *norm, PerChannel per, const float *dy, const float *x, float *dx, Size rows) {
    Size channels = norm->channels;
    float low = norm->low, high = norm->high;
    const float *scale = per.scale, *shift = per.shift, *by_x = per.by_x, *by_one = per.by_one;
    for (; rows > 0; rows--, dy += channels, x += channels, dx += channels)
        SIMD for (Size c = 0; c < channels; c++)
            dx[c] = scale[c] * passed(dy[c], x[c], scale[c], shift[c], low, high) + (by_x[c] * x[c] + by_one[c]);
}

/* One picture at once. y may be x itself. */
INLINE void norm_picture(const Norm *norm, PerChannel per, const float *x, float *y, float *statistics, double eps) {
    clear(per.scale, per.shift, norm->channels);
    add_all_moments(x, per.scale, per.shift, norm->rows, norm->channels);
    find_statistics(norm, per, statistics, eps);
    find_scale_and_shift(norm, per, statistics);
    normalise_rows(norm, per, x, y, norm->rows);
}

/* Puts the input's gradient in dy's place; adds to dweight and dbias. */
INLINE void norm_picture_backward(const Norm *norm, PerChannel per, float *dy, const float *x, const float *statistics,
                                  float *dweight, float *dbias) {
    find_scale_and_shift(norm, per, statistics);
    clear(per.by_x, per.by_one, norm->channels);
    add_all_passed(norm, per, dy, x, norm->rows);
    find_slopes(norm, per, statistics, dweight, dbias);
    put_slopes(norm, per, dy, x, dy, norm->rows);
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
    Norm norm = {weight, bias, channels, groups, rows, low, high};
    for (Size i = 0, map = rows * channels; i < n; i++)
        norm_picture(&norm, per, x + i * map, y + i * map, statistics + i * 2 * groups, eps);
}

EXPORT void group_norm_backward(float *dy, const float *x, const float *weight, const float *bias,
                                const float *statistics, float *dweight, float *dbias, float *memory, Size n,
                                Size rows, Size channels, Size groups, float low, float high) {
    Workspace workspace = {memory, 0};
    PerChannel per = take_per_channel(&workspace, channels);
    Norm norm = {weight, bias, channels, groups, rows, low, high};
    for (Size i = 0, map = rows * channels; i < n; i++)
        norm_picture_backward(&norm, per, dy + i * map, x + i * map, statistics + i * 2 * groups, dweight, dbias);
}

/* ---- 3×3 windows: tap (ky, kx) of output (oy, ox) meets input (oy·stride + ky − 1, ox·stride + kx − 1) ---- */

/* How many outputs there are along a side. */
#define OUTPUTS(size) (((size)-1) / stride + 1)

/* kernel: [channels, 9] as PyTorch keeps it → [9, channels]. */
INLINE void taps_first(const float *restrict kernel, float *restrict taps, Size channels) {
    for (Size c = 0; c < channels; c++)
        for (Size tap = 0; tap < 9; tap++) taps[tap * channels + c] = kernel[c * 9 + tap];
}

/* ---- Depthwise convolution, row by row: few rows are ever needed at once, and those stay in the cache ---- */

/* The latest rows of a map, with a column of zeros before and after. */
enum { RING_ROWS = 3 };
typedef struct {
    float *rows;
    Size width, channels, end; /* rows before `end` have been put in */
} Ring;

#define RING(width, channels) (RING_ROWS * ((width) + 2) * (channels))

INLINE float *ring_row(const Ring *ring, Size y) {
    return ring->rows + y % RING_ROWS * (ring->width + 2) * ring->channels;
}

INLINE Ring clear_ring(float *memory, Size width, Size channels) {
    Ring ring = {memory, width, channels, 0};
    for (Size y = 0; y < RING_ROWS; y++) {
        memset(ring_row(&ring, y), 0, channels * sizeof(float));
        memset(ring_row(&ring, y) + (width + 1) * channels, 0, channels * sizeof(float));
    }
    return ring;
}

/* Where the next row goes. */
INLINE float *next_row(Ring *ring) { return ring_row(ring, ring->end++) + ring->channels; }

/* Up to nine taps, each with the first of the positions that it meets; positions are `step` apart. */
typedef struct {
    int count;
    const float *map[9], *taps[9];
    float *dtaps[9]; /* for backward only */
} Pairs;

/* y = Σ map·tap at `positions` positions at once, for the channels of a T. */
#define DEFINE_SUM(name, T)                                                                                            \
    INLINE void name(const Pairs *pairs, Size c, Size step, float *y, Size y_step, const int count,                    \
                     const int positions) {                                                                            \
        T sums[4];                                                                                                     \
        UNROLL for (int m = 0; m < positions; m++) sums[m] = (T){0};                                                   \
        UNROLL for (int k = 0; k < count; k++) {                                                                       \
            T tap = *(const T *)(pairs->taps[k] + c);                                                                  \
            const float *map = pairs->map[k] + c;                                                                      \
            UNROLL for (int m = 0; m < positions; m++) sums[m] += *(const T *)(map + m * step) * tap;                  \
        }                                                                                                              \
        UNROLL for (int m = 0; m < positions; m++) *(T *)(y + c + m * y_step) = sums[m];                               \
    }
DEFINE_SUM(sum_vectors, Vector)
DEFINE_SUM(sum_singles, float)

/* dtap += Σ map·x over the positions. */
#define DEFINE_CORRELATION(name, T)                                                                                    \
    INLINE void name(const Pairs *pairs, Size c, Size step, const float *x, Size x_step, const int count,              \
                     Size positions) {                                                                                 \
        T sums[9];                                                                                                     \
        const float *map[9];                                                                                           \
        UNROLL for (int k = 0; k < count; k++) sums[k] = *(const T *)(pairs->dtaps[k] + c), map[k] = pairs->map[k] + c; \
        for (Size m = 0; m < positions; m++) {                                                                         \
            T value = *(const T *)(x + c + m * x_step);                                                                \
            UNROLL for (int k = 0; k < count; k++) sums[k] += *(const T *)(map[k] + m * step) * value;                 \
        }                                                                                                              \
        UNROLL for (int k = 0; k < count; k++) *(T *)(pairs->dtaps[k] + c) = sums[k];                                  \
    }
DEFINE_CORRELATION(correlate_vectors, Vector)
DEFINE_CORRELATION(correlate_singles, float)

#define FOR_EACH_CHANNEL(vectors, singles)                                                                             \
    {                                                                                                                  \
        Size c = 0;                                                                                                    \
        for (; c + LANES <= channels; c += LANES) vectors;                                                             \
        for (; c < channels; c++) singles;                                                                             \
    }

INLINE void move_on(Pairs *pairs, Size by) {
    for (int k = 0; k < pairs->count; k++) pairs->map[k] += by;
}

/* A row of outputs, `y_step` apart. */
INLINE void sum_row(Pairs pairs, Size step, float *y, Size y_step, Size positions, Size channels, const int count) {
    for (; positions >= 4; positions -= 4, y += 4 * y_step, move_on(&pairs, 4 * step))
        FOR_EACH_CHANNEL(sum_vectors(&pairs, c, step, y, y_step, count, 4),
                         sum_singles(&pairs, c, step, y, y_step, count, 4))
    for (; positions > 0; positions--, y += y_step, move_on(&pairs, step))
        FOR_EACH_CHANNEL(sum_vectors(&pairs, c, step, y, y_step, count, 1),
                         sum_singles(&pairs, c, step, y, y_step, count, 1))
}

INLINE void correlate_row(Pairs pairs, Size step, const float *x, Size x_step, Size positions, Size channels,
                          const int count) {
    enum { POSITIONS = 8 }; /* so few that they stay in the first cache from one vector of channels to the next */
    for (Size some; some = SMALLER(POSITIONS, positions), some > 0;
         positions -= some, x += some * x_step, move_on(&pairs, some * step))
        FOR_EACH_CHANNEL(correlate_vectors(&pairs, c, step, x, x_step, count, some),
                         correlate_singles(&pairs, c, step, x, x_step, count, some))
}

/* One, two or three taps each way; with a stride of two, inputs are met by one or two. */
#define EACH_NUMBER_OF_PAIRS CASE(1) CASE(2) CASE(3) CASE(4) CASE(6) CASE(9)

/* Row oy of outputs, from the ring of inputs. */
EXPORT void filter_row(const Ring *inputs, const float *taps, float *y, Size oy, Size height, Size stride) {
    Size channels = inputs->channels, width = inputs->width;
    Pairs pairs = {0};
    for (Size ky = 0; ky < 3; ky++) {
        Size iy = oy * stride + ky - 1;
        for (Size kx = 0; iy >= 0 && iy < height && kx < 3; kx++, pairs.count++) {
            pairs.map[pairs.count] = ring_row(inputs, iy) + kx * channels;
            pairs.taps[pairs.count] = taps + (ky * 3 + kx) * channels;
        }
    }
    switch (pairs.count) {
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        sum_row(pairs, stride * channels, y, channels, OUTPUTS(width), channels, n);                                   \
        break;
        CASE(3) CASE(6) CASE(9)
#undef CASE
    }
}

/* Row iy of the inputs' gradient, from the ring of the outputs'; and what it adds to the taps'. `x`: the inputs. */
EXPORT void filter_row_backward(const Ring *doutputs, const float *taps, const float *x, float *dx, float *dtaps,
                                Size iy, Size height, Size width, Size stride) {
    Size channels = doutputs->channels;
    for (Size phase = 0; phase < SMALLER(stride, width); phase++) { /* inputs that meet the same columns of taps */
        Size positions = (width - phase - 1) / stride + 1, step = stride * channels;
        Pairs pairs = {0};
        for (Size ky = 0; ky < 3; ky++)
            for (Size kx = 0; kx < 3; kx++) {
                Size oy = iy + 1 - ky, ox = phase + 1 - kx;
                if (oy < 0 || oy % stride || ox % stride || oy / stride >= OUTPUTS(height)) continue;
                pairs.map[pairs.count] = ring_row(doutputs, oy / stride) + (ox / stride + 1) * channels;
                pairs.taps[pairs.count] = taps + (ky * 3 + kx) * channels;
                pairs.dtaps[pairs.count++] = dtaps + (ky * 3 + kx) * channels;
            }
        const float *from = x + phase * channels;
        float *to = dx + phase * channels;
        switch (pairs.count) {
        case 0: /* inputs that no output sees, with strides above two */
            for (Size m = 0; m < positions; m++) memset(to + m * step, 0, channels * sizeof(float));
            break;
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        sum_row(pairs, channels, to, step, positions, channels, n);                                                    \
        correlate_row(pairs, channels, from, step, positions, channels, n);                                            \
        break;
            EACH_NUMBER_OF_PAIRS
#undef CASE
        }
    }
}

/* ---- MobileNetV2's inverted residual: widen, filter, narrow, add the input ---- */

typedef struct {
    float *widen, *widened_weight, *widened_bias; /* [hidden, inputs], and GroupNorm's; NULL: the input is filtered */
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
    Size widens;   /* whether there is a layer that widens */
} Shape;

#define UNUSED __attribute__((unused))
#define SHAPE                                                                                                          \
    UNUSED Size height = shape->height, width = shape->width, stride = shape->stride, groups = shape->groups;          \
    UNUSED Size inputs = shape->inputs, channels = shape->hidden, outputs = shape->outputs, widens = shape->widens;    \
    UNUSED Size together = shape->together, in = height * width, out = OUTPUTS(height) * OUTPUTS(width);
#define NORMS                                                                                                          \
    UNUSED Norm widened_norm = {p->widened_weight, p->widened_bias, channels, groups, in, 0, 6};                       \
    UNUSED Norm filtered_norm = {p->filtered_weight, p->filtered_bias, channels, groups, out, 0, 6};                   \
    UNUSED Norm narrowed_norm = {p->narrowed_weight, p->narrowed_bias, outputs, groups, out, -INFINITY, INFINITY};
#define FOR_EACH_CHUNK for (Size i = 0, some; some = SMALLER(together, shape->n - i), some > 0; i += some)
#define STATISTICS(name) (maps->name##_statistics + (i + j) * 2 * groups)

/* The rows of a chunk's maps of `size` rows each, all at once if the chunk is of several pictures (they fit into the
   cache), else a piece at a time: a product of matrices, and what comes before and after it, while they are there. */
enum { PIECE = 64 };
#define ROWS_AT_ONCE(size) (together > 1 ? together * (size) : SMALLER(PIECE, size))
#define FOR_EACH_PIECE(size)                                                                                           \
    for (Size first = 0, rows; rows = SMALLER(ROWS_AT_ONCE(size), some * (size)-first), rows > 0; first += rows)
/* The part of a piece that belongs to picture j of the chunk. */
#define FOR_EACH_PART(size)                                                                                            \
    for (Size j = first / (size), at = first, part;                                                                    \
         part = SMALLER((j + 1) * (size), first + rows) - at, part > 0; at += part, j++)
#define BEGINS(size) (at % (size) == 0)
#define ENDS(size) ((at + part) % (size) == 0)

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
    maps.widened = take(workspace, widens ? kept * in * channels : 0);
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
    float *gathered, *active, *ring, *taps, *widen, *narrow; /* the last two in panels */
    PerChannel per;
} Parts;

INLINE Parts take_parts(Workspace *workspace, const Shape *shape) {
    SHAPE
    Parts parts;
    parts.gathered = take(workspace, together * in * inputs);
    parts.active = take(workspace, ROWS_AT_ONCE(out) * channels);
    parts.ring = take(workspace, RING(width, channels));
    parts.taps = take(workspace, 9 * channels);
    parts.widen = take(workspace, widens ? PANELS(inputs, channels) : 0);
    parts.narrow = take(workspace, PANELS(channels, outputs));
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
EXPORT void inverted_residual(const Shape *shape, const Parameters *p, float *map_memory, const float *x,
                              const Size *pictures, float *y, float *memory, double eps, float factor, int is_residual,
                              int keep) {
    SHAPE NORMS
    Workspace map_space = {map_memory, 0}, workspace = {memory, 0};
    Maps own_maps = take_maps(&map_space, shape, keep), *maps = &own_maps;
    Parts parts = take_parts(&workspace, shape);
    PerChannel per = parts.per;
    taps_first(p->kernel, parts.taps, channels);
    if (widens) pack(p->widen, parts.widen, inputs, channels);
    pack(p->narrow, parts.narrow, channels, outputs);
    FOR_EACH_CHUNK {
        Size kept = keep ? i : 0;
        float *widened = maps->widened + kept * in * channels, *filtered = maps->filtered + kept * out * channels;
        float *narrowed = maps->narrowed + kept * out * outputs;
        const float *xs = gather(x, pictures, parts.gathered, i, some, in * inputs);
        if (widens) FOR_EACH_PIECE(in) {
            multiply(xs + first * inputs, parts.widen, widened + first * channels, rows, inputs, channels);
            FOR_EACH_PART(in) {
                if (BEGINS(in)) clear(per.scale, per.shift, channels);
                add_all_moments(widened + at * channels, per.scale, per.shift, part, channels);
                if (ENDS(in)) find_statistics(&widened_norm, per, STATISTICS(widened), eps);
            }
        }
        for (Size j = 0; j < some; j++) {
            const float *from = (widens ? widened : xs) + j * in * channels;
            float *to = filtered + j * out * channels;
            Size row = width * channels, row_out = OUTPUTS(width) * channels;
            Ring ring = clear_ring(parts.ring, width, channels);
            if (widens) find_scale_and_shift(&widened_norm, per, STATISTICS(widened));
            clear(per.by_x, per.by_one, channels);
            for (Size oy = 0; oy < OUTPUTS(height); oy++, to += row_out) {
                for (; ring.end < SMALLER(oy * stride + 2, height); from += row)
                    if (widens)
                        normalise_rows(&widened_norm, per, from, next_row(&ring), width);
                    else
                        memcpy(next_row(&ring), from, row * sizeof(float));
                filter_row(&ring, parts.taps, to, oy, height, stride);
                add_all_moments(to, per.by_x, per.by_one, OUTPUTS(width), channels);
            }
            find_statistics(&filtered_norm, (PerChannel){per.by_x, per.by_one, NULL, NULL}, STATISTICS(filtered), eps);
        }
        FOR_EACH_PIECE(out) {
            FOR_EACH_PART(out) {
                if (BEGINS(out)) find_scale_and_shift(&filtered_norm, per, STATISTICS(filtered));
                normalise_rows(&filtered_norm, per, filtered + at * channels, parts.active + (at - first) * channels,
                               part);
            }
            multiply(parts.active, parts.narrow, narrowed + first * outputs, rows, channels, outputs);
        }
        for (Size j = 0, map = out * outputs; j < some; j++) {
            float *to = y + PICTURE * map;
            const float *from = xs + j * map;
            norm_picture(&narrowed_norm, per, narrowed + j * map, to, STATISTICS(narrowed), eps);
            if (is_residual) SIMD for (Size c = 0; c < map; c++) to[c] = from[c] + factor * to[c];
        }
    }
}

typedef struct {
    float *dgathered, *dnarrowed, *dfiltered, *dwidened; /* of `together` pictures */
    float *ring, *row, *dtaps, *dwiden;                  /* the last [inputs, hidden], if it is summed so */
    PerChannel filtered, widened;                        /* of each of `together` pictures */
} Gradients;

/* Whether the gradient of what widens is summed the other way round: so few columns make poor tiles. */
#define TURNED (widens && inputs < TILE_COLUMNS)

INLINE Gradients take_gradients(Workspace *workspace, const Shape *shape) {
    SHAPE
    Gradients gradients;
    gradients.dgathered = take(workspace, together * in * inputs);
    gradients.dnarrowed = take(workspace, together * out * outputs);
    gradients.dfiltered = take(workspace, together * out * channels);
    gradients.dwidened = take(workspace, widens ? together * in * channels : 0);
    gradients.ring = take(workspace, RING(OUTPUTS(width), channels));
    gradients.row = take(workspace, width * channels);
    gradients.dtaps = take(workspace, 9 * channels);
    gradients.dwiden = take(workspace, TURNED ? inputs * channels : 0);
    gradients.filtered = take_per_channel(workspace, together * channels);
    gradients.widened = take_per_channel(workspace, together * channels);
    return gradients;
}

typedef struct {
    float *gathered, *active, *taps;
    PerChannel per;
} BackwardParts;

INLINE BackwardParts take_backward_parts(Workspace *workspace, const Shape *shape) {
    SHAPE
    BackwardParts parts;
    parts.gathered = take(workspace, together * in * inputs);
    parts.active = take(workspace, ROWS_AT_ONCE(out) * channels);
    parts.taps = take(workspace, 9 * channels);
    parts.per = take_per_channel(workspace, outputs);
    return parts;
}

Size inverted_residual_backward_workspace(const Shape *shape) {
    Workspace counted = {NULL, 0};
    take_backward_parts(&counted, shape);
    take_gradients(&counted, shape);
    return counted.used;
}

/* Adds to the parameters' gradients, and, for a residual, to dy, which is dx; else dx is written. */
EXPORT void inverted_residual_backward(const Shape *shape, const Parameters *p, const Parameters *d, float *map_memory,
                                       const float *x, const Size *pictures, const float *dy, float *dx, float *memory,
                                       float factor, int is_residual) {
    SHAPE NORMS
    Workspace map_space = {map_memory, 0}, workspace = {memory, 0};
    Maps own_maps = take_maps(&map_space, shape, 1), *maps = &own_maps;
    BackwardParts parts = take_backward_parts(&workspace, shape);
    Gradients g = take_gradients(&workspace, shape);
    taps_first(p->kernel, parts.taps, channels);
    memset(g.dtaps, 0, 9 * channels * sizeof(float));
    if (TURNED) memset(g.dwiden, 0, inputs * channels * sizeof(float));
    FOR_EACH_CHUNK {
        const float *xs = gather(x, pictures, parts.gathered, i, some, in * inputs);
        const float *widened = maps->widened + i * in * channels, *filtered = maps->filtered + i * out * channels;
        for (Size j = 0, map = out * outputs; j < some; j++) {
            const float *from = dy + PICTURE * map;
            float *to = g.dnarrowed + j * map;
            SIMD for (Size c = 0; c < map; c++) to[c] = factor * from[c];
            norm_picture_backward(&narrowed_norm, parts.per, to, maps->narrowed + (i + j) * map, STATISTICS(narrowed),
                                  d->narrowed_weight, d->narrowed_bias);
        }
        FOR_EACH_PIECE(out) {
            FOR_EACH_PART(out) {
                PerChannel per = of_picture(g.filtered, j, channels);
                if (BEGINS(out)) find_scale_and_shift(&filtered_norm, per, STATISTICS(filtered));
                normalise_rows(&filtered_norm, per, filtered + at * channels, parts.active + (at - first) * channels,
                               part);
            }
            const float *dnarrowed = g.dnarrowed + first * outputs;
            add_transposed_times(dnarrowed, parts.active, d->narrow, rows, outputs, channels);
            multiply_unpacked(dnarrowed, p->narrow, g.dfiltered + first * channels, rows, outputs, channels);
            FOR_EACH_PART(out) {
                PerChannel per = of_picture(g.filtered, j, channels);
                if (BEGINS(out)) clear(per.by_x, per.by_one, channels);
                add_all_passed(&filtered_norm, per, g.dfiltered + at * channels, filtered + at * channels, part);
                if (ENDS(out))
                    find_slopes(&filtered_norm, per, STATISTICS(filtered), d->filtered_weight, d->filtered_bias);
            }
        }
        for (Size j = 0; j < some; j++) {
            PerChannel of_filtered = of_picture(g.filtered, j, channels);
            PerChannel of_widened = of_picture(g.widened, j, channels);
            Size row = width * channels, row_out = OUTPUTS(width) * channels;
            const float *from = (widens ? widened : xs) + j * in * channels;
            float *to = (widens ? g.dwidened : g.dgathered) + j * in * channels;
            Ring ring = clear_ring(g.ring, OUTPUTS(width), channels);
            if (widens) find_scale_and_shift(&widened_norm, of_widened, STATISTICS(widened));
            clear(of_widened.by_x, of_widened.by_one, channels);
            for (Size iy = 0; iy < height; iy++, from += row, to += row) {
                while (ring.end < SMALLER((iy + 1) / stride + 1, OUTPUTS(height))) {
                    Size at = j * out * channels + ring.end * row_out;
                    put_slopes(&filtered_norm, of_filtered, g.dfiltered + at, filtered + at, next_row(&ring),
                               OUTPUTS(width));
                }
                if (widens) normalise_rows(&widened_norm, of_widened, from, g.row, width);
                filter_row_backward(&ring, parts.taps, widens ? g.row : from, to, g.dtaps, iy, height, width, stride);
                if (widens) add_all_passed(&widened_norm, of_widened, to, from, width);
            }
            if (widens) find_slopes(&widened_norm, of_widened, STATISTICS(widened), d->widened_weight, d->widened_bias);
        }
        if (widens) FOR_EACH_PIECE(in) {
            float *dwidened = g.dwidened + first * channels;
            FOR_EACH_PART(in) {
                float *dy = g.dwidened + at * channels;
                put_slopes(&widened_norm, of_picture(g.widened, j, channels), dy, widened + at * channels, dy, part);
            }
            if (TURNED)
                add_transposed_times(xs + first * inputs, dwidened, g.dwiden, rows, inputs, channels);
            else
                add_transposed_times(dwidened, xs + first * inputs, d->widen, rows, channels, inputs);
            multiply_unpacked(dwidened, p->widen, g.dgathered + first * inputs, rows, channels, inputs);
        }
        for (Size j = 0, map = in * inputs; j < some; j++) {
            float *to = dx + PICTURE * map;
            const float *from = g.dgathered + j * map;
            SIMD for (Size c = 0; c < map; c++) to[c] = from[c] + (is_residual ? to[c] : 0);
        }
    }
    transpose(g.dtaps, channels, d->kernel, 9, 9, channels, 1);
    if (TURNED) transpose(g.dwiden, channels, d->widen, inputs, inputs, channels, 1);
}

/* ---- A layer on rows: [rows, inputs]·[outputs, inputs]ᵀ ---- */

Size linear_workspace(Size inputs, Size outputs) {
    Workspace counted = {NULL, 0};
    take(&counted, PANELS(inputs, outputs));
    return counted.used;
}

/* bias: [outputs], or NULL. */
EXPORT void linear(const float *x, const float *weight, const float *bias, float *y, float *memory, Size rows,
                   Size inputs, Size outputs) {
    Workspace workspace = {memory, 0};
    float *panels = take(&workspace, PANELS(inputs, outputs));
    pack(weight, panels, inputs, outputs);
    multiply(x, panels, y, rows, inputs, outputs);
    for (Size i = 0; bias && i < rows; i++)
        SIMD for (Size j = 0; j < outputs; j++) y[i * outputs + j] += bias[j];
}

/* Adds to dweight and, if there is one, dbias. */
EXPORT void linear_backward(const float *dy, const float *x, const float *weight, float *dx, float *dweight,
                            float *dbias, Size rows, Size inputs, Size outputs) {
    add_transposed_times(dy, x, dweight, rows, outputs, inputs);
    for (Size i = 0; dbias && i < rows; i++)
        SIMD for (Size j = 0; j < outputs; j++) dbias[j] += dy[i * outputs + j];
    multiply_unpacked(dy, weight, dx, rows, outputs, inputs);
}

/* The mean over a map's positions, [n, positions, channels] → [n, channels]. */
EXPORT void average(const float *x, float *y, Size n, Size positions, Size channels) {
    for (Size i = 0; i < n; i++, y += channels) {
        memset(y, 0, channels * sizeof(float));
        for (Size p = 0; p < positions; p++, x += channels)
            SIMD for (Size c = 0; c < channels; c++) y[c] += x[c];
        SIMD for (Size c = 0; c < channels; c++) y[c] /= (float)positions;
    }
}

/* [n, rows, columns] → [n, columns, rows]. */
EXPORT void turn_maps(const float *x, float *y, Size n, Size rows, Size columns) {
    for (Size i = 0; i < n; i++, x += rows * columns, y += rows * columns)
        transpose(x, columns, y, rows, rows, columns, 0);
}

/* ---- Pictures ---- */

/* Bytes [n, channels, pixels] → numbers [n, pixels, channels], by a table [channels, 256]. */
EXPORT void look_up(const uint8_t *x, const float *table, float *y, Size n, Size channels, Size pixels) {
    for (Size i = 0; i < n; i++, y += pixels * channels)
        for (Size c = 0; c < channels; c++, x += pixels)
            for (Size p = 0; p < pixels; p++) y[p * channels + c] = table[c * 256 + x[p]];
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

#define MAP_IN (height * width * channels)

/* For each output, and each row ky of its window: from its column `first` on, `inside` numbers lie on the map, side by
   side, from `input` on. A column is of `channels` numbers. */
#define FOR_EACH_ROW_OF_A_WINDOW                                                                                       \
    for (Size oy = 0; oy < OUTPUTS(height); oy++)                                                                      \
        for (Size ox = 0; ox < OUTPUTS(width); ox++)                                                                   \
            for (Size ky = 0, iy = oy * stride - 1, first = ox == 0, end = SMALLER(3, width + 1 - ox * stride),        \
                      input, inside;                                                                                   \
                 inside = (iy >= 0 && iy < height ? end - first : 0) * channels,                                       \
                      input = (iy * width + ox * stride + first - 1) * channels, ky < 3;                               \
                 ky++, iy++)

/* One picture's, [outputs, 9, channels], zero where a window leaves the map. */
INLINE void windows(const float *x, float *windows, Size height, Size width, Size channels, Size stride) {
    FOR_EACH_ROW_OF_A_WINDOW {
        if (inside < 3 * channels) memset(windows, 0, 3 * channels * sizeof(float));
        float *to = windows + first * channels;
        if (inside == 9) /* a row of three channels, most of a coloured picture's: too short for a loop */
            memcpy(to, x + input, 9 * sizeof(float));
        else
            SIMD for (Size c = 0; c < inside; c++) to[c] = x[input + c];
        windows += 3 * channels;
    }
}

INLINE void windows_backward(const float *dwindows, float *dx, Size height, Size width, Size channels, Size stride) {
    memset(dx, 0, MAP_IN * sizeof(float));
    FOR_EACH_ROW_OF_A_WINDOW {
        const float *from = dwindows + first * channels;
        SIMD for (Size c = 0; c < inside; c++) dx[input + c] += from[c];
        dwindows += 3 * channels;
    }
}

typedef struct {
    Size n, height, width, channels, outputs, stride;
} Convolution;

typedef struct {
    float *kernel, *panels, *windows, *dwindows, *dkernel; /* the last two for backward only */
    Size together; /* so many pictures at once, that their windows stay in the cache */
} ConvolutionParts;

#define CONVOLUTION                                                                                                    \
    UNUSED Size height = conv->height, width = conv->width, stride = conv->stride;                                     \
    UNUSED Size channels = conv->channels, outputs = conv->outputs, inner = 9 * channels;                              \
    UNUSED Size out = OUTPUTS(height) * OUTPUTS(width);

INLINE ConvolutionParts take_convolution(Workspace *workspace, const Convolution *conv) {
    CONVOLUTION
    enum { FLOATS = 65536 };
    ConvolutionParts parts;
    parts.together = LARGER(1, SMALLER(conv->n, FLOATS / (out * inner)));
    parts.kernel = take(workspace, outputs * inner);
    parts.panels = take(workspace, PANELS(inner, outputs));
    parts.windows = take(workspace, parts.together * out * inner);
    parts.dwindows = take(workspace, parts.together * out * inner);
    parts.dkernel = take(workspace, inner * outputs);
    return parts;
}

Size convolution_workspace(const Convolution *conv) {
    Workspace counted = {NULL, 0};
    take_convolution(&counted, conv);
    return counted.used;
}

/* kernel: [outputs, channels, 3, 3] → [outputs, 9, channels]. */
INLINE void sort_kernel(const float *kernel, float *sorted, Size outputs, Size channels) {
    for (Size o = 0; o < outputs; o++) taps_first(kernel + o * 9 * channels, sorted + o * 9 * channels, channels);
}

#define FOR_EACH_CHUNK_OF(count)                                                                                       \
    for (Size i = 0, some; some = SMALLER(parts.together, (count)-i), some > 0; i += some)

/* Every window times one matrix. */
EXPORT void convolution(const Convolution *conv, const float *x, const float *kernel, float *y, float *memory) {
    CONVOLUTION
    Workspace workspace = {memory, 0};
    ConvolutionParts parts = take_convolution(&workspace, conv);
    sort_kernel(kernel, parts.kernel, outputs, channels);
    pack(parts.kernel, parts.panels, inner, outputs);
    FOR_EACH_CHUNK_OF(conv->n) {
        for (Size j = 0; j < some; j++)
            windows(x + (i + j) * MAP_IN, parts.windows + j * out * inner, height, width, channels, stride);
        multiply(parts.windows, parts.panels, y + i * out * outputs, some * out, inner, outputs);
    }
}

/* Adds to dkernel; dx may be NULL. */
EXPORT void convolution_backward(const Convolution *conv, const float *dy, const float *x, const float *kernel,
                                 float *dx, float *dkernel, float *memory) {
    CONVOLUTION
    Workspace workspace = {memory, 0};
    ConvolutionParts parts = take_convolution(&workspace, conv);
    sort_kernel(kernel, parts.kernel, outputs, channels);
    memset(parts.dkernel, 0, inner * outputs * sizeof(float));
    FOR_EACH_CHUNK_OF(conv->n) {
        const float *slopes = dy + i * out * outputs;
        for (Size j = 0; j < some; j++)
            windows(x + (i + j) * MAP_IN, parts.windows + j * out * inner, height, width, channels, stride);
        add_transposed_times(parts.windows, slopes, parts.dkernel, some * out, inner, outputs);
        if (!dx) continue;
        multiply_unpacked(slopes, parts.kernel, parts.dwindows, some * out, outputs, inner);
        for (Size j = 0; j < some; j++)
            windows_backward(parts.dwindows + j * out * inner, dx + (i + j) * MAP_IN, height, width, channels, stride);
    }
    for (Size o = 0; o < outputs; o++) /* [9, channels, outputs] → [outputs, channels, 9] */
        for (Size c = 0; c < channels; c++)
            for (Size tap = 0; tap < 9; tap++)
                dkernel[(o * channels + c) * 9 + tap] += parts.dkernel[(tap * channels + c) * outputs + o];
}
