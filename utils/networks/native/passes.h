/* The functions of a network's library. Included behind its Weights, Trace (of LANES images, which
   the backward pass needs, with `logits`), Space (which it works in, with `pixels` and `sums`),
   forward_lanes, backward_lanes and add_sums. */

enum { IMAGE = CHANNELS * HEIGHT * WIDTH };

long trace_bytes(void) { return sizeof(Trace); }

long space_bytes(void) { return sizeof(Space); }

/* Point at the next images; lanes without one repeat the last. */
static int choose(const float *images, const int64_t *rows, long start, long count,
                  const float **chosen) {
    int left = count - start < LANES ? (int)(count - start) : LANES;
    for (int lane = 0; lane < LANES; lane++) {
        long row = start + (lane < left ? lane : left - 1);
        chosen[lane] = images + (rows ? rows[row] : row) * IMAGE;
    }
    return left;
}

/* Networks [members] with weights [members, d] on images[member * stride], or on these rows. With
   `keep` 1 there is a trace for each block of images, with 0 one in all. */
void forward(long members, long count, const Weights *weights, const float *images, long stride,
             const int64_t *rows, Space *space, Trace *traces, int keep, float *logits) {
    const float *chosen[LANES];
    for (long member = 0; member < members; member++)
        for (long start = 0; start < count; start += LANES, traces += keep) {
            int left = choose(images + member * stride, rows, start, count, chosen);
            read_pixels(CHANNELS, HEIGHT * WIDTH, chosen, space->pixels);
            forward_lanes(weights + member, space, traces);
            for (int lane = 0; lane < left; lane++)
                for (int class = 0; class < CLASSES; class++)
                    *logits++ = traces->logits[class][lane];
        }
}

/* Add to the gradients [members, d] those whose derivatives by the logits are `errors`. */
void backward(long members, long count, const Weights *weights, const float *images, long stride,
              const int64_t *rows, Space *space, const Trace *traces, const float *errors,
              float *gradients) {
    const float *chosen[LANES];
    for (long member = 0; member < members; member++) {
        memset(&space->sums, 0, sizeof space->sums);
        for (long start = 0; start < count; start += LANES, traces++) {
            int left = choose(images + member * stride, rows, start, count, chosen);
            lanes by_class[CLASSES] = {{0}};
            for (int lane = 0; lane < left; lane++)
                for (int class = 0; class < CLASSES; class++)
                    by_class[class][lane] = *errors++;
            backward_lanes(weights + member, chosen, left, by_class, traces, space);
        }
        add_sums(&space->sums, gradients + member * (sizeof(Weights) / sizeof(float)));
    }
}
