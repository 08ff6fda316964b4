/* Loops over files and records. kernels.py documents each, checks its arguments and calls it, mostly with the
 * interpreter's lock released. Nothing here allocates memory or keeps state.
 *
 * Numbers are little-endian, as in the files; kernels.py does not load this module on big-endian machines.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define HEADER_BYTES 12
#define FOOTER_BYTES 4
#define FILE_CHANGED (-1)
#define AHEAD 8 /* rows prefetched while one is copied */
#define TOGETHER 512 /* rows whose fields are copied before the next rows */
#define DIGIT_BITS 11
#define MOST_DIGITS 5 /* of a 64-bit number */
#define FEW 64 /* up to this many numbers are sorted without counting digits */

typedef uint32_t (*crc32c_extend)(uint32_t crc, const uint8_t *data, size_t count);

/* Reads files into memory that has room for exactly the expected size of each.
 * Returns 0, or errno or FILE_CHANGED with the number of the file in `failed`. */
int ringfeed_read_files(const char *paths, int64_t files, const int64_t *offsets, uint8_t *target, int64_t *failed)
{
    for (int64_t i = 0; i < files; i++, paths += strlen(paths) + 1) {
        uint8_t *next = target + offsets[i], beyond;
        size_t left = (size_t)(offsets[i + 1] - offsets[i]);
        ssize_t count;
        int file, error;

        *failed = i;
        do
            file = open(paths, O_RDONLY | O_CLOEXEC);
        while (file < 0 && errno == EINTR);
        if (file < 0)
            return errno;
        do { /* a read that leaves the extra byte unfilled has met the end of the file */
            struct iovec places[2] = {{next, left}, {&beyond, 1}};
            count = readv(file, places, 2);
            if (count > 0) {
                size_t taken = (size_t)count < left ? (size_t)count : left;
                next += taken;
                left -= taken;
                if ((size_t)count > taken) {
                    left = 1; /* the file has grown */
                    break;
                }
            }
        } while ((count > 0 && left) || (count < 0 && errno == EINTR));
        error = count < 0 ? errno : left ? FILE_CHANGED : 0;
        close(file);
        if (error)
            return error;
    }
    return 0;
}

static uint32_t mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

static void write_header(crc32c_extend extend, uint64_t length, uint8_t *header)
{
    uint32_t crc;
    memcpy(header, &length, 8);
    crc = mask(extend(0, header, 8));
    memcpy(header + 8, &crc, 4);
}

/* Writes header and footer around the message in each row of a matrix. */
void ringfeed_frame_rows(crc32c_extend extend, uint8_t *matrix, int64_t rows, int64_t row_bytes)
{
    const size_t length = (size_t)row_bytes - HEADER_BYTES - FOOTER_BYTES;
    uint8_t header[HEADER_BYTES];

    write_header(extend, length, header);
    for (uint8_t *row = matrix; row < matrix + rows * row_bytes; row += row_bytes) {
        uint32_t crc = mask(extend(0, row + HEADER_BYTES, length));
        memcpy(row, header, HEADER_BYTES);
        memcpy(row + row_bytes - FOOTER_BYTES, &crc, FOOTER_BYTES);
    }
}

/* Writes consecutive frames for the rows [first, stop). A row's message is its elements of all columns, end to end. */
void ringfeed_frame_columns(crc32c_extend extend, int64_t first, int64_t stop, int64_t columns,
                            const uint8_t *const *data, const int64_t *const *offsets, uint8_t *target)
{
    for (int64_t row = first; row < stop; row++) {
        uint8_t *next = target + HEADER_BYTES;
        uint32_t crc = 0;

        for (int64_t column = 0; column < columns; column++) {
            const int64_t start = offsets[column][row];
            const size_t count = (size_t)(offsets[column][row + 1] - start);
            memcpy(next, data[column] + start, count);
            crc = extend(crc, next, count);
            next += count;
        }
        write_header(extend, (uint64_t)(next - target - HEADER_BYTES), target);
        crc = mask(crc);
        memcpy(next, &crc, FOOTER_BYTES);
        target = next + FOOTER_BYTES;
    }
}

