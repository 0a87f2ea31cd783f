/* The caching allocator of caching.py and expandable.py, compiled: the same rules under the same names.
 *
 * Schedulers replay it thousands of times. Python's numbers and tables are most of that time; here they are
 *
 *     Sorted    keys and values in one array, the smallest key first: the free blocks of a pool by (size, address), and
 *               what is not mapped by its address
 *     Table     from an address to a number, by hashing: where blocks begin and end, what is in use
 *
 * Both are copied as they lie in memory. tests/peak_memory/test_compiled.py holds every answer against the Python one.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

typedef int64_t i64;

#define MIB ((i64)1 << 20)
#define MIN_BLOCK ((i64)512)
#define SMALL_SIZE MIB
#define SMALL_BUFFER (2 * MIB)
#define MIN_LARGE_ALLOC (10 * MIB)
#define ROUND_LARGE (2 * MIB)
#define NO_BLOCK ((i64)-1)
#define SMALL_BASE ((i64)1 << 62)
#define ADDRESSES ((i64)1 << 61)
#define NO_LIMIT INT64_MAX /* in Python 2**63: the largest number here, read and written as that */
#define INTERVALS 16

static PyObject *full_device_error, *out_of_device_memory_error, *block_type, *no_limit;

/* --- Sorted and Table --- */

typedef struct {
    i64 key, value;
} Pair;

typedef struct {
    Pair *pairs;
    size_t count, room;
} Sorted;

typedef struct {
    Pair *pairs; /* key -1: empty */
    size_t count;
    int bits; /* 2**bits places; 0: none yet */
    int failed;
} Table;

static size_t
sorted_at(const Sorted *sorted, i64 key, i64 value)
{
    size_t low = 0, high = sorted->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const Pair *pair = &sorted->pairs[middle];
        if (pair->key < key || (pair->key == key && pair->value < value))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int
sorted_add(Sorted *sorted, i64 key, i64 value)
{
    if (sorted->count == sorted->room) {
        size_t room = sorted->room ? 2 * sorted->room : 16;
        Pair *pairs = realloc(sorted->pairs, room * sizeof(Pair));
        if (!pairs)
            return -1;
        sorted->pairs = pairs;
        sorted->room = room;
    }
    size_t at = sorted_at(sorted, key, value);
    memmove(sorted->pairs + at + 1, sorted->pairs + at, (sorted->count++ - at) * sizeof(Pair));
    sorted->pairs[at] = (Pair){key, value};
    return 0;
}

static void
sorted_drop(Sorted *sorted, size_t at)
{
    memmove(sorted->pairs + at, sorted->pairs + at + 1, (--sorted->count - at) * sizeof(Pair));
}

static int
sorted_copy(Sorted *to, const Sorted *from)
{
    *to = (Sorted){NULL, from->count, from->count};
    if (!from->count)
        return 0;
    to->pairs = malloc(from->count * sizeof(Pair));
    if (!to->pairs)
        return -1;
    memcpy(to->pairs, from->pairs, from->count * sizeof(Pair));
    return 0;
}

static size_t
table_place(const Table *table, i64 key)
{
    return (size_t)(((uint64_t)key * 0x9E3779B97F4A7C15u) >> (64 - table->bits));
}

/* Where a key is, or the empty place for it. */
static Pair *
table_pair(const Table *table, i64 key)
{
    size_t mask = ((size_t)1 << table->bits) - 1, at = table_place(table, key);
    while (table->pairs[at].key != key && table->pairs[at].key != -1)
        at = (at + 1) & mask;
    return &table->pairs[at];
}

static i64
table_get(const Table *table, i64 key, i64 otherwise)
{
    if (!table->count)
        return otherwise;
    const Pair *pair = table_pair(table, key);
    return pair->key == key ? pair->value : otherwise;
}

static void
table_put(Table *table, i64 key, i64 value)
{
    size_t places = table->bits ? (size_t)1 << table->bits : 0;
    if (2 * (table->count + 1) > places) {
        Table larger = {NULL, table->count, table->bits ? table->bits + 1 : 5, 0};
        size_t more = (size_t)1 << larger.bits;
        larger.pairs = malloc(more * sizeof(Pair));
        if (!larger.pairs) {
            table->failed = 1;
            return;
        }
        memset(larger.pairs, 0xff, more * sizeof(Pair));
        for (size_t at = 0; at < places; at++)
            if (table->pairs[at].key != -1)
                *table_pair(&larger, table->pairs[at].key) = table->pairs[at];
        free(table->pairs);
        *table = larger;
    }
    Pair *pair = table_pair(table, key);
    table->count += pair->key == -1;
    *pair = (Pair){key, value};
}

/* Take a key out; what came behind it for want of its place moves up. */
static i64
table_pop(Table *table, i64 key, i64 otherwise)
{
    if (!table->count)
        return otherwise;
    Pair *pair = table_pair(table, key);
    if (pair->key == -1)
        return otherwise;
    i64 value = pair->value;
    size_t mask = ((size_t)1 << table->bits) - 1, hole = (size_t)(pair - table->pairs), at = hole;
    for (;;) {
        at = (at + 1) & mask;
        if (table->pairs[at].key == -1)
            break;
        size_t home = table_place(table, table->pairs[at].key);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            table->pairs[hole] = table->pairs[at];
            hole = at;
        }
    }
    table->pairs[hole].key = -1;
    table->count--;
    return value;
}

