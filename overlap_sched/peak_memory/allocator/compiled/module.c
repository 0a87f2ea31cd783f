/* The caching allocator, compiled. Schedulers replay it thousands of times; in Python its tables took most of that.
 *
 *     tables.h        what it is made of
 *     allocator.h     the allocator, its free blocks
 *     segments.h      where it gets memory: by cudaMalloc,
 *     expandable.h    or page by page
 *     requests.h      what happens when a block is asked for or given back
 *     serve.h         an order's requests, in turn
 *     events.h        which those are
 *     module.c        what Python sees: CompiledAllocator, events_of
 *
 * tests/peak_memory/test_compiled.py holds every answer against those of caching.py, expandable.py and events.py.
 */

#include "events.h"
#include <structmember.h>

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

static void
Allocator_dealloc(Allocator *a)
{
    Py_XDECREF(a->settings);
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
    if (address != NO_BLOCK && free_block(a, address) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
Allocator_size_of(Allocator *a, PyObject *arg)
{
    i64 address;
    if (number(arg, &address) < 0)
        return NULL;
    i64 size = size_in_use(a, address);
    return size < 0 ? NULL : PyLong_FromLongLong(size);
}

static PyObject *
Allocator_serve(Allocator *a, PyObject *args)
{
    Storages storages;
    PyObject *events, *sizes;
    Py_ssize_t at = 0;
    if (!PyArg_ParseTuple(args, "OOO!O!|n", &events, &sizes, &PyList_Type, &storages.held, &PyList_Type,
                          &storages.lent_for, &at))
        return NULL;
    events = PySequence_Fast(events, "requests are a sequence");
    storages.sizes = events ? PySequence_Fast(sizes, "sizes are a sequence") : NULL;
    if (storages.sizes && at < 0)
        PyErr_SetString(PyExc_ValueError, "requests are counted from 0");
    else if (storages.sizes)
        at = serve(a, events, at, &storages);
    Py_XDECREF(events);
    Py_XDECREF(storages.sizes);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(at);
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
    METHOD(serve, METH_VARARGS),
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
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "caching.CachingAllocator and expandable.ExpandableAllocator, compiled",
    .tp_new = Allocator_new,
    .tp_dealloc = (destructor)Allocator_dealloc,
    .tp_methods = Allocator_methods,
    .tp_members = Allocator_members,
    .tp_getset = Allocator_limits,
};

static PyMethodDef functions[] = {{"events_of", events_of, METH_VARARGS, NULL}, {NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "overlap_sched.peak_memory.allocator._compiled",
    .m_doc = "The caching allocator, compiled: see caching.py",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__compiled(void)
{
    PyObject *caching = PyImport_ImportModule("overlap_sched.peak_memory.allocator.caching"), *found;
    if (!caching)
        return NULL;
    out_of_device_memory_error = PyObject_GetAttrString(caching, "OutOfDeviceMemoryError");
    block_type = PyObject_GetAttrString(caching, "Block");
    no_limit = PyObject_GetAttrString(caching, "NO_LIMIT");
    Py_DECREF(caching);
    if (!out_of_device_memory_error || !block_type || !no_limit)
        return NULL;
    if (PyType_Ready(&AllocatorType) < 0 || !(found = PyModule_Create(&module)))
        return NULL;
    if (PyModule_AddObjectRef(found, "CompiledAllocator", (PyObject *)&AllocatorType) < 0) {
        Py_DECREF(found);
        return NULL;
    }
    return found;
}
