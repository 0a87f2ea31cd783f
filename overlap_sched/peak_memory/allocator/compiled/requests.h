/* What happens when a block is asked for, and when it is given back. */

#ifndef OVERLAP_SCHED_REQUESTS_H
#define OVERLAP_SCHED_REQUESTS_H

#include "expandable.h"
#include "segments.h"

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
    return 0;
}

/* A block from the device, after a retry where it has no more; it is in no pool. */
static int
grown(Allocator *a, i64 size, Block *block)
{
    int found = from_device(a, size, block);
    if (!found && a->halts) {
        PyErr_SetNone(out_of_device_memory_error);
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
    if (a->failed)
        PyErr_NoMemory();
    return a->failed ? -1 : 0;
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
        block.address = pool->pairs[at].value;
        block.size = take(a, block.address);
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
    a->failed |= table_put(&a->tables[USED], block.address, block.size) < 0;
    a->allocated_bytes += block.size;
    if (a->allocated_bytes > a->peak_allocated_bytes)
        a->peak_allocated_bytes = a->allocated_bytes;
    *address = block.address;
    return sound(a);
}

/* Of a block that is in use; -1 and an exception: there is none. */
static i64
size_in_use(const Allocator *a, i64 address)
{
    i64 size = address < 0 ? -1 : table_get(&a->tables[USED], address, -1);
    if (size < 0) {
        PyObject *key = PyLong_FromLongLong(address);
        if (key)
            PyErr_SetObject(PyExc_KeyError, key);
        Py_XDECREF(key);
    }
    return size;
}

static int
free_block(Allocator *a, i64 address)
{
    i64 size = size_in_use(a, address);
    if (size < 0)
        return -1;
    table_pop(&a->tables[USED], address, -1);
    a->allocated_bytes -= size;
    join(a, address, size);
    return sound(a);
}

#endif
