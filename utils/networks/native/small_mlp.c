/* The NLL of a small MLP on a data set, and its gradient by the weights, in one call.

   inputs, UNITS with ReLU, CLASSES with softmax

   Sizes are defined by the compiler's command: PIXELS of an image, UNITS and CLASSES, of which there
   are at most LANES. Of the images only columns are given that are not always zero, then a column of
   ones, which meets the biases, then zeros up to a multiple of LANES. */

#include "lanes.h"
#include <math.h>

enum {
    BLOCK = 8, /* units at a time, for a pair of images: their sums fill a matrix of LANES rows */
    HIDDEN = ROUNDED_UP(UNITS, LANES),
};

typedef struct {
    float first[UNITS][PIXELS], first_bias[UNITS], last[CLASSES][UNITS], last_bias[CLASSES];
} Weights;

typedef struct {
    float hidden[HIDDEN], slopes[HIDDEN]; /* slopes: of the NLL by the units' inputs */
} Row;

typedef struct {
    lanes to_classes[HIDDEN], bias;              /* the last layer, with classes in lanes */
    lanes from_classes[CLASSES][HIDDEN / LANES]; /* and with units in lanes */
    lanes sums[HIDDEN], bias_sum;                /* the gradient by to_classes and bias */
} Last;

static const float NO_CLASS = -1e30f; /* the logit in lanes behind the last class */

long space_bytes(long count, long width) {
    return sizeof(Last) + count * sizeof(Row) + HIDDEN * width * sizeof(float);
}

INLINE float sum_of(lanes values) {
    float sum = 0;
    UNROLLED for (int lane = 0; lane < LANES; lane++) sum += values[lane];
    return sum;
}

INLINE float largest_of(lanes values) {
    float largest = values[0];
    UNROLLED for (int lane = 1; lane < LANES; lane++)
        largest = values[lane] > largest ? values[lane] : largest;
    return largest;
}

/* exp(x) for x ≤ 0: x = n ln 2 + r with an integer n, and the power series for |r| ≤ ln(2) / 2. */
INLINE lanes exponential(lanes x) {
    const lanes round = (lanes){0} + 12582912.0f; /* 1.5 · 2²³: floats of this size are integers */
    const lanes lowest = (lanes){0} - 87.0f;
    marks below = x < lowest; /* not NaN, which is kept */
    x = (lanes)(((marks)x & ~below) | ((marks)lowest & below));
    lanes shifted = x * 1.44269504f + round, n = shifted - round;
    lanes r = x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts */
    lanes sum = r / 7.0f + 1.0f;
    UNROLLED for (int k = 6; k > 0; k--) sum = sum * r / (float)k + 1.0f;
    return sum * (lanes)(((marks)shifted - (marks)round + 127) << 23);
}

static void load_first(const Weights *weights, const int64_t *pixels, long live, long width,
                       float *first) {
    memset(first, 0, HIDDEN * width * sizeof(float));
    for (int unit = 0; unit < UNITS; unit++) {
        for (long column = 0; column < live; column++)
            first[unit * width + column] = weights->first[unit][pixels[column]];
        first[unit * width + live] = weights->first_bias[unit];
    }
}

static void load_last(const Weights *weights, Last *last) {
    memset(last, 0, sizeof *last);
    last->bias += NO_CLASS;
    for (int class = 0; class < CLASSES; class++) {
        last->bias[class] = weights->last_bias[class];
        for (int unit = 0; unit < UNITS; unit++) {
            last->to_classes[unit][class] = weights->last[class][unit];
            last->from_classes[class][unit / LANES][unit % LANES] = weights->last[class][unit];
        }
    }
}

/* Set BLOCK units of two images. */
STEP set_units(long width, const float *one, const float *other, const float *first,
               float *one_hidden, float *other_hidden) {
    lanes sums[LANES] = {{0}};
    for (long column = 0; column < width; column += LANES) {
        lanes a = *(const unaligned_lanes *)(one + column);
        lanes b = *(const unaligned_lanes *)(other + column);
        UNROLLED for (int unit = 0; unit < BLOCK; unit++) {
            lanes weight = *(const unaligned_lanes *)(first + unit * width + column);
            sums[unit] += weight * a;
            sums[BLOCK + unit] += weight * b;
        }
    }
    transpose(sums);
    lanes total = sums[0];
    UNROLLED for (int lane = 1; lane < LANES; lane++) total += sums[lane];
    total = positive(total, total);
    memcpy(one_hidden, &total, BLOCK * sizeof(float));
    memcpy(other_hidden, (float *)&total + BLOCK, BLOCK * sizeof(float));
}

