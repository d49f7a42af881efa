/* LeNet-5's logits, and its gradient by its weights, for stacks of networks on batches of images.

   conv C1, 5x5 | max-pool 2, ReLU | conv C2, 5x5 | max-pool 2, ReLU | linear H1, H2, CLASSES

   Sizes are defined by the compiler's command: CHANNELS, HEIGHT and WIDTH of images, CLASSES, and
   the units C1, C2, H1 and H2. */

#include "lanes.h"

enum {
    KERNEL = 5, POOL = 2,
    ROWS1 = POOLED(HEIGHT, KERNEL, POOL), COLUMNS1 = POOLED(WIDTH, KERNEL, POOL),
    ROWS2 = POOLED(ROWS1, KERNEL, POOL), COLUMNS2 = POOLED(COLUMNS1, KERNEL, POOL),
    FLAT = C2 * ROWS2 * COLUMNS2, FIRST = C1 * ROWS1 * COLUMNS1,
    FLAT_ROW = ROUNDED_UP(FLAT, LANES), ROW1 = ROUNDED_UP(H1, LANES), ROW2 = ROUNDED_UP(H2, LANES),
    IMAGE_ROW = CHANNELS * HEIGHT * WIDTH + LANES, /* what is read behind an image */
    FIRST_ROW = ROUNDED_UP(FIRST, LANES) + LANES,
};

static const Convolution FIRST_LAYER = {CHANNELS, C1, KERNEL, POOL, HEIGHT, WIDTH, 1};
static const Convolution SECOND_LAYER = {C1, C2, KERNEL, POOL, ROWS1, COLUMNS1, 0};

typedef struct {
    float first[C1][CHANNELS][KERNEL][KERNEL], first_bias[C1];
    float second[C2][C1][KERNEL][KERNEL], second_bias[C2];
    float hidden1[H1][FLAT], bias1[H1];
    float hidden2[H2][H1], bias2[H2];
    float last[CLASSES][H2], last_bias[CLASSES];
} Weights;

typedef struct { /* the gradient by each of the same; biases have one for each lane */
    float first[C1][KERNEL][PATCH_ROW(CHANNELS, KERNEL)];
    float second[C2][KERNEL][PATCH_ROW(C1, KERNEL)];
    float hidden1[H1][FLAT_ROW], hidden2[H2][ROW1], last[CLASSES][ROW2];
    lanes first_bias[C1], second_bias[C2], bias1[H1], bias2[H2], last_bias[CLASSES];
} Sums;

typedef struct {
    lanes first[ROWS1][COLUMNS1][C1], second[FLAT]; /* pooled maps */
    places first_places[ROWS1][COLUMNS1][C1], second_places[FLAT];
    lanes hidden1[H1], hidden2[H2], logits[CLASSES];
} Trace;

typedef struct {
    lanes pixels[HEIGHT * WIDTH * CHANNELS];
    lanes slopes2[H2], slopes1[H1], by_second[FLAT], by_first[FIRST];
    lanes errors[C2][ROWS2 * POOL][COLUMNS2 * POOL];
    float images[LANES][IMAGE_ROW], first[LANES][FIRST_ROW];
    float flat[LANES][FLAT_ROW], hidden1[LANES][ROW1], hidden2[LANES][ROW2];
    Sums sums;
} Space;

STEP forward_lanes(const Weights *weights, Space *space, Trace *trace) {
    lanes *first = &trace->first[0][0][0];
    pool_convolution(FIRST_LAYER, &weights->first[0][0][0][0], weights->first_bias, space->pixels,
                     first, &trace->first_places[0][0][0]);
    pool_convolution(SECOND_LAYER, &weights->second[0][0][0][0], weights->second_bias, first,
                     trace->second, trace->second_places);
    linear(FLAT, H1, weights->hidden1[0], weights->bias1, trace->second, trace->hidden1);
    apply_relu(H1, trace->hidden1, trace->hidden1);
    linear(H1, H2, weights->hidden2[0], weights->bias2, trace->hidden1, trace->hidden2);
    apply_relu(H2, trace->hidden2, trace->hidden2);
    linear(H2, CLASSES, weights->last[0], weights->last_bias, trace->hidden2, trace->logits);
}

