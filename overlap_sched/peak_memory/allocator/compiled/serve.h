/* An order's requests, in turn: what schedulers ask for most. */

#ifndef OVERLAP_SCHED_SERVE_H
#define OVERLAP_SCHED_SERVE_H

#include "requests.h"

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
there_is_no(const char *what, i64 at)
{
    PyErr_Format(PyExc_IndexError, "there is no %s %lld", what, (long long)at);
    return -1;
}

/* What they are about: per storage its size, and its block in what is held; for which of them something was lent. */
typedef struct {
    PyObject *sizes, *held, *lent_for;
} Storages;

static int
known(const Storages *storages, i64 storage)
{
    return storage < PySequence_Fast_GET_SIZE(storages->sizes) && storage < PyList_GET_SIZE(storages->held);
}

static int
hold(const Storages *storages, i64 storage, i64 block)
{
    PyObject *object = PyLong_FromLongLong(block);
    return object ? PyList_SetItem(storages->held, storage, object) : -1;
}

static int
allocate_for(Allocator *a, i64 storage, const Storages *storages)
{
    i64 size, block = NO_BLOCK;
    if (number(PySequence_Fast_GET_ITEM(storages->sizes, storage), &size) < 0)
        return -1;
    if (size && allocate(a, size, &block) < 0)
        return -1;
    return hold(storages, storage, block);
}

static int
free_of(Allocator *a, i64 storage, const Storages *storages)
{
    i64 block;
    if (number(PyList_GET_ITEM(storages->held, storage), &block) < 0)
        return -1;
    if (block == NO_BLOCK)
        return 0;
    return free_block(a, block) < 0 ? -1 : hold(storages, storage, NO_BLOCK);
}

static int
serve_one(Allocator *a, PyObject *event, const Storages *storages)
{
    i64 asked, lent_bytes = a->lent_bytes;
    if (number(event, &asked) < 0)
        return -1;
    i64 storage = asked < 0 ? ~asked : asked;
    if (!known(storages, storage))
        return there_is_no("storage", storage);
    if (asked < 0)
        return free_of(a, storage, storages);
    if (allocate_for(a, storage, storages) < 0)
        return -1;
    return a->lent_bytes > lent_bytes ? PyList_Append(storages->lent_for, event) : 0;
}

/* Where the first is that the capacity does not hold; -1 and an exception: something else is wrong. */
static Py_ssize_t
serve(Allocator *a, PyObject *events, Py_ssize_t at, const Storages *storages)
{
    for (; at < PySequence_Fast_GET_SIZE(events); at++)
        if (serve_one(a, PySequence_Fast_GET_ITEM(events, at), storages) < 0) {
            if (!PyErr_ExceptionMatches(out_of_device_memory_error))
                return -1;
            PyErr_Clear();
            return at;
        }
    return PySequence_Fast_GET_SIZE(events);
}

#endif
