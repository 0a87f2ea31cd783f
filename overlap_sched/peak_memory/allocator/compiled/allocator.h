/* The allocator and its free blocks: what caching.py and expandable.py have in common. Names and rules are theirs. */

#ifndef OVERLAP_SCHED_ALLOCATOR_H
#define OVERLAP_SCHED_ALLOCATOR_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "tables.h"

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

static PyObject *out_of_device_memory_error, *block_type, *no_limit;

enum { USED, STARTS, ENDS, SEGMENT_SIZES, UNMAPPED, UNMAPPED_ENDS, TABLES };
enum { LARGE, SMALL, POOLS };

typedef struct {
    PyObject_HEAD
    PyObject *settings;
    i64 capacity, most_retries, most_lent_bytes;
    long long reserved_bytes, allocated_bytes, peak_reserved_bytes, peak_allocated_bytes, segments, retries, lent_bytes;
    char halts;
    int expandable, picky, rounds_up;
    i64 max_split_size, max_rounding, large_segment_size, unsplit_size, least_large;
    i64 divisions[INTERVALS];
    i64 next_address[POOLS];
    Sorted pools[POOLS], holes[POOLS];
    Table tables[TABLES];
    int failed; /* there was no memory for a table: what is asked next ends in MemoryError */
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
    a->failed |= table_put(&a->tables[STARTS], address, size) < 0;
    a->failed |= table_put(&a->tables[ENDS], address + size, address) < 0;
    a->failed |= sorted_add(&a->pools[pool_at(address)], size, address) < 0;
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

#endif