static int
table_copy(Table *to, const Table *from)
{
    *to = *from;
    if (!from->bits)
        return 0;
    size_t size = ((size_t)1 << from->bits) * sizeof(Pair);
    to->pairs = malloc(size);
    if (!to->pairs)
        return -1;
    memcpy(to->pairs, from->pairs, size);
    return 0;
}

/* --- The allocator --- */

enum { USED, STARTS, ENDS, SEGMENT_SIZES, UNMAPPED, UNMAPPED_ENDS, TABLES };
enum { LARGE, SMALL, POOLS };

typedef struct {
    PyObject_HEAD
    PyObject *settings, *on_lending;
    i64 capacity, most_retries, most_lent_bytes;
    long long reserved_bytes, allocated_bytes, peak_reserved_bytes, peak_allocated_bytes, segments, retries, lent_bytes;
    char halts;
    int expandable, picky, rounds_up;
    i64 max_split_size, max_rounding, large_segment_size, unsplit_size, least_large;
    i64 divisions[INTERVALS];
    i64 next_address[POOLS];
    Sorted pools[POOLS], holes[POOLS];
    Table tables[TABLES];
    int failed;
} Allocator;

typedef struct {
    i64 address, size;
} Block;

static i64
up_to(i64 count, i64 step)
{
    return (count + step - 1) / step * step;
}

static int
pool_of(i64 size)
{
    return size <= SMALL_SIZE ? SMALL : LARGE;
}

static int
pool_at(i64 address)
{
    return address >= SMALL_BASE ? SMALL : LARGE;
}

static i64
rounded(const Allocator *a, i64 count)
{
    if (count < MIN_BLOCK)
        return MIN_BLOCK;
    int bit_length = 0;
    while (bit_length < 63 && count >> bit_length)
        bit_length++;
    int interval = bit_length - 1 - 20;
    i64 divisions = a->rounds_up ? a->divisions[interval < 0 ? 0 : interval < INTERVALS ? interval : INTERVALS - 1] : 0;
    if (divisions > 1 && count > MIN_BLOCK * divisions) {
        if (!(count & (count - 1)))
            return count;
        i64 floor = (i64)1 << (bit_length - 1), step = floor / divisions; /* both are powers of two */
        return step ? up_to(count, step) : floor << 1;
    }
    if (divisions == 1 && count > MIN_BLOCK)
        return count;
    return up_to(count, MIN_BLOCK);
}

static void
add_free(Allocator *a, i64 address, i64 size)
{
    table_put(&a->tables[STARTS], address, size);
    table_put(&a->tables[ENDS], address + size, address);
    if (sorted_add(&a->pools[pool_at(address)], size, address) < 0)
        a->failed = 1;
}

/* Out of what is free. */
static i64
take(Allocator *a, i64 address)
{
    i64 size = table_pop(&a->tables[STARTS], address, 0);
    table_pop(&a->tables[ENDS], address + size, 0);
    Sorted *pool = &a->pools[pool_at(address)];
    sorted_drop(pool, sorted_at(pool, size, address));
    return size;
}

/* A block becomes free: one with its free neighbours. */
static void
join(Allocator *a, i64 address, i64 size)
{
    if (table_get(&a->tables[STARTS], address + size, 0))
        size += take(a, address + size);
    i64 before = table_get(&a->tables[ENDS], address, NO_BLOCK);
    if (before != NO_BLOCK) {
        size += take(a, before);
        address = before;
    }
    add_free(a, address, size);
}

