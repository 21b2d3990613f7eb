/* Facts of the store for a source, named by the consumer and a hash (once_store_facts). */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "runtime/runtime.h"

#include "base/banned.h"

once_hash once__fact_name(const once_backend *store, const char *kind, once_bytes consumer, once_bytes of, char out[64])
{
    assert(kind[0] && !strchr(kind, '/'));
    const once_scope scope = {.consumer = consumer, .operation = {kind, strlen(kind)}};
    const once_hash hash = once_key_id(store->secret, &scope, of);
    const int len =
        snprintf(out, 64, "%s/%016llx%016llx", kind, (unsigned long long)hash.a, (unsigned long long)hash.b);
    assert(len > 0 && len < 64);
    (void)len;
    return hash;
}

static once_hash name_of(const once_facts *facts, const char *kind, once_bytes name, char out[64])
{
    const once_store_facts *f = (const once_store_facts *)facts;
    return once__fact_name(f->store, kind, f->consumer, name, out);
}

static int get(const once_facts *facts, const char *kind, once_bytes name, once_bytes *out, once_arena *arena,
               once_error *err)
{
    once_backend *store = ((const once_store_facts *)facts)->store;
    char text[64];
    (void)name_of(facts, kind, name, text);
    return store->ops->fact_get(store, text, out, arena, err);
}

static int set(const once_facts *facts, const char *kind, once_bytes name, once_bytes value, once_error *err)
{
    once_backend *store = ((const once_store_facts *)facts)->store;
    char text[64];
    (void)name_of(facts, kind, name, text);
    return store->ops->fact_set(store, text, value, err);
}

static once_hash id(const once_facts *facts, const char *kind, once_bytes name)
{
    char text[64];
    return name_of(facts, kind, name, text);
}

void once__store_facts_init(once_store_facts *facts, once_backend *store, once_bytes consumer)
{
    assert(store && consumer.len > 0);
    *facts = (once_store_facts){.base = {.get = get, .set = set, .id = id}, .store = store, .consumer = consumer};
}
