/* The store of the suite: facts in memory, with transactions. */
#include "source_conform.h"

#include <stdlib.h>

static src_fact *find(src_facts *facts, const char *kind, once_bytes name, bool make)
{
    for (size_t i = 0; i < facts->n; i++)
        if (strcmp(facts->list[i].kind, kind) == 0 && facts->list[i].name_len == name.len &&
            memcmp(facts->list[i].name, name.data, name.len) == 0)
            return &facts->list[i];
    if (!make) return NULL;
    assert_true(facts->n < SRC_FACTS && strlen(kind) < sizeof facts->list->kind && name.len < sizeof facts->list->name);
    src_fact *fact = &facts->list[facts->n++];
    *fact = (src_fact){.name_len = name.len};
    memcpy(fact->kind, kind, strlen(kind) + 1);
    memcpy(fact->name, name.data, name.len);
    return fact;
}

static src_facts *open_facts(const once_facts *facts) { return (src_facts *)facts; }

static int get(const once_facts *base, const char *kind, once_bytes name, once_bytes *out, once_arena *arena,
               once_error *err)
{
    src_facts *facts = open_facts(base);
    if (facts->fails) return once_fail(err, ONCE_E_UNAVAILABLE, "the store of the test is away");
    const src_fact *fact = find(facts, kind, name, false);
    assert_true(once_arena_copy(arena, fact ? (once_bytes){fact->value, fact->len} : ONCE_BYTES(""), out));
    return ONCE_OK;
}

static int set(const once_facts *base, const char *kind, once_bytes name, once_bytes value, once_error *err)
{
    src_facts *facts = open_facts(base);
    if (facts->fails) return once_fail(err, ONCE_E_UNAVAILABLE, "the store of the test is away");
    src_fact *fact = find(facts, kind, name, true);
    assert_true(value.len <= sizeof fact->value);
    memcpy(fact->value, value.data, value.len);
    fact->len = value.len;
    return ONCE_OK;
}

static once_hash id(const once_facts *base, const char *kind, once_bytes name)
{
    (void)base;
    return once_xxh128(strlen(kind), name.data, name.len);
}

void src_facts_init(src_facts *facts) { *facts = (src_facts){.base = {.get = get, .set = set, .id = id}}; }

void src_begin(source_fixture *f)
{
    assert_null(f->before);
    f->before = malloc(sizeof *f->before);
    assert_non_null(f->before);
    f->facts.base.transaction++;
    *f->before = f->facts;
}

void src_end(source_fixture *f, bool commits)
{
    assert_non_null(f->before);
    if (!commits) f->facts = *f->before;
    free(f->before);
    f->before = NULL;
}