static void
reserve(Allocator *a, i64 count)
{
    a->reserved_bytes += count;
    if (a->reserved_bytes > a->peak_reserved_bytes)
        a->peak_reserved_bytes = a->reserved_bytes;
}

static i64
growth(const Allocator *a, i64 size)
{
    if (size <= SMALL_SIZE)
        return SMALL_BUFFER;
    if (size < MIN_LARGE_ALLOC)
        return a->large_segment_size;
    return up_to(size, ROUND_LARGE);
}

static int
oversized(const Allocator *a, i64 have, i64 size)
{
    i64 limit = a->max_split_size;
    return (size < limit && limit <= have) || (size >= limit && have >= size + a->max_rounding);
}

/* The size of a free block to which it can grow (expandable_size). */
static i64
can_grow_to(const Allocator *a, const Pair *block)
{
    return block->key + table_get(&a->tables[UNMAPPED], block->value + block->key, 0);
}

/* Where in its pool the free block is that a request gets; the pool's end: there is none. */
static size_t
fit(const Allocator *a, i64 size)
{
    const Sorted *pool = &a->pools[pool_of(size)];
    size_t at = sorted_at(pool, size, 0);
    if (!a->picky || at == pool->count)
        return at;
    if (a->expandable)
        while (at + 1 < pool->count && can_grow_to(a, &pool->pairs[at + 1]) < can_grow_to(a, &pool->pairs[at]))
            at++;
    return oversized(a, pool->pairs[at].key, size) ? pool->count : at;
}

/* --- Segments from cudaMalloc --- */

static int
new_segment(Allocator *a, i64 size, Block *block)
{
    i64 segment = growth(a, size);
    int pool = pool_of(size);
    if (a->reserved_bytes + segment > a->capacity)
        return 0;
    *block = (Block){a->next_address[pool], segment};
    a->next_address[pool] += segment + MIN_BLOCK; /* with a gap: blocks of two segments never join */
    table_put(&a->tables[SEGMENT_SIZES], block->address, segment);
    a->segments++;
    reserve(a, segment);
    return 1;
}

static int
whole(const Allocator *a, i64 address)
{
    return table_get(&a->tables[STARTS], address, -1) == table_get(&a->tables[SEGMENT_SIZES], address, -2);
}

static i64
give_back(Allocator *a, i64 address)
{
    i64 size = take(a, address);
    table_pop(&a->tables[SEGMENT_SIZES], address, 0);
    reserve(a, -size);
    return size;
}

/* Give back blocks that are not split, as many as serve the request (release_available_cached_blocks). */
static int
released_some(Allocator *a, i64 size)
{
    i64 limit = a->max_split_size, wanted = size > limit ? size : limit, released = 0;
    if (limit == NO_LIMIT || a->expandable)
        return 0;
    Sorted *pool = &a->pools[pool_of(size)];
    for (size_t at = sorted_at(pool, limit, 0); at < pool->count; at++)
        if (pool->pairs[at].key >= wanted && whole(a, pool->pairs[at].value)) {
            give_back(a, pool->pairs[at].value);
            return 1;
        }
    for (size_t at = pool->count; at-- && pool->pairs[at].key >= limit && released < wanted;)
        if (whole(a, pool->pairs[at].value))
            released += give_back(a, pool->pairs[at].value);
    return released >= wanted;
}

/* Give back every segment that is wholly free. */
static void
release_segments(Allocator *a)
{
    for (int p = 0; p < POOLS; p++)
        for (size_t at = a->pools[p].count; at--;)
            if (whole(a, a->pools[p].pairs[at].value))
                give_back(a, a->pools[p].pairs[at].value);
}

/* --- Expandable segments --- */

static i64
page_of(const Allocator *a, int pool)
{
    return pool == SMALL ? SMALL_BUFFER : a->large_segment_size;
}

static void
add_hole(Allocator *a, i64 at, i64 size)
{
    table_put(&a->tables[UNMAPPED], at, size);
    table_put(&a->tables[UNMAPPED_ENDS], at + size, at);
    if (sorted_add(&a->holes[pool_at(at)], at, 0) < 0)
        a->failed = 1;
}

