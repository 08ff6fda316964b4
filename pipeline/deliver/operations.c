/* TensorFlow operations: one copies values in memory into a tensor of strings, without Python's lock; one resizes an
 * image. operations.py says how to call them.
 *
 * They look TensorFlow's C API up in the process that loads them with `tf.load_op_library`. So they compile without
 * TensorFlow, and work with every version that has these functions. If one is missing, no operation is registered.
 */

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#include "../transforms/resize.h"

enum { TF_FLOAT = 1, TF_STRING = 7, TF_OK = 0, TF_INVALID_ARGUMENT = 3, TF_RESOURCE_EXHAUSTED = 8 };
enum { STRING_BYTES = 24, MOST_DIMENSIONS = 8 };

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
