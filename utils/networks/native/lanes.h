/* Layers of small networks on LANES images side by side, one in each lane of a vector.

   Every sum is taken in one order, whatever the processor. All sizes are constants where these
   functions are called, and the compiler makes a function of its own for each. Maps of several
   channels are [height, width, channels], so that a row of a kernel reads neighbours. */

#include <stdint.h>
#include <string.h>

#define LANES 16
#define REGISTERS 32 /* sums that are taken at a time, at most */
#define INLINE static inline __attribute__((always_inline))
#define STEP static __attribute__((noinline)) void /* alone it keeps its sums in registers */
#define UNROLLED _Pragma("GCC unroll 32")
#define ROUNDED_UP(size, multiple) (((size) + (multiple) - 1) / (multiple) * (multiple))

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t marks __attribute__((vector_size(4 * LANES)));
typedef int8_t places __attribute__((vector_size(LANES))); /* within pooling windows */
typedef lanes unaligned_lanes __attribute__((aligned(4), may_alias));
typedef float unaligned_eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef float unaligned_four __attribute__((vector_size(16), aligned(4), may_alias));

/* Like comparisons below, this keeps NaN, so that training that diverges is noticed. */
INLINE lanes positive(lanes value, lanes condition) {
    return (lanes)((marks)value & ~(condition <= 0.0f));
}

/* ---- between images and lanes */

#ifdef __clang__
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (marks){__VA_ARGS__})
#endif