static i64
remove_hole(Allocator *a, i64 at)
{
    i64 size = table_pop(&a->tables[UNMAPPED], at, 0);
    Sorted *holes = &a->holes[pool_at(at)];
    table_pop(&a->tables[UNMAPPED_ENDS], at + size, 0);
    sorted_drop(holes, sorted_at(holes, at, 0));
    return size;
}

/* The lowest block from which on so many bytes are free or not mapped. */
static i64
room_for(const Allocator *a, i64 size)
{
    const Sorted *holes = &a->holes[pool_of(size)];
    for (size_t k = 0; k < holes->count; k++) {
        i64 hole = holes->pairs[k].key, start = table_get(&a->tables[ENDS], hole, hole), at = start, have = 1;
        while (at - start < size && have) {
            have = table_get(&a->tables[STARTS], at, 0);
            have = have ? have : table_get(&a->tables[UNMAPPED], at, 0);
            at += have;
        }
        if (at - start >= size)
            return start;
    }
    return NO_BLOCK; /* never: the last hole is larger than any request */
}

/* Map the first bytes of what is not mapped, in whole pages; they are free then. 0: there is no memory. */
static int
map_pages(Allocator *a, i64 at, i64 size)
{
    i64 have = table_get(&a->tables[UNMAPPED], at, 0);
    size = up_to(size < have ? size : have, page_of(a, pool_at(at)));
    if (a->reserved_bytes + size > a->capacity)
        return 0;
    remove_hole(a, at);
    if (size < have)
        add_hole(a, at + size, have - size);
    a->segments++;
    reserve(a, size);
    join(a, at, size);
    return 1;
}

static int
mapped_block(Allocator *a, i64 size, Block *block)
{
    i64 at = room_for(a, size), have = at == NO_BLOCK ? 0 : table_get(&a->tables[STARTS], at, 0);
    if (at == NO_BLOCK)
        return 0;
    for (; have < size && !a->failed; have = table_get(&a->tables[STARTS], at, 0))
        if (!map_pages(a, at + have, size - have))
            return 0;
    take(a, at);
    *block = (Block){at, have};
    return 1;
}

static void
unmap(Allocator *a, i64 address, i64 size)
{
    i64 page = page_of(a, pool_at(address)), stop = address + size;
    i64 begin = up_to(address, page), end = stop / page * page;
    if (begin >= end)
        return;
    take(a, address);
    if (stop > end)
        join(a, end, stop - end);
    if (begin > address)
        join(a, address, begin - address);
    reserve(a, begin - end);
    if (table_get(&a->tables[UNMAPPED], end, 0))
        end += remove_hole(a, end);
    i64 before = table_get(&a->tables[UNMAPPED_ENDS], begin, NO_BLOCK);
    if (before != NO_BLOCK) {
        remove_hole(a, before);
        begin = before;
    }
    add_hole(a, begin, end - begin);
}

/* Unmap every page that is wholly free. */
static void
release_pages(Allocator *a)
{
    for (int p = 0; p < POOLS; p++) {
        Sorted blocks;
        if (sorted_copy(&blocks, &a->pools[p]) < 0) {
            a->failed = 1;
            return;
        }
        for (size_t at = 0; at < blocks.count; at++)
            unmap(a, blocks.pairs[at].value, blocks.pairs[at].key);
        free(blocks.pairs);
    }
}

/* --- Requests --- */

static int
from_device(Allocator *a, i64 size, Block *block)
{
    return a->expandable ? mapped_block(a, size, block) : new_segment(a, size, block);
}

static i64
shortfall(const Allocator *a, i64 size)
{
    return a->reserved_bytes + growth(a, size) - a->capacity;
}

static int
lend(Allocator *a, i64 size)
{
    i64 count = a->expandable ? page_of(a, pool_of(size)) : shortfall(a, size);
    if (a->lent_bytes + count > a->most_lent_bytes) {
        PyErr_SetNone(out_of_device_memory_error);
        return -1;
    }
    a->lent_bytes += count;
    a->capacity += count;
    if (a->on_lending == Py_None)
        return 0;
    PyObject *said = PyObject_CallNoArgs(a->on_lending);
    Py_XDECREF(said);
    return said ? 0 : -1;
}

