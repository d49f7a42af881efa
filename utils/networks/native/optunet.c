/* OptuNet's logits, and its gradient by its weights, for stacks of networks on batches of images.

   conv 1 -> 2, 4x4 | max-pool 3, ReLU | conv 2 -> 10, 5x5, in 2 groups | ReLU, mean | linear

   Sizes are defined by the compiler's command: CHANNELS (1), HEIGHT and WIDTH of images, CLASSES. */

#include "lanes.h"

enum {
    SMALL = 4, POOL = 3, LARGE = 5, BLOCKS = 2, BRANCHES = 5, UNITS = BLOCKS * BRANCHES,
    ROWS = POOLED(HEIGHT, SMALL, POOL), COLUMNS = POOLED(WIDTH, SMALL, POOL),
    HIGH = ROWS - LARGE + 1, WIDE = COLUMNS - LARGE + 1, SUMS = HIGH * WIDE,
};

static const Convolution FIRST_LAYER = {CHANNELS, BLOCKS, SMALL, POOL, HEIGHT, WIDTH, 0};

typedef struct {
    float first[BLOCKS][SMALL][SMALL];
    float second[BLOCKS][BRANCHES][LARGE][LARGE];
    float last[CLASSES][UNITS];
    float bias[CLASSES];
} Weights;

typedef struct { /* the gradient by each of the same, for each lane but in the first */
    float first[BLOCKS][SMALL][PATCH_ROW(CHANNELS, SMALL)];
    lanes second[BLOCKS][BRANCHES][LARGE][LARGE];
    lanes last[CLASSES][UNITS];
    lanes bias[CLASSES];
} Sums;

typedef struct { /* what the backward pass needs of LANES images */
    lanes maps[BLOCKS][ROWS][COLUMNS];
    places chosen[BLOCKS][ROWS][COLUMNS]; /* of the maxima */
    lanes hidden[BLOCKS][BRANCHES][HIGH][WIDE];
    lanes means[UNITS], logits[CLASSES];
} Trace;

typedef struct {
    lanes pixels[HEIGHT * WIDTH];
    lanes slopes[UNITS], behind[BLOCKS][ROWS][COLUMNS];
    Sums sums;
} Space;

STEP average_second(const Weights *weights, Trace *trace) {
    for (int block = 0; block < BLOCKS; block++)
        for (int channel = 0; channel < BRANCHES; channel++) {
            lanes total = {0};
            for (int y = 0; y < HIGH; y++)
                for (int x = 0; x < WIDE; x++) {
                    lanes sum = {0};
                    for (int i = 0; i < LARGE; i++)
                        for (int j = 0; j < LARGE; j++)
                            sum += weights->second[block][channel][i][j] *
                                   trace->maps[block][y + i][x + j];
                    trace->hidden[block][channel][y][x] = sum = positive(sum, sum);
                    total += sum;
                }
            trace->means[block * BRANCHES + channel] = total / (float)SUMS;
        }
}

STEP forward_lanes(const Weights *weights, Space *space, Trace *trace) {
    pool_convolution(FIRST_LAYER, &weights->first[0][0][0], 0, space->pixels,
                     &trace->maps[0][0][0], &trace->chosen[0][0][0]);
    average_second(weights, trace);
    linear(UNITS, CLASSES, weights->last[0], weights->bias, trace->means, trace->logits);
}

STEP back_through_last(const Weights *weights, const lanes *errors, const Trace *trace,
                              Space *space) {
    for (int class = 0; class < CLASSES; class++) {
        space->sums.bias[class] += errors[class];
        for (int unit = 0; unit < UNITS; unit++)
            space->sums.last[class][unit] += errors[class] * trace->means[unit];
    }
    back_through_linear(UNITS, CLASSES, weights->last[0], errors, space->slopes);
}

/* Set space->behind to the gradient by the pooled maps. */
STEP back_through_second(const Weights *weights, const Trace *trace, Space *space) {
    memset(space->behind, 0, sizeof space->behind);
    for (int block = 0; block < BLOCKS; block++)
        for (int channel = 0; channel < BRANCHES; channel++) {
            lanes slope = space->slopes[block * BRANCHES + channel] / (float)SUMS;
            lanes through[HIGH][WIDE];
            for (int y = 0; y < HIGH; y++)
                for (int x = 0; x < WIDE; x++)
                    through[y][x] = positive(slope, trace->hidden[block][channel][y][x]);
            for (int i = 0; i < LARGE; i++)
                for (int j = 0; j < LARGE; j++) {
                    float weight = weights->second[block][channel][i][j];
                    lanes sum = space->sums.second[block][channel][i][j];
                    for (int y = 0; y < HIGH; y++)
                        for (int x = 0; x < WIDE; x++) {
                            sum += through[y][x] * trace->maps[block][y + i][x + j];
                            space->behind[block][y + i][x + j] += weight * through[y][x];
                        }
                    space->sums.second[block][channel][i][j] = sum;
                }
        }
}

STEP backward_lanes(const Weights *weights, const float *const *images, int count,
                           const lanes *errors, const Trace *trace, Space *space) {
    back_through_last(weights, errors, trace, space);
    back_through_second(weights, trace, space);
    lanes *behind = &space->behind[0][0][0];
    apply_relu(BLOCKS * ROWS * COLUMNS, behind, &trace->maps[0][0][0]);
    for (int block = 0; block < BLOCKS; block++)
        add_patches(FIRST_LAYER, block, images, count, behind, &trace->chosen[0][0][0],
                    space->sums.first[block][0]);
}

STEP add_sums(const Sums *sums, float *gradient) {
    Weights *by = (Weights *)gradient;
    add_kernels(BLOCKS, CHANNELS, SMALL, sums->first[0][0], &by->first[0][0][0]);
    add_lanes(UNITS * LARGE * LARGE, &sums->second[0][0][0][0], &by->second[0][0][0][0]);
    add_lanes(CLASSES * UNITS, sums->last[0], by->last[0]);
    add_lanes(CLASSES, sums->bias, by->bias);
}

#include "passes.h"