/* The first of consecutive frames that does not match its length or its CRCs, or `rows`. Every frame must have room
 * for a header and a footer. */
int64_t ringfeed_first_bad_frame(crc32c_extend extend, int64_t rows, const int64_t *ends, const uint8_t *data)
{
    int64_t start = 0;

    for (int64_t row = 0; row < rows; start = ends[row++]) {
        const uint8_t *frame = data + start;
        const size_t length = (size_t)(ends[row] - start) - HEADER_BYTES - FOOTER_BYTES;
        uint8_t header[HEADER_BYTES];
        uint32_t crc = mask(extend(0, frame + HEADER_BYTES, length));

        write_header(extend, length, header);
        if (memcmp(frame, header, HEADER_BYTES) || memcmp(frame + HEADER_BYTES + length, &crc, FOOTER_BYTES))
            return row;
    }
    return rows;
}

/* Encodes minimal varints and the offset at which each ends. Returns their size in bytes. */
int64_t ringfeed_pack_varints(const uint64_t *values, int64_t count, uint8_t *target, int64_t *ends)
{
    uint8_t *next = target;

    for (int64_t i = 0; i < count; i++) {
        uint64_t value = values[i];
        for (; value > 0x7f; value >>= 7)
            *next++ = (uint8_t)(value | 0x80);
        *next++ = (uint8_t)value;
        ends[i] = next - target;
    }
    return next - target;
}

/* Reads the varint at `at`, which must end before `end`. Returns the position after it, or -1. */
static int64_t read_varint(const uint8_t *data, int64_t at, int64_t end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 70 && at < end; shift += 7) {
        const uint8_t byte = data[at++];
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return at;
    }
    return -1;
}

/* Reads a tag and the length of content that ends exactly at `end`. Returns the position after them, or -1. */
static int64_t enter(const uint8_t *data, int64_t at, int64_t end, uint8_t tag)
{
    uint64_t length;

    if (at >= end || data[at] != tag)
        return -1;
    at = read_varint(data, at + 1, end, &length);
    return at >= 0 && length == (uint64_t)(end - at) ? at : -1;
}

#define DELIMITED_1 0x0a /* field 1, length-delimited */

/* Locates the serialised list of each feature in tf.train.Example messages that ringfeed has written: `bodies` and
 * `stops` are [features, messages], -1 where a message lacks the feature.
 * Returns the first message with another layout, or the number of messages. */
int64_t ringfeed_walk_examples(const uint8_t *data, int64_t messages, const int64_t *starts, const int64_t *ends,
                               int64_t features, const uint8_t *keys, const int64_t *key_offsets, const uint8_t *tags,
                               int64_t *bodies, int64_t *stops)
{
    for (int64_t row = 0; row < messages; row++) {
        const int64_t end = ends[row];
        int64_t at = enter(data, starts[row], end, DELIMITED_1);

        if (at < 0)
            return row;
        for (int64_t feature = 0; feature < features; feature++) {
            const uint8_t *key = keys + key_offsets[feature];
            const int64_t key_bytes = key_offsets[feature + 1] - key_offsets[feature];
            int64_t *body = bodies + feature * messages + row, *stop = stops + feature * messages + row;
            uint64_t length;
            int64_t entry;

            *body = *stop = -1;
            if (at >= end || data[at] != DELIMITED_1)
                continue;
            entry = read_varint(data, at + 1, end, &length);
            if (entry < 0 || length > (uint64_t)(end - entry))
                return row;
            if (length < (uint64_t)key_bytes || memcmp(data + entry, key, (size_t)key_bytes))
                continue;
            *stop = entry + (int64_t)length; /* `key` ends with the tag of the value */
            entry = read_varint(data, entry + key_bytes, *stop, &length);
            if (entry < 0 || length != (uint64_t)(*stop - entry) || (*body = enter(data, entry, *stop, tags[feature])) < 0)
                return row;
            at = *stop;
        }
        if (at != end)
            return row;
    }
    return messages;
}