/* A block from the device, after a retry where it has no more; it is in no pool. */
static int
grown(Allocator *a, i64 size, Block *block)
{
    int found = from_device(a, size, block);
    if (!found && a->halts) {
        PyErr_SetNone(full_device_error);
        return -1;
    }
    if (!found && released_some(a, size))
        found = from_device(a, size, block);
    if (!found && a->retries < a->most_retries) {
        a->retries++;
        if (a->expandable)
            release_pages(a);
        else
            release_segments(a);
        found = from_device(a, size, block);
    }
    while (!found && !a->failed) {
        if (lend(a, size) < 0)
            return -1;
        found = from_device(a, size, block);
    }
    return 0;
}

/* -1 and an exception: there was no memory for the tables themselves. */
static int
sound(const Allocator *a)
{
    int failed = a->failed;
    for (int t = 0; t < TABLES; t++)
        failed |= a->tables[t].failed;
    if (failed)
        PyErr_NoMemory();
    return failed ? -1 : 0;
}

static int
allocate(Allocator *a, i64 count, i64 *address)
{
    i64 size = rounded(a, count);
    int p = pool_of(size);
    Sorted *pool = &a->pools[p];
    Block block;
    size_t at = fit(a, size);
    if (at < pool->count) {
        block = (Block){pool->pairs[at].value, pool->pairs[at].key};
        sorted_drop(pool, at);
        table_pop(&a->tables[STARTS], block.address, 0);
        table_pop(&a->tables[ENDS], block.address + block.size, 0);
    }
    else if (grown(a, size, &block) < 0)
        return -1;
    if (sound(a) < 0)
        return -1;
    i64 left = block.size - size;
    if (left >= (p == SMALL ? MIN_BLOCK : a->least_large) && size < a->unsplit_size) {
        add_free(a, block.address + size, left);
        block.size = size;
    }
    table_put(&a->tables[USED], block.address, block.size);
    a->allocated_bytes += block.size;
    if (a->allocated_bytes > a->peak_allocated_bytes)
        a->peak_allocated_bytes = a->allocated_bytes;
    *address = block.address;
    return sound(a);
}

/* --- For Python --- */

static int
number(PyObject *object, i64 *value)
{
    int overflow;
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow > 0)
        *value = NO_LIMIT;
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static int
number_of(PyObject *settings, const char *name, i64 *value)
{
    PyObject *object = PyObject_GetAttrString(settings, name);
    int failed = object ? number(object, value) : -1;
    Py_XDECREF(object);
    return failed;
}

static int
read_settings(Allocator *a)
{
    PyObject *expandable = PyObject_GetAttrString(a->settings, "expandable_segments");
    a->expandable = expandable ? PyObject_IsTrue(expandable) : -1;
    Py_XDECREF(expandable);
    if (a->expandable < 0 || number_of(a->settings, "max_split_size_bytes", &a->max_split_size) < 0 ||
        number_of(a->settings, "max_non_split_rounding_bytes", &a->max_rounding) < 0 ||
        number_of(a->settings, "large_segment_size_bytes", &a->large_segment_size) < 0)
        return -1;
    PyObject *divisions = PyObject_GetAttrString(a->settings, "roundup_power2_divisions");
    PyObject *each = divisions ? PySequence_Fast(divisions, "roundup_power2_divisions are a sequence") : NULL;
    Py_XDECREF(divisions);
    if (!each)
        return -1;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(each);
    a->rounds_up = count == INTERVALS;
    for (Py_ssize_t k = 0; a->rounds_up && k < count; k++)
        if (number(PySequence_Fast_GET_ITEM(each, k), &a->divisions[k]) < 0) {
            Py_DECREF(each);
            return -1;
        }
    Py_DECREF(each);
    return 0;
}

static PyObject *
Allocator_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"settings", "capacity", NULL};
    PyObject *settings, *capacity = no_limit;
    if (!PyArg_ParseTupleAndKeywords(args, named, "O|O", names, &settings, &capacity))
        return NULL;
    Allocator *a = (Allocator *)type->tp_alloc(type, 0);
    if (!a)
        return NULL;
    a->settings = Py_NewRef(settings);
    a->on_lending = Py_NewRef(Py_None);
    a->most_retries = NO_LIMIT;
    if (number(capacity, &a->capacity) < 0 || read_settings(a) < 0) {
        Py_DECREF(a);
        return NULL;
    }
    a->picky = a->expandable || a->max_split_size < NO_LIMIT; /* the smallest block that fits may not be the one */
    a->unsplit_size = a->expandable ? NO_LIMIT : a->max_split_size;
    a->least_large = a->expandable ? MIN_BLOCK : SMALL_SIZE + 1; /* a rest of so much becomes a block */
    a->next_address[SMALL] = SMALL_BASE;
    if (a->expandable) {
        add_hole(a, SMALL_BASE, ADDRESSES);
        add_hole(a, 0, ADDRESSES);
    }
    if (sound(a) < 0) {
        Py_DECREF(a);
        return NULL;
    }
    return (PyObject *)a;
}

