/* Segments that grow by pages: expandable.py. */

#ifndef OVERLAP_SCHED_EXPANDABLE_H
#define OVERLAP_SCHED_EXPANDABLE_H

#include "allocator.h"

static i64
page_of(const Allocator *a, int pool)
{
    return pool == SMALL ? SMALL_BUFFER : a->large_segment_size;
}

static void
add_hole(Allocator *a, i64 at, i64 size)
{
    a->failed |= table_put(&a->tables[UNMAPPED], at, size) < 0;
    a->failed |= table_put(&a->tables[UNMAPPED_ENDS], at + size, at) < 0;
    a->failed |= sorted_add(&a->holes[pool_at(at)], at, 0) < 0;
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
    if (a->failed)
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

#endif