/* Sorts numbers whose lowest bits ascend with their position: a radix sort by the `passes` highest digits, then an
 * insertion sort among equal digits. The result is in `to` if `passes` is odd, else in `from`. */
static void sort_by_digits(uint64_t *from, uint64_t *to, int64_t size, int passes)
{
    int64_t counts[MOST_DIGITS][1 << DIGIT_BITS] = {{0}};
    const uint64_t digit = (1 << DIGIT_BITS) - 1;

    for (int64_t i = 0; i < size; i++)
        for (int k = 0; k < passes; k++)
            counts[k][from[i] >> (64 - DIGIT_BITS * (passes - k)) & digit]++;
    for (int k = 0; k < passes; k++) {
        const int shift = 64 - DIGIT_BITS * (passes - k);
        int64_t next = 0;
        uint64_t *swapped = from;

        for (uint64_t d = 0; d <= digit; d++) {
            int64_t count = counts[k][d];
            counts[k][d] = next;
            next += count;
        }
        for (int64_t i = 0; i < size; i++)
            to[counts[k][from[i] >> shift & digit]++] = from[i];
        from = to;
        to = swapped;
    }
    for (int64_t i = 1; i < size; i++) {
        const uint64_t value = from[i];
        int64_t at = i;

        for (; at && from[at - 1] > value; at--)
            from[at] = from[at - 1];
        from[at] = value;
    }
}

/* Numbers from 0 with noise above their `low` lowest bits, sorted; see keyed_random.py. The `free` highest bits hold
 * the group of each number, or 0 without groups. `other` is scratch memory of the same size. */
void ringfeed_noise(uint64_t salt, int64_t size, int64_t free, int64_t low, const int32_t *groups, uint64_t *noise,
                    uint64_t *other)
{
    const int digits = (int)(free + low) / DIGIT_BITS + 1; /* enough for few numbers to share all of them */
    const int passes = size < FEW ? 0 : digits < MOST_DIGITS ? digits : MOST_DIGITS;
    uint64_t *start = passes % 2 ? other : noise;

    for (int64_t i = 0; i < size; i++) {
        uint64_t z = ((uint64_t)i ^ salt) * 0x9E3779B97F4A7C15u;

        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        start[i] = (z ^ z >> 31) >> (free + low) << low | (uint64_t)i;
    }
    for (int64_t i = 0; groups && i < size; i++)
        start[i] |= (uint64_t)groups[i] << (64 - free);
    sort_by_digits(start, start == noise ? other : noise, size, passes);
}

/* Draws the next member of each sample's class, cycling through the members; `next` holds the position of each class
 * and is advanced. Classes are numbers of `class_bytes` bytes, 1 or 4.
 * Returns the first sample whose class has no members, or the number of samples. */
int64_t ringfeed_draw(const void *classes, int64_t class_bytes, int64_t samples, const int64_t *members,
                      const int64_t *bounds, int64_t *next, int64_t *drawn)
{
    for (int64_t i = 0; i < samples; i++) {
        const int64_t class = class_bytes == 1 ? ((const uint8_t *)classes)[i] : ((const int32_t *)classes)[i];
        const int64_t start = bounds[class], count = bounds[class + 1] - start, at = next[class];

        if (!count)
            return i;
        drawn[i] = members[start + at];
        next[class] = at + 1 == count ? 0 : at + 1;
    }
    return samples;
}

/* Locates the single value of each list: it starts after its tag and length, or at the end of an empty list.
 * Returns the first list that holds anything else, or the number of lists. */
int64_t ringfeed_enter_lists(const uint8_t *data, int64_t lists, const int64_t *bodies, const int64_t *stops,
                             int64_t *starts)
{
    for (int64_t i = 0; i < lists; i++) {
        starts[i] = bodies[i] < stops[i] ? enter(data, bodies[i], stops[i], DELIMITED_1) : stops[i];
        if (starts[i] < 0)
            return i;
    }
    return lists;
}