/* Transpose a matrix of LANES rows. Each of four rounds turns the eight bits of an index by one. */
INLINE void transpose(lanes rows[LANES]) {
    lanes next[LANES];
    UNROLLED for (int round = 0; round < 4; round++) {
        UNROLLED for (int row = 0; row < LANES / 2; row++) {
            lanes a = rows[row], b = rows[row + LANES / 2];
            next[2 * row] = SHUFFLED(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            next[2 * row + 1] =
                SHUFFLED(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        UNROLLED for (int row = 0; row < LANES; row++)
            rows[row] = next[row];
    }
}

/* Read images [channels, size] into pixels [size, channels]. */
INLINE void read_pixels(int channels, int size, const float *const *images, lanes *pixels) {
    for (int channel = 0; channel < channels; channel++) {
        int pixel = 0;
        for (; pixel + LANES <= size; pixel += LANES) {
            lanes rows[LANES];
            UNROLLED for (int lane = 0; lane < LANES; lane++)
                rows[lane] = *(const unaligned_lanes *)(images[lane] + channel * size + pixel);
            transpose(rows);
            UNROLLED for (int row = 0; row < LANES; row++)
                pixels[(pixel + row) * channels + channel] = rows[row];
        }
        for (; pixel < size; pixel++)
            for (int lane = 0; lane < LANES; lane++)
                pixels[pixel * channels + channel][lane] = images[lane][channel * size + pixel];
    }
}

/* Write a row of ROUNDED_UP(count, LANES) numbers for each lane; those behind `count` are 0. */
INLINE void write_rows(int count, const lanes *values, float *rows, int stride) {
    for (int start = 0; start < count; start += LANES) {
        lanes block[LANES] = {{0}};
        for (int index = 0; index < LANES && start + index < count; index++)
            block[index] = values[start + index];
        transpose(block);
        UNROLLED for (int lane = 0; lane < LANES; lane++)
            *(unaligned_lanes *)(rows + lane * stride + start) = block[lane];
    }
}

/* Add the sums over all lanes to an array. */
INLINE void add_lanes(int count, const lanes *sums, float *array) {
    for (int index = 0; index < count; index++) {
        double total = 0;
        for (int lane = 0; lane < LANES; lane++)
            total += sums[index][lane];
        array[index] += (float)total;
    }
}

/* ---- convolution, max-pooling, ReLU */

typedef struct {
    int in, out, kernel, pool, height, width; /* height and width of its input */
    int channels_last;                        /* in its output */
} Convolution;

#define POOLED(side, kernel, pool) (((side) - (kernel) + 1) / (pool))
/* Numbers that the gradient of a row of a kernel takes. */
#define PATCH_ROW(in, kernel) ROUNDED_UP((in) * (kernel), LANES)

INLINE int pooled_rows(const Convolution layer) {
    return POOLED(layer.height, layer.kernel, layer.pool);
}

INLINE int pooled_columns(const Convolution layer) {
    return POOLED(layer.width, layer.kernel, layer.pool);
}

INLINE int output_at(const Convolution layer, int out, int y, int x) {
    int window = y * pooled_columns(layer) + x;
    int windows = pooled_rows(layer) * pooled_columns(layer);
    return layer.channels_last ? window * layer.out + out : out * windows + window;
}

/* Of a place in a window, in positions of the input. */
INLINE int place_offset(const Convolution layer, int place) {
    return place / layer.pool * layer.width + place % layer.pool;
}

/* Take the first of equal values. Their maximum is 0 at least: this is ReLU. */
INLINE void choose_largest(int area, const lanes *values, lanes *maximum, places *chosen) {
    lanes best = {0};
    marks place = {0};
    UNROLLED for (int at = 0; at < area; at++) {
        marks larger = (values[at] > best) | (values[at] != values[at]);
        best = (lanes)(((marks)values[at] & larger) | ((marks)best & ~larger));
        place = (at & larger) | (place & ~larger);
    }
    *maximum = best;
    *chosen = __builtin_convertvector(place, places);
}

/* Compute `block` channels of one window, from the output `first` on. */
INLINE void pool_window(const Convolution layer, int block, int first, int y, int x,
                        const float *weights, const float *bias, const lanes *pixels, lanes *maps,
                        places *chosen) {
    const int kernel = layer.kernel, area = layer.pool * layer.pool;
    const lanes *corner = pixels + layer.pool * (y * layer.width + x) * layer.in;
    lanes sums[REGISTERS];
    weights += first * layer.in * kernel * kernel;
    UNROLLED for (int out = 0; out < block; out++)
        UNROLLED for (int at = 0; at < area; at++)
            sums[out * area + at] = (bias ? bias[first + out] : 0.0f) + (lanes){0};
    for (int i = 0; i < kernel; i++)
        for (int j = 0; j < kernel; j++)
            for (int in = 0; in < layer.in; in++)
                UNROLLED for (int at = 0; at < area; at++) {
                    int position = i * layer.width + j + place_offset(layer, at);
                    lanes pixel = corner[position * layer.in + in];
                    UNROLLED for (int out = 0; out < block; out++)
                        sums[out * area + at] +=
                            weights[((out * layer.in + in) * kernel + i) * kernel + j] * pixel;
                }
    UNROLLED for (int out = 0; out < block; out++) {
        const int at = output_at(layer, first + out, y, x);
        choose_largest(area, sums + out * area, maps + at, chosen + at);
    }
}

/* Set `maps` to the pooled outputs, and `chosen` to the places of the maxima.

   The weights are [out, in, kernel, kernel], and sums start at a bias [out] if there is one. */
INLINE void pool_convolution(const Convolution layer, const float *weights, const float *bias,
                             const lanes *pixels, lanes *maps, places *chosen) {
    const int most = 24 / (layer.pool * layer.pool); /* sums stay in registers */
    const int blocks = (layer.out + most - 1) / most, block = (layer.out + blocks - 1) / blocks;
    const int whole = layer.out / block * block;
    for (int first = 0; first < whole; first += block)
        for (int y = 0; y < pooled_rows(layer); y++)
            for (int x = 0; x < pooled_columns(layer); x++)
                pool_window(layer, block, first, y, x, weights, bias, pixels, maps, chosen);
    if (whole < layer.out)
        for (int y = 0; y < pooled_rows(layer); y++)
            for (int x = 0; x < pooled_columns(layer); x++)
                pool_window(layer, layer.out - whole, whole, y, x, weights, bias, pixels, maps,
                            chosen);
}

/* The sums over patches, which stay in registers: each row of a kernel has `parts` vectors of LANES
   numbers, and behind these a shorter one for a rest of at most eight, or four. */
INLINE int rest_of(const Convolution layer) { return layer.in * layer.kernel % LANES; }

INLINE int parts_of(const Convolution layer) {
    return layer.in * layer.kernel / LANES + (rest_of(layer) > 8);
}

INLINE int has_eight(const Convolution layer) {
    return rest_of(layer) > 4 && rest_of(layer) <= 8;
}

INLINE int has_four(const Convolution layer) { return rest_of(layer) > 0 && rest_of(layer) <= 4; }

INLINE void read_sums(const Convolution layer, const float *sums, lanes *wide,
                      unaligned_eight *eight, unaligned_four *four) {
    UNROLLED for (int i = 0; i < layer.kernel; i++) {
        const float *row = sums + i * PATCH_ROW(layer.in, layer.kernel);
        UNROLLED for (int part = 0; part < parts_of(layer); part++)
            *wide++ = *(const unaligned_lanes *)(row + part * LANES);
        if (has_eight(layer))
            eight[i] = *(const unaligned_eight *)(row + parts_of(layer) * LANES);
        if (has_four(layer))
            four[i] = *(const unaligned_four *)(row + parts_of(layer) * LANES);
    }
}

INLINE void write_sums(const Convolution layer, const lanes *wide, const unaligned_eight *eight,
                       const unaligned_four *four, float *sums) {
    UNROLLED for (int i = 0; i < layer.kernel; i++) {
        float *row = sums + i * PATCH_ROW(layer.in, layer.kernel);
        UNROLLED for (int part = 0; part < parts_of(layer); part++)
            *(unaligned_lanes *)(row + part * LANES) = *wide++;
        if (has_eight(layer))
            *(unaligned_eight *)(row + parts_of(layer) * LANES) = eight[i];
        if (has_four(layer))
            *(unaligned_four *)(row + parts_of(layer) * LANES) = four[i];
    }
}

INLINE void add_patch(const Convolution layer, float slope, const float *corner, lanes *wide,
                      unaligned_eight *eight, unaligned_four *four) {
    UNROLLED for (int i = 0; i < layer.kernel; i++) {
        const float *row = corner + i * layer.width * layer.in;
        UNROLLED for (int part = 0; part < parts_of(layer); part++)
            *wide++ += slope * *(const unaligned_lanes *)(row + part * LANES);
        if (has_eight(layer))
            eight[i] += slope * *(const unaligned_eight *)(row + parts_of(layer) * LANES);
        if (has_four(layer))
            four[i] += slope * *(const unaligned_four *)(row + parts_of(layer) * LANES);
    }
}

/* Add the gradient by one channel's weights to `sums` [kernel, PATCH_ROW].

   Only the place of a maximum has a gradient, and it is another one in every image. So these are
   sums over images [height, width, in] one by one. Behind an image there must be as many numbers as
   its last vector reads. */
INLINE void add_patches(const Convolution layer, int out, const float *const *images, int count,
                        const lanes *slopes, const places *chosen, float *sums) {
    lanes wide[layer.kernel * parts_of(layer) + 1];
    unaligned_eight eight[layer.kernel];
    unaligned_four four[layer.kernel];
    int offsets[layer.pool * layer.pool];
    UNROLLED for (int at = 0; at < layer.pool * layer.pool; at++)
        offsets[at] = place_offset(layer, at) * layer.in;
    read_sums(layer, sums, wide, eight, four);
    for (int y = 0; y < pooled_rows(layer); y++)
        for (int x = 0; x < pooled_columns(layer); x++) {
            const int at = output_at(layer, out, y, x);
            const int corner = layer.pool * (y * layer.width + x) * layer.in;
            for (int lane = 0; lane < count; lane++)
                add_patch(layer, slopes[at][lane],
                          images[lane] + corner + offsets[chosen[at][lane]], wide, eight, four);
        }
    write_sums(layer, wide, eight, four, sums);
}

/* Add sums [out, kernel, PATCH_ROW] to a gradient [out, in, kernel, kernel]. */
INLINE void add_kernels(int out, int in, int kernel, const float *sums, float *gradient) {
    for (int row = 0; row < out * kernel; row++, sums += PATCH_ROW(in, kernel))
        for (int j = 0; j < kernel; j++)
            for (int c = 0; c < in; c++) {
                int o = row / kernel, i = row % kernel;
                gradient[((o * in + c) * kernel + i) * kernel + j] += sums[j * in + c];
            }
}

/* Spread slopes over the places of pooling windows: errors [out, pool · rows, pool · columns]. */
INLINE void unpool(const Convolution layer, const lanes *slopes, const places *chosen,
                   lanes *errors) {
    const int rows = pooled_rows(layer), columns = pooled_columns(layer), pool = layer.pool;
    for (int out = 0; out < layer.out; out++)
        for (int y = 0; y < rows; y++)
            for (int x = 0; x < columns; x++) {
                const int from = output_at(layer, out, y, x);
                const marks place = __builtin_convertvector(chosen[from], marks);
                lanes *corner = errors + ((out * rows + y) * columns * pool + x) * pool;
                UNROLLED for (int at = 0; at < pool * pool; at++)
                    corner[at / pool * columns * pool + at % pool] = (lanes)(
                        (marks)slopes[from] & (place == at));
            }
}

/* Add to row y of the slopes what `tile` columns of errors from x on give to `block` channels. */
INLINE void add_row_behind(const Convolution layer, int block, int tile, int in, int y, int x,
                           const float *weights, const lanes *errors, lanes *slopes) {
    const int kernel = layer.kernel, reach = tile + kernel - 1;
    const int rows = pooled_rows(layer) * layer.pool, columns = pooled_columns(layer) * layer.pool;
    const int first = y < rows ? 0 : y - rows + 1, last = y < kernel ? y : kernel - 1;
    lanes *row = slopes + (y * layer.width + x) * layer.in + in;
    lanes sums[REGISTERS];
    UNROLLED for (int c = 0; c < block; c++)
        UNROLLED for (int at = 0; at < reach; at++)
            sums[c * reach + at] = row[at * layer.in + c];
    for (int out = 0; out < layer.out; out++)
        for (int i = first; i <= last; i++) {
            const lanes *error = errors + (out * rows + y - i) * columns + x;
            const float *weight = weights + ((out * layer.in + in) * kernel + i) * kernel;
            UNROLLED for (int at = 0; at < tile; at++)
                UNROLLED for (int c = 0; c < block; c++)
                    UNROLLED for (int j = 0; j < kernel; j++)
                        sums[c * reach + at + j] += weight[c * kernel * kernel + j] * error[at];
        }
    UNROLLED for (int c = 0; c < block; c++)
        UNROLLED for (int at = 0; at < reach; at++)
            row[at * layer.in + c] = sums[c * reach + at];
}

/* The same for all columns, in tiles that stay in registers. */
INLINE void add_tiles_behind(const Convolution layer, int block, int in, int y,
                             const float *weights, const lanes *errors, lanes *slopes) {
    const int columns = pooled_columns(layer) * layer.pool, tiles = (columns + 9) / 10;
    const int tile = (columns + tiles - 1) / tiles, whole = columns / tile * tile;
    for (int x = 0; x < whole; x += tile)
        add_row_behind(layer, block, tile, in, y, x, weights, errors, slopes);
    if (whole < columns)
        add_row_behind(layer, block, columns - whole, in, y, whole, weights, errors, slopes);
}

/* Set the gradient by the input [height, width, in], from errors as of `unpool`. */
INLINE void back_through_convolution(const Convolution layer, const float *weights,
                                     const lanes *errors, lanes *slopes) {
    const int rows = pooled_rows(layer) * layer.pool + layer.kernel - 1;
    memset(slopes, 0, layer.height * layer.width * layer.in * sizeof(lanes));
    for (int y = 0; y < rows; y++) {
        for (int in = 0; in + 2 <= layer.in; in += 2)
            add_tiles_behind(layer, 2, in, y, weights, errors, slopes);
        if (layer.in % 2)
            add_tiles_behind(layer, 1, layer.in - 1, y, weights, errors, slopes);
    }
}

/* ---- linear layers: weights are [out, in] */

INLINE void map_outputs(int in, int block, const float *weights, const float *bias,
                        const lanes *inputs, lanes *outputs) {
    lanes sums[REGISTERS];
    UNROLLED for (int out = 0; out < block; out++)
        sums[out] = bias[out] + (lanes){0};
    for (int index = 0; index < in; index++)
        UNROLLED for (int out = 0; out < block; out++)
            sums[out] += weights[out * in + index] * inputs[index];
    UNROLLED for (int out = 0; out < block; out++)
        outputs[out] = sums[out];
}

INLINE void linear(int in, int out, const float *weights, const float *bias, const lanes *inputs,
                   lanes *outputs) {
    const int block = 12, whole = out / block * block;
    for (int first = 0; first < whole; first += block)
        map_outputs(in, block, weights + first * in, bias + first, inputs, outputs + first);
    if (whole < out)
        map_outputs(in, out - whole, weights + whole * in, bias + whole, inputs, outputs + whole);
}

INLINE void map_back(int in, int out, int block, const float *weights, const lanes *errors,
                     lanes *slopes) {
    lanes sums[REGISTERS];
    UNROLLED for (int index = 0; index < block; index++)
        sums[index] = (lanes){0};
    for (int o = 0; o < out; o++)
        UNROLLED for (int index = 0; index < block; index++)
            sums[index] += weights[o * in + index] * errors[o];
    UNROLLED for (int index = 0; index < block; index++)
        slopes[index] = sums[index];
}

/* Set the gradient by the inputs. */
INLINE void back_through_linear(int in, int out, const float *weights, const lanes *errors,
                                lanes *slopes) {
    const int block = 12, whole = in / block * block;
    for (int first = 0; first < whole; first += block)
        map_back(in, out, block, weights + first, errors, slopes + first);
    if (whole < in)
        map_back(in, out, in - whole, weights + whole, errors, slopes + whole);
}

INLINE void add_block(int outs, int parts, int stride, const lanes *errors, const float *rows,
                      float *sums) {
    lanes products[REGISTERS];
    UNROLLED for (int out = 0; out < outs; out++)
        UNROLLED for (int part = 0; part < parts; part++)
            products[out * parts + part] = *(unaligned_lanes *)(sums + out * stride + part * LANES);
    for (int lane = 0; lane < LANES; lane++)
        UNROLLED for (int part = 0; part < parts; part++) {
            lanes inputs = *(unaligned_lanes *)(rows + lane * stride + part * LANES);
            UNROLLED for (int out = 0; out < outs; out++)
                products[out * parts + part] += ((const float *)(errors + out))[lane] * inputs;
        }
    UNROLLED for (int out = 0; out < outs; out++)
        UNROLLED for (int part = 0; part < parts; part++)
            *(unaligned_lanes *)(sums + out * stride + part * LANES) = products[out * parts + part];
}

INLINE void add_columns(int out, int parts, int stride, const lanes *errors, const float *rows,
                        float *sums) {
    const int block = 6, whole = out / block * block;
    for (int first = 0; first < whole; first += block)
        add_block(block, parts, stride, errors + first, rows, sums + first * stride);
    if (whole < out)
        add_block(out - whole, parts, stride, errors + whole, rows, sums + whole * stride);
}

/* Add the sum over lanes of errors · inputs to sums [out, stride], from rows as of `write_rows`. */
INLINE void add_products(int stride, int out, const lanes *errors, const float *rows,
                         float *sums) {
    const int parts = 4, wide = stride / (parts * LANES) * (parts * LANES);
    for (int start = 0; start < wide; start += parts * LANES)
        add_columns(out, parts, stride, errors, rows + start, sums + start);
    if (wide < stride)
        add_columns(out, (stride - wide) / LANES, stride, errors, rows + wide, sums + wide);
}

/* Add sums [out, stride] to a gradient [out, in]. */
INLINE void add_matrix(int in, int stride, int out, const float *sums, float *gradient) {
    for (int o = 0; o < out; o++)
        for (int index = 0; index < in; index++)
            gradient[o * in + index] += sums[o * stride + index];
}

INLINE void apply_relu(int count, lanes *values, const lanes *conditions) {
    for (int index = 0; index < count; index++)
        values[index] = positive(values[index], conditions[index]);
}

INLINE void add_to(int count, const lanes *values, lanes *sums) {
    for (int index = 0; index < count; index++)
        sums[index] += values[index];
}
