/* Decodes crops of JPEG files, and resizes images, as `Loader.epoch` does in TensorFlow. compiled_images.py calls it.
 *
 * JPEGs are decoded by the libjpeg-turbo that Pillow has loaded, called as tensorflow/core/lib/jpeg/jpeg_mem.cc calls
 * TensorFlow's. So this compiles without libjpeg. jpeglib.h says that its structures may differ in size and at their
 * ends between versions of the library; what is declared here is the same in all, and the library tells the size.
 */

#include <dlfcn.h>
#include <setjmp.h>

#include "resize.h"

enum { MOST_BYTES = 2048, MOST_PIXELS = 1 << 29 };
enum { GREY = 1, COLOURS = 2, CMYK = 4, YCCK = 5, ACCURATE = 0, HEADER_OK = 1 };
enum { DONE = 0, FAILED = 1, OTHER_COLOURS = 2 };

typedef struct Decoder Decoder;

typedef struct {
    void (*error_exit)(Decoder *);
    void (*emit_message)(Decoder *, int);
    void (*output_message)(Decoder *);
    void (*format_message)(Decoder *, char *);
    void (*reset)(Decoder *);
    int code;
    union {
        int numbers[8];
        char text[80];
    } parameters;
    int trace_level;
    long warnings;
    const char *const *messages;
    int last_message;
    const char *const *more_messages;
    int first_more, last_more;
} Errors;

typedef struct {
    const uint8_t *next;
    size_t left;
    void (*begin)(Decoder *);
    int (*fill)(Decoder *);
    void (*skip)(Decoder *, long);
    int (*resync)(Decoder *, int);
    void (*end)(Decoder *);
} Source;

struct Decoder {
    Errors *errors;
    void *memory, *progress, *client;
    int is_decompressor, state;
    Source *source;
    unsigned image_width, image_height;
    int components, colours, out_colours;
    unsigned scale_numerator, scale_denominator;
    double gamma;
    int is_buffered, is_raw, dct_method, fancy_upsampling, block_smoothing;
    int quantizes, dither_mode, two_passes, most_colours, one_pass, external, second_pass;
    unsigned width, height;
    int out_colour_components, out_components, row_group, actual_colours;
    uint8_t **colour_map;
    unsigned row;
};

#define FUNCTIONS(F)                                                                                                   \
    F(Errors *, jpeg_std_error, (Errors * errors))                                                                     \
    F(void, jpeg_CreateDecompress, (Decoder * decoder, int version, size_t size))                                      \
    F(void, jpeg_destroy_decompress, (Decoder * decoder))                                                              \
    F(int, jpeg_read_header, (Decoder * decoder, int require_image))                                                   \
    F(void, jpeg_calc_output_dimensions, (Decoder * decoder))                                                          \
    F(int, jpeg_start_decompress, (Decoder * decoder))                                                                 \
    F(void, jpeg_crop_scanline, (Decoder * decoder, unsigned *left, unsigned *width))                                  \
    F(unsigned, jpeg_skip_scanlines, (Decoder * decoder, unsigned rows))                                               \
    F(unsigned, jpeg_read_scanlines, (Decoder * decoder, uint8_t * *rows, unsigned most))                              \
    F(int, jpeg_resync_to_restart, (Decoder * decoder, int desired))

#define DECLARE(result, name, arguments) static result(*name) arguments;
FUNCTIONS(DECLARE)

static int version;
static size_t decoder_bytes;

/* What one call works with. */
typedef struct {
    union {
        Decoder decoder;
        char bytes[MOST_BYTES];
    } space;
    Errors errors;
    Source source;
    jmp_buf end;
    char *message;
} Work;

static void fail(Decoder *decoder)
{
    Work *work = decoder->client;
    if (work->message)
        work->errors.format_message(decoder, work->message);
    longjmp(work->end, 1);
}

static void ignore(Decoder *decoder)
{
    (void)decoder;
}

static int find_no_more(Decoder *decoder)
{
    (void)decoder;
    return 0;
}

static void skip(Decoder *decoder, long count)
{
    Source *source = decoder->source;
    size_t step = count < 0 ? 0 : (size_t)count < source->left ? (size_t)count : source->left;
    source->next += step;
    source->left -= step;
}

static Decoder *prepare(Work *work, char *message)
{
    Decoder *decoder = &work->space.decoder;

    memset(work, 0, sizeof *work);
    work->message = message;
    decoder->errors = jpeg_std_error(&work->errors);
    work->errors.error_exit = fail;
    work->errors.output_message = ignore;
    decoder->client = work;
    return decoder;
}