/* Decodes slices of one varint each. Returns the first slice that holds anything else, or the number of slices. */
int64_t ringfeed_read_varints(const uint8_t *data, int64_t pieces, const int64_t *starts, const int64_t *ends,
                              uint64_t *values)
{
    for (int64_t i = 0; i < pieces; i++)
        if (read_varint(data, starts[i], ends[i], values + i) != ends[i])
            return i;
    return pieces;
}

/* Copies one field of some rows. The rows are scattered in memory, so the next ones are prefetched. */
static void gather_field(const uint8_t *data, int64_t rows, const int64_t *starts, int64_t width, uint8_t *target)
{
    for (int64_t i = 0; i < rows; i++) {
        if (i + AHEAD < rows) {
            uintptr_t soon = (uintptr_t)data + (uintptr_t)starts[i + AHEAD];

            __builtin_prefetch((const void *)soon);
            __builtin_prefetch((const void *)(soon + (uintptr_t)(width / 2)));
            __builtin_prefetch((const void *)(soon + (uintptr_t)width));
        }
        memcpy(target + i * width, (const void *)((uintptr_t)data + (uintptr_t)starts[i]), (size_t)width);
    }
}

/* Copies fields of rows into one array per field. `starts` are positions in `data`, or addresses if that is NULL. All
 * fields of a few rows are copied while these are in the cache. */
void ringfeed_gather(const uint8_t *data, int64_t rows, const int64_t *starts, int64_t fields, const int64_t *offsets,
                     const int64_t *widths, uint8_t *const *targets)
{
    for (int64_t first = 0; first < rows; first += TOGETHER) {
        int64_t count = rows - first < TOGETHER ? rows - first : TOGETHER;

        for (int64_t k = 0; k < fields; k++)
            gather_field((const uint8_t *)((uintptr_t)data + (uintptr_t)offsets[k]), count, starts + first, widths[k],
                         targets[k] + first * widths[k]);
    }
}

/* Copies values from anywhere in memory to places of their own. */
void ringfeed_copy_values(int64_t count, const int64_t *addresses, const int64_t *lengths, const int64_t *targets)
{
    for (int64_t i = 0; i < count; i++)
        memcpy((void *)(uintptr_t)targets[i], (const void *)(uintptr_t)addresses[i], (size_t)lengths[i]);
}

/* The addresses of rows, out of `count` contiguous ones at `base`. Returns the first row out of range, or `size`. */
int64_t ringfeed_locate_rows(const int64_t *rows, int64_t size, int64_t count, int64_t base, int64_t row_bytes,
                             int64_t *addresses)
{
    for (int64_t i = 0; i < size; i++) {
        if (rows[i] < 0 || rows[i] >= count)
            return i;
        addresses[i] = base + rows[i] * row_bytes;
    }
    return size;
}

struct view { /* an element of Arrow's binary_view */
    int32_t length;
    union {
        uint8_t value[12]; /* if it fits */
        struct {
            uint8_t prefix[4];
            int32_t buffer, offset;
        } place;
    } content;
};

/* Views of slices of data whose buffers begin every `span` bytes. */
void ringfeed_view_bytes(const uint8_t *data, int64_t pieces, const int64_t *starts, const int64_t *ends, int64_t span,
                         struct view *views)
{
    for (int64_t i = 0; i < pieces; i++) {
        struct view view = {(int32_t)(ends[i] - starts[i]), {{0}}};
        const uint8_t *piece = data + starts[i];

        if ((size_t)view.length <= sizeof view.content.value) {
            memcpy(view.content.value, piece, (size_t)view.length);
        } else {
            memcpy(view.content.place.prefix, piece, sizeof view.content.place.prefix);
            view.content.place.buffer = (int32_t)(starts[i] / span);
            view.content.place.offset = (int32_t)(starts[i] % span);
        }
        views[i] = view;
    }
}
