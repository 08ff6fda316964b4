/* A TensorFlow operation that copies values in memory into a tensor of strings, without Python's lock.
 *
 * It looks TensorFlow's C API up in the process that loads it with `tf.load_op_library`. So it compiles without
 * TensorFlow, and works with every version that has these functions. If one is missing, it registers no operation.
 */

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

enum { TF_STRING = 7, TF_OK = 0, TF_INVALID_ARGUMENT = 3, STRING_BYTES = 24, MOST_DIMENSIONS = 8 };

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

__attribute__((constructor)) static void register_operation(void)
{
    void *library = dlopen("libtensorflow_cc.so.2", RTLD_NOLOAD | RTLD_LAZY);
    Opaque *status, *operation;

    if (!library)
        return;
#define FIND(result, name, arguments)                                                                                  \
    if (!(*(void **)&name = dlsym(library, #name)))                                                                    \
        return;
    FUNCTIONS(FIND)
    status = TF_NewStatus();
    operation = TF_NewOpDefinitionBuilder("RingfeedCopyViews");
    TF_OpDefinitionBuilderAddInput(operation, "addresses: int64");
    TF_OpDefinitionBuilderAddInput(operation, "lengths: int64");
    TF_OpDefinitionBuilderAddOutput(operation, "values: string");
    TF_OpDefinitionBuilderSetIsStateful(operation, 1); /* the memory at an address changes: results must not be cached */
    TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, TF_ShapeInferenceContextSetUnknownShape);
    TF_RegisterOpDefinition(operation, status);
    if (TF_GetCode(status) == TF_OK)
        TF_RegisterKernelBuilder("RingfeedCopyViews", TF_NewKernelBuilder("RingfeedCopyViews", "CPU", NULL, copy_views, NULL),
                                 status);
    TF_DeleteStatus(status);
}
