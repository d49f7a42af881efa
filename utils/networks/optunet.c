/* OptuNet's logits, and its gradient by its weights, for stacks of networks on batches of images.

   conv 1 -> 2, 4x4 | max-pool 3, ReLU | conv 2 -> 10, 5x5, in 2 groups | ReLU, mean | linear

   LANES images are computed side by side, one in each lane of a vector: every sum is taken in one
   order, whatever the processor. HEIGHT, WIDTH and CLASSES are defined by the compiler's command. */

#include <stdint.h>
#include <string.h>

#define LANES 16
enum {
    SMALL = 4, POOL = 3, LARGE = 5, BLOCKS = 2, CHANNELS = 5, UNITS = BLOCKS * CHANNELS,
    ROWS = (HEIGHT - SMALL + 1) / POOL, COLUMNS = (WIDTH - SMALL + 1) / POOL,
    HIGH = ROWS - LARGE + 1, WIDE = COLUMNS - LARGE + 1, SUMS = HIGH * WIDE,
};

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t marks __attribute__((vector_size(4 * LANES)));
typedef float four __attribute__((vector_size(16)));

typedef struct {
    float first[BLOCKS][SMALL][SMALL];
    float second[BLOCKS][CHANNELS][LARGE][LARGE];
    float last[CLASSES][UNITS];
    float bias[CLASSES];
} Weights;

typedef struct { /* the same, summed over the images of each lane */
    four first[BLOCKS][SMALL];
    lanes second[BLOCKS][CHANNELS][LARGE][LARGE];
    lanes last[CLASSES][UNITS];
    lanes bias[CLASSES];
} Sums;

typedef struct { /* what the backward pass needs of LANES images */
    lanes maps[BLOCKS][ROWS][COLUMNS];
    marks places[BLOCKS][ROWS][COLUMNS]; /* of each maximum, from the corner of its window */
    lanes hidden[BLOCKS][CHANNELS][HIGH][WIDE];
    lanes means[UNITS];
} Trace;

long trace_bytes(void) { return sizeof(Trace); }

static lanes positive(lanes value, lanes condition) {
    return (lanes)((marks)value & (condition > 0.0f));
}

static void pool_first(const Weights *weights, const lanes *pixels, Trace *trace) {
    for (int block = 0; block < BLOCKS; block++)
        for (int y = 0; y < ROWS; y++)
            for (int x = 0; x < COLUMNS; x++) {
                lanes best = {0};
                marks place = {0};
                for (int at = 0; at < POOL * POOL; at++) {
                    int offset = at / POOL * WIDTH + at % POOL;
                    const lanes *corner = pixels + POOL * (y * WIDTH + x) + offset;
                    lanes sum = {0};
                    for (int i = 0; i < SMALL; i++)
                        for (int j = 0; j < SMALL; j++)
                            sum += weights->first[block][i][j] * corner[i * WIDTH + j];
                    marks larger = sum > best; /* than 0, too: ReLU */
                    best = (lanes)(((marks)sum & larger) | ((marks)best & ~larger));
                    place = (offset & larger) | (place & ~larger);
                }
                trace->maps[block][y][x] = best;
                trace->places[block][y][x] = place;
            }
}

static void average_second(const Weights *weights, Trace *trace) {
    for (int block = 0; block < BLOCKS; block++)
        for (int channel = 0; channel < CHANNELS; channel++) {
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
            trace->means[block * CHANNELS + channel] = total / (float)SUMS;
        }
}

/* Write the logits [count, CLASSES] of up to LANES images. */
static void forward_lanes(const Weights *weights, const float *const *images, int count,
                          float *logits, Trace *trace) {
    lanes pixels[HEIGHT * WIDTH];
    for (int pixel = 0; pixel < HEIGHT * WIDTH; pixel++)
        for (int lane = 0; lane < LANES; lane++)
            pixels[pixel][lane] = images[lane][pixel];
    pool_first(weights, pixels, trace);
    average_second(weights, trace);
    for (int class = 0; class < CLASSES; class++) {
        lanes sum = weights->bias[class] + (lanes){0};
        for (int unit = 0; unit < UNITS; unit++)
            sum += weights->last[class][unit] * trace->means[unit];
        for (int lane = 0; lane < count; lane++)
            logits[lane * CLASSES + class] = sum[lane];
    }
}

static void back_through_last(const Weights *weights, const float *errors, int count,
                              const Trace *trace, Sums *sums, lanes *slopes) {
    memset(slopes, 0, UNITS * sizeof(lanes));
    for (int class = 0; class < CLASSES; class++) {
        lanes error = {0};
        for (int lane = 0; lane < count; lane++)
            error[lane] = errors[lane * CLASSES + class];
        sums->bias[class] += error;
        for (int unit = 0; unit < UNITS; unit++) {
            sums->last[class][unit] += error * trace->means[unit];
            slopes[unit] += weights->last[class][unit] * error;
        }
    }
}

