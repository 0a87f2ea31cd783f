/* Segments from cudaMalloc: caching.py. */

#ifndef OVERLAP_SCHED_SEGMENTS_H
#define OVERLAP_SCHED_SEGMENTS_H

#include "allocator.h"

static int
new_segment(Allocator *a, i64 size, Block *block)
{
    i64 segment = growth(a, size);
    int pool = pool_of(size);
    if (a->reserved_bytes + segment > a->capacity)
        return 0;
    *block = (Block){a->next_address[pool], segment};
    a->next_address[pool] += segment + MIN_BLOCK; /* with a gap: blocks of two segments never join */
    a->failed |= table_put(&a->tables[SEGMENT_SIZES], block->address, segment) < 0;
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

#endif
