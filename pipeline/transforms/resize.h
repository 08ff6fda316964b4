/* Resizes images as TensorFlow's `tf.image.resize(antialias=True)` does, for operations.c and images.c. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SIDE = 1 << 20, LANES = 4 };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default"))) /* neither fuses products and sums: equal results */
#else
#define WIDE
#endif

/* The weights of source pixels in each target pixel along one side, as TensorFlow's ScaleAndTranslate computes them for
 * its triangle kernel with antialiasing. `weights` has `most` places for each target. */
static void weigh(int64_t source, int64_t target, int64_t most, float *weights, int32_t *starts, int32_t *counts)
{
    const float step = 1.0f / ((float)target / (float)source), reach = step > 1.0f ? step : 1.0f;

    for (int64_t i = 0; i < target; i++, weights += most) {
        const float centre = ((float)i + 0.5f) * step;
        int64_t first = (int64_t)ceilf(centre - reach - 0.5f), last = (int64_t)floorf(centre + reach - 0.5f);
        float total = 0.0f;

        first = first < 0 ? 0 : first >= source ? source - 1 : first;
        last = last < 0 ? 0 : last >= source ? source - 1 : last;
        if (last - first >= most)
            last = first + most - 1;
        for (int64_t k = first; k <= last; k++) {
            const float away = fabsf(((float)k + 0.5f - centre) * (1.0f / reach));
            weights[k - first] = away < 1.0f ? 1.0f - away : 0.0f;
            total += weights[k - first];
        }
        for (int64_t k = first; k <= last; k++)
            weights[k - first] *= 1.0f / total;
        starts[i] = (int32_t)first;
        counts[i] = (int32_t)(last - first + 1);
    }
}

/* Adds a weighted row of pixels to a row of sums. */
WIDE static void add_row(float *restrict sums, const uint8_t *restrict pixels, int64_t size, float weight)
{
    for (int64_t i = 0; i < size; i++)
        sums[i] += weight * (float)pixels[i];
}

/* One row of the result, of weighted sums of neighbours in a row. The row is followed by room for LANES more numbers. */
static void shrink_row(const float *row, int64_t target, int64_t channels, int64_t most, const float *weights,
                       const int32_t *starts, const int32_t *counts, float *result)
{
    typedef float lanes __attribute__((vector_size(LANES * sizeof(float))));

    for (int64_t i = 0; i < target; i++, weights += most, result += channels)
        for (int64_t channel = 0; channel < channels; channel += LANES) {
            const float *from = row + starts[i] * channels + channel;
            const int64_t own = channels - channel < LANES ? channels - channel : LANES;
            lanes sum = {0.0f}, pixel;

            for (int32_t k = 0; k < counts[i]; k++, from += channels) {
                memcpy(&pixel, from, sizeof pixel);
                sum += weights[k] * pixel;
            }
            memcpy(result + channel, &sum, (size_t)own * sizeof(float));
        }
}

static int64_t most_weights(int64_t source, int64_t target)
{
    const int64_t most = 2 * ((source + target - 1) / target) + 1;
    return most < source ? most : source;
}

/* Resizes an image of `from` [height, width, channels] to the sides of `to`. Returns whether there was memory. */
static int resize_pixels(const uint8_t *pixels, const int64_t *from, const int64_t *to, float *result)
{
    const int64_t channels = from[2], row_size = from[1] * channels;
    const int64_t most_down = most_weights(from[0], to[0]), most_across = most_weights(from[1], to[1]);
    float *down = malloc((size_t)(to[0] * most_down) * sizeof(float));
    float *across = malloc((size_t)(to[1] * most_across) * sizeof(float));
    float *row = calloc((size_t)(row_size + LANES), sizeof(float));
    int32_t *places = malloc((size_t)(2 * (to[0] + to[1])) * sizeof(int32_t));
    int32_t *starts = places + 2 * to[0];
    const int done = down && across && row && places;

    if (done) {
        weigh(from[0], to[0], most_down, down, places, places + to[0]);
        weigh(from[1], to[1], most_across, across, starts, starts + to[1]);
        for (int64_t i = 0; i < to[0]; i++, result += to[1] * channels) {
            memset(row, 0, (size_t)row_size * sizeof(float));
            for (int32_t k = 0; k < places[to[0] + i]; k++)
                add_row(row, pixels + (places[i] + k) * row_size, row_size, down[i * most_down + k]);
            shrink_row(row, to[1], channels, most_across, across, starts, starts + to[1], result);
        }
    }
    free(down);
    free(across);
    free(row);
    free(places);
    return done;
}
