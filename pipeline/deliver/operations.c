/* TensorFlow operations: one copies values in memory into a tensor of strings, without Python's lock; one resizes an
 * image. operations.py says how to call them.
 *
 * They look TensorFlow's C API up in the process that loads them with `tf.load_op_library`. So they compile without
 * TensorFlow, and work with every version that has these functions. If one is missing, no operation is registered.
 */

#include <dlfcn.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TF_FLOAT = 1, TF_STRING = 7, TF_OK = 0, TF_INVALID_ARGUMENT = 3, TF_RESOURCE_EXHAUSTED = 8 };
enum { STRING_BYTES = 24, MOST_DIMENSIONS = 8, MOST_SIDE = 1 << 20, LANES = 4 };

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default"))) /* neither fuses products and sums: equal results */
#else
#define WIDE
#endif

typedef struct Opaque Opaque;

/* Declared as in tensorflow/c/{c_api,kernels,ops,tf_status,tf_tensor,tf_tstring}.h. */
#define FUNCTIONS(F)                                                                                                   \
    F(Opaque *, TF_NewStatus, (void))                                                                                  \
    F(void, TF_DeleteStatus, (Opaque * status))                                                                        \
    F(int, TF_GetCode, (const Opaque *status))                                                                         \
    F(void, TF_SetStatus, (Opaque * status, int code, const char *message))                                            \
    F(void, TF_DeleteTensor, (Opaque * tensor))                                                                        \
    F(int, TF_NumDims, (const Opaque *tensor))                                                                         \
    F(int64_t, TF_Dim, (const Opaque *tensor, int dimension))                                                          \
    F(int64_t, TF_TensorElementCount, (const Opaque *tensor))                                                          \
    F(void *, TF_TensorData, (const Opaque *tensor))                                                                   \
    F(void, TF_StringCopy, (void *target, const char *source, size_t size))                                            \
    F(void, TF_GetInput, (Opaque * context, int number, Opaque * *tensor, Opaque * status))                            \
    F(Opaque *, TF_AllocateOutput,                                                                                     \
      (Opaque * context, int number, int type, const int64_t *dims, int count, size_t bytes, Opaque *status))          \
    F(void, TF_OpKernelContext_Failure, (Opaque * context, Opaque * status))                                           \
    F(Opaque *, TF_NewOpDefinitionBuilder, (const char *name))                                                         \
    F(void, TF_OpDefinitionBuilderAddInput, (Opaque * builder, const char *spec))                                      \
    F(void, TF_OpDefinitionBuilderAddOutput, (Opaque * builder, const char *spec))                                     \
    F(void, TF_OpDefinitionBuilderSetIsStateful, (Opaque * builder, _Bool stateful))                                   \
    F(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (Opaque * builder, void (*infer)(Opaque *, Opaque *)))    \
    F(void, TF_ShapeInferenceContextSetUnknownShape, (Opaque * context, Opaque * status))                              \
    F(void, TF_RegisterOpDefinition, (Opaque * builder, Opaque * status))                                              \
    F(Opaque *, TF_NewKernelBuilder,                                                                                   \
      (const char *op, const char *device, void *(*create)(Opaque *), void (*compute)(void *, Opaque *),               \
       void (*delete)(void *)))                                                                                        \
    F(void, TF_RegisterKernelBuilder, (const char *name, Opaque *builder, Opaque *status))

#define DECLARE(result, name, arguments) static result(*name) arguments;
FUNCTIONS(DECLARE)

static void copy_views(void *kernel, Opaque *context)
{
    Opaque *status = TF_NewStatus(), *addresses = NULL, *lengths = NULL, *values = NULL;
    int64_t dims[MOST_DIMENSIONS], count;
    int rank, same;

    (void)kernel;
    TF_GetInput(context, 0, &addresses, status);
    if (TF_GetCode(status) == TF_OK)
        TF_GetInput(context, 1, &lengths, status);
    if (TF_GetCode(status) != TF_OK)
        goto end;
    rank = TF_NumDims(addresses);
    count = TF_TensorElementCount(addresses);
    same = rank <= MOST_DIMENSIONS && rank == TF_NumDims(lengths);
    for (int i = 0; same && i < rank; i++)
        same = TF_Dim(addresses, i) == TF_Dim(lengths, i);
    if (!same) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "addresses and lengths must have one shape, of 8 dimensions at most");
        goto end;
    }
    for (int i = 0; i < rank; i++)
        dims[i] = TF_Dim(addresses, i);
    values = TF_AllocateOutput(context, 0, TF_STRING, dims, rank, (size_t)count * STRING_BYTES, status);
    if (TF_GetCode(status) == TF_OK) {
        const int64_t *address = TF_TensorData(addresses), *length = TF_TensorData(lengths);
        char *value = TF_TensorData(values);
        for (int64_t i = 0; i < count; i++, value += STRING_BYTES) {
            if (length[i] >= 0)
                TF_StringCopy(value, (const char *)(intptr_t)address[i], (size_t)length[i]);
            else
                TF_SetStatus(status, TF_INVALID_ARGUMENT, "a value has a negative length");
        }
    }
