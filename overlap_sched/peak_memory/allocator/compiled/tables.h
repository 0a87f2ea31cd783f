/* Numbers in tables that are copied as they lie in memory.
 *
 *     Sorted    pairs in one array, the smallest key first: the free blocks of a pool by (size, address), and what is
 *               not mapped by its address
 *     Table     from an address to a number, by hashing: where blocks begin and end, what is in use
 */

#ifndef OVERLAP_SCHED_TABLES_H
#define OVERLAP_SCHED_TABLES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;

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
} Table;

/* What may need more memory returns -1 where there is none; it is then as it was. */

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
    if (at < sorted->count) /* else there was no memory to add it */
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

static int
table_put(Table *table, i64 key, i64 value)
{
    size_t places = table->bits ? (size_t)1 << table->bits : 0;
    if (2 * (table->count + 1) > places) {
        Table larger = {NULL, table->count, table->bits ? table->bits + 1 : 5};
        size_t more = (size_t)1 << larger.bits;
        larger.pairs = malloc(more * sizeof(Pair));
        if (!larger.pairs)
            return -1;
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
    return 0;
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

#endif