/* Return the NLL of an image; set the slopes of its units, and add to the last layer's sums. */
static float last_layer(long label, Row *row, Last *last) {
    lanes logits = last->bias;
    for (int unit = 0; unit < HIDDEN; unit++) logits += row->hidden[unit] * last->to_classes[unit];
    float largest = largest_of(logits), margin = logits[label] - largest;
    lanes errors = exponential(logits - largest);
    float total = sum_of(errors);
    errors /= total;
    errors[label] -= 1.0f;
    last->bias_sum += errors;
    for (int unit = 0; unit < HIDDEN; unit++) last->sums[unit] += row->hidden[unit] * errors;
    for (int block = 0; block < HIDDEN / LANES; block++) {
        lanes slopes = {0}, hidden;
        memcpy(&hidden, row->hidden + block * LANES, sizeof hidden);
        UNROLLED for (int class = 0; class < CLASSES; class++)
            slopes += errors[class] * last->from_classes[class][block];
        slopes = positive(slopes, hidden);
        memcpy(row->slopes + block * LANES, &slopes, sizeof slopes);
    }
    return logf(total) - margin;
}

/* Set the gradient by the weights of BLOCK units in two vectors of columns. */
STEP set_columns(long count, long width, const float *inputs, const Row *rows, int unit,
                 lanes *sums) {
    lanes totals[2][BLOCK] = {{{0}}};
    for (long row = 0; row < count; row++) {
        lanes a = *(const unaligned_lanes *)(inputs + row * width);
        lanes b = *(const unaligned_lanes *)(inputs + row * width + LANES);
        UNROLLED for (int next = 0; next < BLOCK; next++) {
            totals[0][next] += a * rows[row].slopes[unit + next];
            totals[1][next] += b * rows[row].slopes[unit + next];
        }
    }
    memcpy(sums, totals, sizeof totals);
}

/* Set the gradient, and the NLL of each image. Inputs are [count, width]; a pixel is given for each
   of the first `live` columns. */
void small_mlp(long count, long width, long live, const float *inputs, const int64_t *pixels,
               const int64_t *labels, float *nll, void *space, const Weights *weights,
               Weights *gradient) {
    Last *last = space;
    Row *rows = (Row *)(last + 1);
    float *first = (float *)(rows + count);
    memset(rows, 0, count * sizeof(Row));
    load_first(weights, pixels, live, width, first);
    load_last(weights, last);
    for (long row = 0; row < count; row += 2) {
        long other = row + 1 < count ? row + 1 : row;
        for (int unit = 0; unit < UNITS; unit += BLOCK)
            set_units(width, inputs + row * width, inputs + other * width, first + unit * width,
                      rows[row].hidden + unit, rows[other].hidden + unit);
        for (long each = row; each <= other; each++)
            nll[each] = last_layer(labels[each], rows + each, last);
    }
    memset(gradient, 0, sizeof *gradient);
    for (int unit = 0; unit < UNITS; unit += BLOCK)
        for (long column = 0; column < width; column += 2 * LANES) {
            float sums[2][BLOCK][LANES];
            set_columns(count, width, inputs + column, rows, unit, (lanes *)sums);
            for (int next = 0; next < BLOCK && unit + next < UNITS; next++)
                for (int lane = 0; lane < 2 * LANES; lane++) {
                    float sum = sums[lane / LANES][next][lane % LANES];
                    if (column + lane < live)
                        gradient->first[unit + next][pixels[column + lane]] = sum;
                    else if (column + lane == live)
                        gradient->first_bias[unit + next] = sum;
                }
        }
    for (int class = 0; class < CLASSES; class++) {
        gradient->last_bias[class] = last->bias_sum[class];
        for (int unit = 0; unit < UNITS; unit++)
            gradient->last[class][unit] = last->sums[unit][class];
    }
}