/* Asks for the number that the library expects in place of another: it says so in its error. */
static int expected(int given_version, size_t given_bytes)
{
    Work work;
    Decoder *decoder = prepare(&work, NULL);

    if (setjmp(work.end))
        return work.errors.parameters.numbers[0];
    jpeg_CreateDecompress(decoder, given_version, given_bytes);
    return 0;
}

/* Finds libjpeg-turbo among the libraries of a module that is loaded. Returns whether it can be used. */
int ringfeed_find_jpeg_library(const char *module)
{
    void *library = dlopen(module, RTLD_NOLOAD | RTLD_LAZY);

    if (!library)
        return 0;
#define FIND(result, name, arguments)                                                                                  \
    if (!(*(void **)&name = dlsym(library, #name)))                                                                    \
        return 0;
    FUNCTIONS(FIND)
    version = expected(0, 0);
    decoder_bytes = (size_t)expected(version, 0);
    return sizeof(Decoder) <= decoder_bytes && decoder_bytes <= MOST_BYTES;
}

static Decoder *open_file(Work *work, const uint8_t *data, int64_t size)
{
    Decoder *decoder = &work->space.decoder;

    jpeg_CreateDecompress(decoder, version, decoder_bytes);
    work->source = (Source){data, (size_t)size, ignore, find_no_more, skip, jpeg_resync_to_restart, ignore};
    decoder->source = &work->source;
    return jpeg_read_header(decoder, 1) == HEADER_OK ? decoder : NULL;
}

/* Writes height and width of a JPEG file to `sides`. */
int ringfeed_jpeg_sides(const uint8_t *data, int64_t size, int64_t *sides, char *message)
{
    Work work;
    Decoder *decoder = prepare(&work, message);
    int result = FAILED;

    if (!setjmp(work.end) && open_file(&work, data, size)) {
        sides[0] = decoder->image_height;
        sides[1] = decoder->image_width;
        result = decoder->colours == CMYK || decoder->colours == YCCK ? OTHER_COLOURS : DONE;
    }
    jpeg_destroy_decompress(decoder);
    return result;
}

/* Decodes the window [top, left, height, width] of a JPEG file whose sides are divided by `scale`, to grey or to colours.
 * `row` has room for a row of the image and its padding to whole blocks. */
int ringfeed_decode_jpeg(const uint8_t *data, int64_t size, int64_t channels, int64_t scale, const int64_t *window,
                         uint8_t *row, int64_t row_bytes, uint8_t *pixels, char *message)
{
    Work work;
    Decoder *decoder = prepare(&work, message);
    const size_t target = (size_t)(window[3] * channels);
    volatile int result = FAILED;

    if (setjmp(work.end) || !open_file(&work, data, size))
        goto end;
    decoder->out_colours = channels == 1 ? GREY : COLOURS;
    decoder->fancy_upsampling = 1;
    decoder->scale_numerator = 1;
    decoder->scale_denominator = (unsigned)scale;
    decoder->dct_method = ACCURATE;
    jpeg_calc_output_dimensions(decoder);
    if ((int64_t)decoder->width * decoder->height * decoder->components >= MOST_PIXELS ||
        window[0] + window[2] > (int64_t)decoder->height || window[1] + window[3] > (int64_t)decoder->width ||
        !jpeg_start_decompress(decoder))
        goto end;
    if (window[3] < (int64_t)decoder->width || window[2] < (int64_t)decoder->height) {
        unsigned left = (unsigned)window[1], width = (unsigned)window[3];
        jpeg_crop_scanline(decoder, &left, &width); /* widens to whole blocks */
        if (jpeg_skip_scanlines(decoder, (unsigned)window[0]) != (unsigned)window[0])
            goto end;
    }
    if ((int64_t)decoder->width * channels > row_bytes || decoder->out_components != channels)
        goto end;
    for (int64_t i = 0; i < window[2]; i++) {
        if (!jpeg_read_scanlines(decoder, &row, 1))
            goto end;
        memcpy(pixels + (size_t)i * target, row + (size_t)decoder->width * (size_t)channels - target, target);
    }
    result = DONE;
end:
    jpeg_destroy_decompress(decoder);
    return result;
}

/* Resizes a uint8 image of `from` [height, width, channels] to the sides of `to`. Returns whether there was memory. */
int ringfeed_resize(const uint8_t *pixels, const int64_t *from, const int64_t *to, float *result)
{
    return resize_pixels(pixels, from, to, result);
}