static int
Allocator_traverse(Allocator *a, visitproc visit, void *arg)
{
    Py_VISIT(a->settings);
    Py_VISIT(a->on_lending);
    return 0;
}

static int
Allocator_clear(Allocator *a)
{
    Py_CLEAR(a->settings);
    Py_CLEAR(a->on_lending);
    return 0;
}

static void
Allocator_dealloc(Allocator *a)
{
    PyObject_GC_UnTrack(a);
    Allocator_clear(a);
    for (int p = 0; p < POOLS; p++) {
        free(a->pools[p].pairs);
        free(a->holes[p].pairs);
    }
    for (int t = 0; t < TABLES; t++)
        free(a->tables[t].pairs);
    Py_TYPE(a)->tp_free((PyObject *)a);
}

static PyObject *
Allocator_allocate(Allocator *a, PyObject *arg)
{
    i64 count, address = NO_BLOCK;
    if (number(arg, &count) < 0 || (count && allocate(a, count, &address) < 0))
        return NULL;
    return PyLong_FromLongLong(address);
}

static PyObject *
Allocator_free(Allocator *a, PyObject *arg)
{
    i64 address;
    if (number(arg, &address) < 0)
        return NULL;
    if (address == NO_BLOCK)
        Py_RETURN_NONE;
    i64 size = table_pop(&a->tables[USED], address, -1);
    if (size < 0) {
        PyErr_SetObject(PyExc_KeyError, arg);
        return NULL;
    }
    a->allocated_bytes -= size;
    join(a, address, size);
    if (sound(a) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
Allocator_size_of(Allocator *a, PyObject *arg)
{
    i64 address, size = -1;
    if (number(arg, &address) < 0)
        return NULL;
    size = table_get(&a->tables[USED], address, -1);
    if (size < 0) {
        PyErr_SetObject(PyExc_KeyError, arg);
        return NULL;
    }
    return PyLong_FromLongLong(size);
}

static PyObject *
Allocator_growth_bytes(Allocator *a, PyObject *arg)
{
    i64 count;
    if (number(arg, &count) < 0)
        return NULL;
    i64 size = rounded(a, count);
    return PyLong_FromLongLong(!count || fit(a, size) < a->pools[pool_of(size)].count ? 0 : growth(a, size));
}

static PyObject *
Allocator_shortfall_bytes(Allocator *a, PyObject *arg)
{
    i64 size;
    if (number(arg, &size) < 0)
        return NULL;
    return PyLong_FromLongLong(shortfall(a, size));
}

static PyObject *
Allocator_free_blocks(Allocator *a, PyObject *Py_UNUSED(ignored))
{
    PyObject *found = PyList_New(0);
    for (int p = 0; found && p < POOLS; p++)
        for (size_t at = 0; found && at < a->pools[p].count; at++) {
            const Pair *pair = &a->pools[p].pairs[at];
            PyObject *block = PyObject_CallFunction(block_type, "LL", (long long)pair->value, (long long)pair->key);
            if (!block || PyList_Append(found, block) < 0)
                Py_CLEAR(found);
            Py_XDECREF(block);
        }
    return found;
}

static PyObject *
Allocator_largest_free_bytes(Allocator *a, PyObject *Py_UNUSED(ignored))
{
    const Sorted *large = &a->pools[LARGE];
    return PyLong_FromLongLong(large->count ? large->pairs[large->count - 1].key : 0);
}

static PyObject *
Allocator_copied(Allocator *a, PyObject *Py_UNUSED(ignored))
{
    Allocator *copy = (Allocator *)Py_TYPE(a)->tp_alloc(Py_TYPE(a), 0);
    if (!copy)
        return NULL;
    size_t head = offsetof(Allocator, settings), tables = offsetof(Allocator, pools);
    memcpy((char *)copy + head, (const char *)a + head, tables - head);
    Py_INCREF(copy->settings);
    Py_INCREF(copy->on_lending);
    for (int p = 0; p < POOLS; p++) {
        copy->failed |= sorted_copy(&copy->pools[p], &a->pools[p]) < 0;
        copy->failed |= sorted_copy(&copy->holes[p], &a->holes[p]) < 0;
    }
    for (int t = 0; t < TABLES; t++)
        copy->failed |= table_copy(&copy->tables[t], &a->tables[t]) < 0;
    if (sound(copy) < 0) {
        Py_DECREF(copy);
        return NULL;
    }
    return (PyObject *)copy;
}

/* Numbers that may be NO_LIMIT: by where they are. */
static PyObject *
limit_get(Allocator *a, void *offset)
{
    i64 value = *(i64 *)((char *)a + (size_t)offset);
    return value == NO_LIMIT ? Py_NewRef(no_limit) : PyLong_FromLongLong(value);
}

static int
limit_set(Allocator *a, PyObject *value, void *offset)
{
    if (!value) {
        PyErr_SetString(PyExc_AttributeError, "cannot be deleted");
        return -1;
    }
    return number(value, (i64 *)((char *)a + (size_t)offset));
}

#define LIMIT(name) {#name, (getter)limit_get, (setter)limit_set, NULL, (void *)offsetof(Allocator, name)}
static PyGetSetDef Allocator_limits[] = {LIMIT(capacity), LIMIT(most_retries), LIMIT(most_lent_bytes), {NULL}};

#define COUNT(name) {#name, T_LONGLONG, offsetof(Allocator, name), 0, NULL}
static PyMemberDef Allocator_members[] = {
    {"settings", T_OBJECT_EX, offsetof(Allocator, settings), READONLY, NULL},
    {"on_lending", T_OBJECT_EX, offsetof(Allocator, on_lending), 0, NULL},
    {"halts", T_BOOL, offsetof(Allocator, halts), 0, NULL},
    COUNT(reserved_bytes),
    COUNT(allocated_bytes),
    COUNT(peak_reserved_bytes),
    COUNT(peak_allocated_bytes),
    COUNT(segments),
    COUNT(retries),
    COUNT(lent_bytes),
    {NULL},
};

#define METHOD(name, takes) {#name, (PyCFunction)Allocator_##name, takes, NULL}
static PyMethodDef Allocator_methods[] = {
    METHOD(allocate, METH_O),
    METHOD(free, METH_O),
    METHOD(size_of, METH_O),
    METHOD(growth_bytes, METH_O),
    METHOD(shortfall_bytes, METH_O),
    METHOD(free_blocks, METH_NOARGS),
    METHOD(largest_free_bytes, METH_NOARGS),
    METHOD(copied, METH_NOARGS),
    {NULL},
};

static PyTypeObject AllocatorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "overlap_sched.peak_memory.allocator._compiled.CompiledAllocator",
    .tp_basicsize = sizeof(Allocator),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "caching.CachingAllocator and expandable.ExpandableAllocator, compiled",
    .tp_new = Allocator_new,
    .tp_dealloc = (destructor)Allocator_dealloc,
    .tp_traverse = (traverseproc)Allocator_traverse,
    .tp_clear = (inquiry)Allocator_clear,
    .tp_methods = Allocator_methods,
    .tp_members = Allocator_members,
    .tp_getset = Allocator_limits,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "overlap_sched.peak_memory.allocator._compiled",
    .m_doc = "The caching allocator, compiled: see caching.py",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__compiled(void)
{
    PyObject *caching = PyImport_ImportModule("overlap_sched.peak_memory.allocator.caching"), *found;
    if (!caching)
        return NULL;
    full_device_error = PyObject_GetAttrString(caching, "FullDeviceError");
    out_of_device_memory_error = PyObject_GetAttrString(caching, "OutOfDeviceMemoryError");
    block_type = PyObject_GetAttrString(caching, "Block");
    no_limit = PyObject_GetAttrString(caching, "NO_LIMIT");
    Py_DECREF(caching);
    if (!full_device_error || !out_of_device_memory_error || !block_type || !no_limit)
        return NULL;
    if (PyType_Ready(&AllocatorType) < 0 || !(found = PyModule_Create(&module)))
        return NULL;
    if (PyModule_AddObjectRef(found, "CompiledAllocator", (PyObject *)&AllocatorType) < 0) {
        Py_DECREF(found);
        return NULL;
    }
    return found;
}