/* Set `behind` to the gradient by the pooled maps. */
static void back_through_second(const Weights *weights, const Trace *trace, const lanes *slopes,
                                Sums *sums, lanes behind[BLOCKS][ROWS][COLUMNS]) {
    memset(behind, 0, BLOCKS * ROWS * COLUMNS * sizeof(lanes));
    for (int block = 0; block < BLOCKS; block++)
        for (int channel = 0; channel < CHANNELS; channel++) {
            lanes slope = slopes[block * CHANNELS + channel] / (float)SUMS;
            lanes through[HIGH][WIDE];
            for (int y = 0; y < HIGH; y++)
                for (int x = 0; x < WIDE; x++)
                    through[y][x] = positive(slope, trace->hidden[block][channel][y][x]);
            for (int i = 0; i < LARGE; i++)
                for (int j = 0; j < LARGE; j++) {
                    float weight = weights->second[block][channel][i][j];
                    lanes sum = sums->second[block][channel][i][j];
                    for (int y = 0; y < HIGH; y++)
                        for (int x = 0; x < WIDE; x++) {
                            sum += through[y][x] * trace->maps[block][y + i][x + j];
                            behind[block][y + i][x + j] += weight * through[y][x];
                        }
                    sums->second[block][channel][i][j] = sum;
                }
        }
}

/* Only the place of a maximum has a gradient, and it is another one in every image. */
static void back_through_first(const float *const *images, int count, const Trace *trace,
                               lanes behind[BLOCKS][ROWS][COLUMNS], Sums *sums) {
    for (int block = 0; block < BLOCKS; block++)
        for (int y = 0; y < ROWS; y++)
            for (int x = 0; x < COLUMNS; x++) {
                lanes slope = positive(behind[block][y][x], trace->maps[block][y][x]);
                for (int lane = 0; lane < count; lane++) {
                    const float *corner = images[lane] + POOL * (y * WIDTH + x) +
                                          trace->places[block][y][x][lane];
                    for (int i = 0; i < SMALL; i++) {
                        four pixels;
                        memcpy(&pixels, corner + i * WIDTH, sizeof pixels);
                        sums->first[block][i] += slope[lane] * pixels;
                    }
                }
            }
}

static void add_sums(const Sums *sums, float *gradient) {
    const float *first = (const float *)sums->first;
    for (int index = 0; index < BLOCKS * SMALL * SMALL; index++)
        *gradient++ += first[index];
    const lanes *others = &sums->second[0][0][0][0];
    for (int index = 0; index < UNITS * LARGE * LARGE + CLASSES * (UNITS + 1); index++) {
        double total = 0;
        for (int lane = 0; lane < LANES; lane++)
            total += others[index][lane];
        *gradient++ += (float)total;
    }
}

/* Point at the next images; lanes without one repeat the last. */
static int choose(const float *images, const int64_t *rows, long start, long count,
                  const float **chosen) {
    int left = count - start < LANES ? (int)(count - start) : LANES;
    for (int lane = 0; lane < LANES; lane++) {
        long row = start + (lane < left ? lane : left - 1);
        chosen[lane] = images + (rows ? rows[row] : row) * HEIGHT * WIDTH;
    }
    return left;
}

/* Networks [members] with weights [members, d] on images[member * stride], or on these rows. */
void forward(long members, long count, const Weights *weights, const float *images, long stride,
             const int64_t *rows, float *logits, Trace *traces) {
    const float *chosen[LANES];
    for (long member = 0; member < members; member++)
        for (long start = 0; start < count; start += LANES) {
            int left = choose(images + member * stride, rows, start, count, chosen);
            forward_lanes(weights + member, chosen, left, logits, traces++);
            logits += left * CLASSES;
        }
}

/* Add to the gradients [members, d] those whose derivatives by the logits are `errors`. */
void backward(long members, long count, const Weights *weights, const float *images, long stride,
              const int64_t *rows, const float *errors, const Trace *traces, float *gradients) {
    const float *chosen[LANES];
    for (long member = 0; member < members; member++) {
        Sums sums;
        memset(&sums, 0, sizeof sums);
        for (long start = 0; start < count; start += LANES, traces++) {
            lanes slopes[UNITS], behind[BLOCKS][ROWS][COLUMNS];
            int left = choose(images + member * stride, rows, start, count, chosen);
            back_through_last(weights + member, errors, left, traces, &sums, slopes);
            back_through_second(weights + member, traces, slopes, &sums, behind);
            back_through_first(chosen, left, traces, behind, &sums);
            errors += left * CLASSES;
        }
        add_sums(&sums, gradients + member * (sizeof(Weights) / sizeof(float)));
    }
}
