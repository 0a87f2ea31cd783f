/* What an order asks of the allocator: events.py, compiled. */

#ifndef OVERLAP_SCHED_EVENTS_H
#define OVERLAP_SCHED_EVENTS_H

#include "serve.h"

static int
add_freed(PyObject *events, i64 storage)
{
    PyObject *event = PyLong_FromLongLong(~storage);
    int failed = event ? PyList_Append(events, event) : -1;
    Py_XDECREF(event);
    return failed;
}

/* One user less; the last one frees it. */
static int
add_used(PyObject *events, PyObject *object, PyObject *left)
{
    i64 storage, count;
    if (number(object, &storage) < 0)
        return -1;
    if (storage < 0 || storage >= PyList_GET_SIZE(left))
        return there_is_no("storage", storage);
    if (number(PyList_GET_ITEM(left, storage), &count) < 0)
        return -1;
    PyObject *less = PyLong_FromLongLong(count - 1);
    if (!less || PyList_SetItem(left, storage, less) < 0)
        return -1;
    return count == 1 ? add_freed(events, storage) : 0;
}

static int
is_step(PyObject *step)
{
    if (!PyTuple_Check(step) || PyTuple_GET_SIZE(step) != 3)
        return 0;
    for (Py_ssize_t k = 0; k < 3; k++)
        if (!PyTuple_Check(PyTuple_GET_ITEM(step, k)))
            return 0;
    return 1;
}

/* Of one node. */
static int
add_step(PyObject *events, PyObject *step, PyObject *left)
{
    if (!is_step(step)) {
        PyErr_SetString(PyExc_TypeError, "a step is three tuples of storages");
        return -1;
    }
    PyObject *makes = PyTuple_GET_ITEM(step, 0), *uses = PyTuple_GET_ITEM(step, 1), *drops = PyTuple_GET_ITEM(step, 2);
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(makes); k++)
        if (PyList_Append(events, PyTuple_GET_ITEM(makes, k)) < 0)
            return -1;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(uses); k++)
        if (add_used(events, PyTuple_GET_ITEM(uses, k), left) < 0)
            return -1;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(drops); k++) {
        i64 storage;
        if (number(PyTuple_GET_ITEM(drops, k), &storage) < 0 || add_freed(events, storage) < 0)
            return -1;
    }
    return 0;
}

static int
add_steps(PyObject *events, PyObject *steps, PyObject *nodes, PyObject *left)
{
    for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(nodes); at++) {
        i64 v;
        if (number(PySequence_Fast_GET_ITEM(nodes, at), &v) < 0)
            return -1;
        if (v < 0 || v >= PyList_GET_SIZE(steps))
            return there_is_no("node", v);
        if (add_step(events, PyList_GET_ITEM(steps, v), left) < 0)
            return -1;
    }
    return 0;
}

static PyObject *
events_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *steps, *nodes, *left;
    if (!PyArg_ParseTuple(args, "O!OO!", &PyList_Type, &steps, &nodes, &PyList_Type, &left))
        return NULL;
    nodes = PySequence_Fast(nodes, "nodes are a sequence");
    PyObject *events = nodes ? PyList_New(0) : NULL;
    if (events && add_steps(events, steps, nodes, left) < 0)
        Py_CLEAR(events);
    Py_XDECREF(nodes);
    return events;
}

#endif
