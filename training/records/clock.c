/* A TensorFlow operation that reads the clock. TensorFlow's own, `tf.timestamp`, refuses to run under op determinism,
 * and a function of Python would wait for the interpreter's lock.
 *
 * It looks TensorFlow's C API up in the process that loads it with `tf.load_op_library`. So it compiles without
 * TensorFlow, and works with every version that has these functions. If one is missing, it registers no operation.
 */

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { TF_DOUBLE = 2, TF_OK = 0 };

typedef struct Opaque Opaque;

/* Declared as in tensorflow/c/{kernels,ops,tf_status,tf_tensor}.h. */
#define FUNCTIONS(F)                                                                                                   \
    F(Opaque *, TF_NewStatus, (void))                                                                                  \
    F(void, TF_DeleteStatus, (Opaque * status))                                                                        \
    F(int, TF_GetCode, (const Opaque *status))                                                                         \
    F(void, TF_DeleteTensor, (Opaque * tensor))                                                                        \
    F(void *, TF_TensorData, (const Opaque *tensor))                                                                   \
    F(Opaque *, TF_AllocateOutput,                                                                                     \
      (Opaque * context, int number, int type, const int64_t *dims, int count, size_t bytes, Opaque *status))          \
    F(void, TF_OpKernelContext_Failure, (Opaque * context, Opaque * status))                                           \
    F(Opaque *, TF_NewOpDefinitionBuilder, (const char *name))                                                         \
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

static void read_clock(void *kernel, Opaque *context)
{
    Opaque *status = TF_NewStatus(), *now = TF_AllocateOutput(context, 0, TF_DOUBLE, NULL, 0, sizeof(double), status);

    (void)kernel;
    if (TF_GetCode(status) == TF_OK) {
        struct timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time); /* the clock of Python's time.monotonic() */
        *(double *)TF_TensorData(now) = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
        TF_DeleteTensor(now);
    } else {
        TF_OpKernelContext_Failure(context, status);
    }
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
    operation = TF_NewOpDefinitionBuilder("RingfeedMonotonicClock");
    TF_OpDefinitionBuilderAddOutput(operation, "now: double");
    TF_OpDefinitionBuilderSetIsStateful(operation, 1); /* the result must not be cached */
    TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, TF_ShapeInferenceContextSetUnknownShape);
    TF_RegisterOpDefinition(operation, status);
    if (TF_GetCode(status) == TF_OK)
        TF_RegisterKernelBuilder("RingfeedMonotonicClock", TF_NewKernelBuilder("RingfeedMonotonicClock", "CPU", NULL, read_clock, NULL),
                                 status);
    TF_DeleteStatus(status);
}