end:
    if (TF_GetCode(status) != TF_OK)
        TF_OpKernelContext_Failure(context, status);
    if (addresses)
        TF_DeleteTensor(addresses);
    if (lengths)
        TF_DeleteTensor(lengths);
    if (values)
        TF_DeleteTensor(values);
    TF_DeleteStatus(status);
}

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

/* Returns whether there was memory. */
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

static void resize(void *kernel, Opaque *context)
{
    Opaque *status = TF_NewStatus(), *image = NULL, *size = NULL, *result = NULL;
    int64_t from[3], to[3];
    int valid;

    (void)kernel;
    TF_GetInput(context, 0, &image, status);
    if (TF_GetCode(status) == TF_OK)
        TF_GetInput(context, 1, &size, status);
    if (TF_GetCode(status) != TF_OK)
        goto end;
    valid = TF_NumDims(image) == 3 && TF_TensorElementCount(size) == 2;
    for (int i = 0; valid && i < 3; i++) {
        from[i] = TF_Dim(image, i);
        to[i] = i < 2 ? ((const int32_t *)TF_TensorData(size))[i] : from[i];
        valid = 0 < from[i] && from[i] <= MOST_SIDE && 0 < to[i] && to[i] <= MOST_SIDE;
    }
    if (!valid) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "an image must be [height, width, channels], resized to two sides");
        goto end;
    }
    result = TF_AllocateOutput(context, 0, TF_FLOAT, to, 3, (size_t)(to[0] * to[1] * to[2]) * sizeof(float), status);
    if (TF_GetCode(status) == TF_OK && !resize_pixels(TF_TensorData(image), from, to, TF_TensorData(result)))
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory to resize an image");
end:
    if (TF_GetCode(status) != TF_OK)
        TF_OpKernelContext_Failure(context, status);
    if (image)
        TF_DeleteTensor(image);
    if (size)
        TF_DeleteTensor(size);
    if (result)
        TF_DeleteTensor(result);
    TF_DeleteStatus(status);
}

static void register_operation(const char *name, const char *const *inputs, const char *output, int is_stateful,
                               void (*compute)(void *, Opaque *))
{
    Opaque *status = TF_NewStatus(), *operation = TF_NewOpDefinitionBuilder(name);

    for (int i = 0; i < 2; i++)
        TF_OpDefinitionBuilderAddInput(operation, inputs[i]);
    TF_OpDefinitionBuilderAddOutput(operation, output);
    TF_OpDefinitionBuilderSetIsStateful(operation, (_Bool)is_stateful);
    TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, TF_ShapeInferenceContextSetUnknownShape);
    TF_RegisterOpDefinition(operation, status);
    if (TF_GetCode(status) == TF_OK)
        TF_RegisterKernelBuilder(name, TF_NewKernelBuilder(name, "CPU", NULL, compute, NULL), status);
    TF_DeleteStatus(status);
}

__attribute__((constructor)) static void register_operations(void)
{
    static const char *const views[] = {"addresses: int64", "lengths: int64"}, *const image[] = {"image: uint8", "size: int32"};
    void *library = dlopen("libtensorflow_cc.so.2", RTLD_NOLOAD | RTLD_LAZY);

    if (!library)
        return;
#define FIND(result, name, arguments)                                                                                  \
    if (!(*(void **)&name = dlsym(library, #name)))                                                                    \
        return;
    FUNCTIONS(FIND)
    /* Stateful, as the memory at an address changes: results must not be cached. */
    register_operation("RingfeedCopyViews", views, "values: string", 1, copy_views);
    register_operation("RingfeedResize", image, "resized: float", 0, resize);
}