/* Set space->by_second to the gradient by the flattened maps, before their ReLU. */
STEP back_through_dense(const Weights *weights, const lanes *errors, const Trace *trace,
                               Space *space) {
    Sums *sums = &space->sums;
    write_rows(H2, trace->hidden2, space->hidden2[0], ROW2);
    write_rows(H1, trace->hidden1, space->hidden1[0], ROW1);
    write_rows(FLAT, trace->second, space->flat[0], FLAT_ROW);
    add_products(ROW2, CLASSES, errors, space->hidden2[0], sums->last[0]);
    back_through_linear(H2, CLASSES, weights->last[0], errors, space->slopes2);
    apply_relu(H2, space->slopes2, trace->hidden2);
    add_products(ROW1, H2, space->slopes2, space->hidden1[0], sums->hidden2[0]);
    back_through_linear(H1, H2, weights->hidden2[0], space->slopes2, space->slopes1);
    apply_relu(H1, space->slopes1, trace->hidden1);
    add_products(FLAT_ROW, H1, space->slopes1, space->flat[0], sums->hidden1[0]);
    back_through_linear(FLAT, H1, weights->hidden1[0], space->slopes1, space->by_second);
    apply_relu(FLAT, space->by_second, trace->second);
    add_to(CLASSES, errors, sums->last_bias);
    add_to(H2, space->slopes2, sums->bias2);
    add_to(H1, space->slopes1, sums->bias1);
}

STEP back_through_second(const Weights *weights, int count, const Trace *trace,
                                Space *space) {
    const float *maps[LANES];
    write_rows(FIRST, &trace->first[0][0][0], space->first[0], FIRST_ROW);
    for (int lane = 0; lane < LANES; lane++)
        maps[lane] = space->first[lane];
    for (int out = 0; out < C2; out++) {
        add_patches(SECOND_LAYER, out, maps, count, space->by_second, trace->second_places,
                    space->sums.second[out][0]);
        for (int at = 0; at < ROWS2 * COLUMNS2; at++)
            space->sums.second_bias[out] += space->by_second[out * ROWS2 * COLUMNS2 + at];
    }
    unpool(SECOND_LAYER, space->by_second, trace->second_places, &space->errors[0][0][0]);
    back_through_convolution(SECOND_LAYER, &weights->second[0][0][0][0], &space->errors[0][0][0],
                             space->by_first);
    apply_relu(FIRST, space->by_first, &trace->first[0][0][0]);
}

STEP back_through_first(const float *const *images, int count, const Trace *trace,
                               Space *space) {
    const float *copies[LANES];
    for (int lane = 0; lane < count; lane++) {
        copies[lane] = space->images[lane];
        for (int pixel = 0; pixel < HEIGHT * WIDTH; pixel++)
            for (int channel = 0; channel < CHANNELS; channel++)
                space->images[lane][pixel * CHANNELS + channel] =
                    images[lane][channel * HEIGHT * WIDTH + pixel];
    }
    for (int out = 0; out < C1; out++)
        add_patches(FIRST_LAYER, out, copies, count, space->by_first,
                    &trace->first_places[0][0][0], space->sums.first[out][0]);
    for (int at = 0; at < ROWS1 * COLUMNS1; at++)
        add_to(C1, space->by_first + at * C1, space->sums.first_bias);
}

STEP backward_lanes(const Weights *weights, const float *const *images, int count,
                           const lanes *errors, const Trace *trace, Space *space) {
    back_through_dense(weights, errors, trace, space);
    back_through_second(weights, count, trace, space);
    back_through_first(images, count, trace, space);
}

STEP add_sums(const Sums *sums, float *gradient) {
    Weights *by = (Weights *)gradient;
    add_kernels(C1, CHANNELS, KERNEL, sums->first[0][0], &by->first[0][0][0][0]);
    add_kernels(C2, C1, KERNEL, sums->second[0][0], &by->second[0][0][0][0]);
    add_matrix(FLAT, FLAT_ROW, H1, sums->hidden1[0], by->hidden1[0]);
    add_matrix(H1, ROW1, H2, sums->hidden2[0], by->hidden2[0]);
    add_matrix(H2, ROW2, CLASSES, sums->last[0], by->last[0]);
    add_lanes(C1, sums->first_bias, by->first_bias);
    add_lanes(C2, sums->second_bias, by->second_bias);
    add_lanes(H1, sums->bias1, by->bias1);
    add_lanes(H2, sums->bias2, by->bias2);
    add_lanes(CLASSES, sums->last_bias, by->last_bias);
}

#include "passes.h"
