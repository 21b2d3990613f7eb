/* What a store remembers about a consumer between runs. Its facts are its own: consumers of one source do not see each other's.
 *
 * How its keys are made: when the key template, the fingerprint or the operation of a type changes, every old message looks new
 * and would run again; with another salt the other side takes it for new. So each is kept as a fact, and a change is refused until
 * it is confirmed.
 *
 * That it was here, and from which pipeline file: a file that names a consumer which was never here, and named another one before,
 * has renamed it, and the new name would start from nothing. A second consumer has a file of its own.
 *
 * Whether its last run ended: a mark is set when a run begins and removed when it ends. A mark that is found at the start means
 * that the last run was killed, perhaps by a message. */
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/config.h"
#include "runtime/runtime.h"

#include "base/banned.h"

/* Facts have short names; consumers and types may be long and binary. */
static once_hash fact_name(const once_store *store, const char *kind, once_bytes consumer, once_bytes of, char out[64])
{
    const once_scope scope = {.consumer = consumer, .operation = {kind, strlen(kind)}};
    const once_hash hash = once_key_id(store->secret, &scope, of);
    snprintf(out, 64, "%s/%016llx%016llx", kind, (unsigned long long)hash.a, (unsigned long long)hash.b);
    return hash;
}

typedef struct checking {
    once_pipeline *pipeline;
    once_store *store;
    once_scope_check how;
    once_arena arena;
    once_error *err;
    int rc;
} checking;

static bool equal(once_bytes a, once_bytes b) { return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0); }

static int show(once_bytes text) { return text.len < 120 ? (int)text.len : 120; }

/* The fact must be what it was, or new. `of` names it to the user. */
static int check_fact(checking *c, const char *kind, once_bytes consumer, once_bytes of, once_bytes now, const char *what,
                      const char *effect)
{
    char name[64];
    once_bytes was;
    fact_name(c->store, kind, consumer, of, name);
    int rc = c->store->ops->fact_get(c->store, name, &was, &c->arena, c->err);
    if (rc != ONCE_OK) return rc;
    if (equal(was, now)) return ONCE_OK;
    if (was.len && c->how != ONCE_SCOPE_CONFIRM)
        return once_fail(c->err, ONCE_E_SCOPE, "%.*s: %s '%.*s' was '%.*s' in this store and is '%.*s' now; %s; put it back, or confirm with --confirm-scope-change",
                         show(c->pipeline->spec->file), c->pipeline->spec->file.data, what, show(of), of.data, show(was), was.data, show(now), now.data, effect);
    return c->how == ONCE_SCOPE_LOOK ? ONCE_OK : c->store->ops->fact_set(c->store, name, now, c->err);
}

static bool check_operation(void *user, once_bytes operation, once_bytes text)
{
    checking *c = user;
    c->rc = check_fact(c, "scope", c->pipeline->spec->consumer, operation, text, "the key of operation", "messages that were settled would run again");
    return c->rc == ONCE_OK;
}

/* --- the salt of idempotency keys --- */

/* Kept as a digest under the secret of the store. Stores from before have no such fact: whatever ran there ran without, and keeps
 * its keys. */
static int check_salt(checking *c)
{
    char name[64];
    once_bytes was;
    once_outward now;
    const once_spec *spec = c->pipeline->spec;
    const once_keying keying = once__keying_of(c->pipeline, c->store);
    fact_name(c->store, "salt", spec->consumer, (once_bytes){0}, name);
    once_salt_digest(&keying, now);
    const once_bytes is = {now, strlen(now)};
    const int rc = c->store->ops->fact_get(c->store, name, &was, &c->arena, c->err);
    if (rc != ONCE_OK || equal(was, is)) return rc;
    if (was.len && c->how != ONCE_SCOPE_CONFIRM) {
        const char *what = equal(was, ONCE_BYTES("none")) ? "there was none before" : keying.salt.len ? "it was another one before" : "there was one before, and now there is none";
        return once_fail(c->err, ONCE_E_SCOPE, "%.*s: 'idempotency_salt' changed in this store: %s; every idempotency key would be another one, "
                         "and the other side would take what is tried again for something new; put it back, or confirm with --confirm-scope-change",
                         show(spec->file), spec->file.data, what);
    }
    return c->how == ONCE_SCOPE_LOOK ? ONCE_OK : c->store->ops->fact_set(c->store, name, is, c->err);
}

int once__memory_check_salt(once_pipeline *pipeline, once_store *store, once_error *err)
{
    checking c = {.pipeline = pipeline, .store = store, .how = ONCE_SCOPE_LOOK, .err = err};
    const int rc = check_salt(&c);
    once_arena_release(&c.arena);
    return rc;
}

/* --- the consumer, and the file that named it --- */

/* "host", NUL, and the path without links: two machines may have files of one name. False: there is no such file (any more). */
static bool pipeline_file(const once_spec *spec, char out[64 + PATH_MAX], size_t *len)
{
    char file[PATH_MAX];
    if (spec->file.len >= sizeof file) return false;
    memcpy(file, spec->file.data, spec->file.len);
    file[spec->file.len] = 0;
    char *path = realpath(file, NULL);
    if (!path) return false;
    memset(out, 0, 64);
    gethostname(out, 63);
    const size_t host = strlen(out) + 1, size = strlen(path);
    const bool fits = size < PATH_MAX;
    if (fits) memcpy(out + host, path, size);
    *len = host + size;
    free(path);
    return fits;
}

static int forget(once_store *store, const char *name, once_error *err) { return store->ops->fact_set(store, name, (once_bytes){0}, err); }

/* The fact of the file that it was run from before, when that is another one and still its own. */
static int forget_other_file(checking *c, once_bytes kept, const char *now, once_error *err)
{
    char other[64];
    once_bytes whose;
    if (kept.len == 0 || kept.len >= sizeof other) return ONCE_OK;
    memcpy(other, kept.data, kept.len);
    other[kept.len] = 0;
    if (strcmp(other, now) == 0) return ONCE_OK;
    const int rc = c->store->ops->fact_get(c->store, other, &whose, &c->arena, err);
    return rc == ONCE_OK && equal(whose, c->pipeline->spec->consumer) ? forget(c->store, other, err) : rc;
}

/* Until version 5 the consumer of a source was kept under the source alone, so that there could be one. */
static int forget_old_naming(checking *c, once_error *err)
{
    const once_spec *spec = c->pipeline->spec;
    char name[64];
    once_bytes whose;
    fact_name(c->store, "consumer", (once_bytes){0}, spec->source.path, name);
    const int rc = c->store->ops->fact_get(c->store, name, &whose, &c->arena, err);
    return rc == ONCE_OK && whose.len && equal(whose, spec->consumer) ? forget(c->store, name, err) : rc;
}

static int check_consumer(checking *c)
{
    const once_spec *spec = c->pipeline->spec;
    const once_store_ops *ops = c->store->ops;
    char text[64 + PATH_MAX], here[64], own[64];
    size_t len;
    once_bytes kept, named;
    if (!pipeline_file(spec, text, &len)) return ONCE_OK;
    fact_name(c->store, "consumer", spec->consumer, (once_bytes){0}, own); /* it was here; the name of its file's fact */
    fact_name(c->store, "file", (once_bytes){0}, (once_bytes){text, len}, here); /* whom the file named last */
    int rc = ops->fact_get(c->store, own, &kept, &c->arena, c->err);
    if (rc == ONCE_OK) rc = ops->fact_get(c->store, here, &named, &c->arena, c->err);
    if (rc != ONCE_OK) return rc;
    if (named.len && !equal(named, spec->consumer) && kept.len == 0 && c->how != ONCE_SCOPE_CONFIRM)
        return once_fail(c->err, ONCE_E_SCOPE, "%.*s: the consumer of this file was '%.*s' in this store and is '%.*s' now, which starts from nothing; "
                         "put it back, give a second consumer a file of its own, or confirm with --confirm-scope-change",
                         show(spec->file), spec->file.data, show(named), named.data, show(spec->consumer), spec->consumer.data);
    if (c->how == ONCE_SCOPE_LOOK) return ONCE_OK;
    if (!equal(named, spec->consumer)) rc = ops->fact_set(c->store, here, spec->consumer, c->err);
    if (rc == ONCE_OK) rc = forget_other_file(c, kept, here, c->err);
    if (rc == ONCE_OK && !equal(kept, (once_bytes){here, strlen(here)})) rc = ops->fact_set(c->store, own, (once_bytes){here, strlen(here)}, c->err);
    return rc == ONCE_OK ? forget_old_naming(c, c->err) : rc;
}

int once__memory_check_scope(once_pipeline *pipeline, once_store *store, once_scope_check how, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    checking c = {.pipeline = pipeline, .store = store, .how = how, .err = err};
    int rc = once_config_scope_each(spec, &c.arena, check_operation, &c, err);
    if (rc == ONCE_OK) rc = c.rc;
    for (size_t i = 0; rc == ONCE_OK && i < spec->n_handlers; i++) {
        const once_handler_spec *handler = &spec->handlers[i];
        const once_bytes type = handler->type.len ? handler->type : ONCE_BYTES("handler");
        rc = check_fact(&c, "operation", spec->consumer, type, handler->operation, "the operation of type", "messages that were settled would run again");
    }
    if (rc == ONCE_OK) rc = check_salt(&c);
    if (rc == ONCE_OK) rc = check_consumer(&c);
    once_arena_release(&c.arena);
    return rc;
}

/* --- the files of a source, and the cursor --- */

/* Machines, and folders, may each have a file of that path. */
static void files_name(const once_store *store, const once_spec *spec, char out[64])
{
    char text[64 + 2 * PATH_MAX] = "";
    gethostname(text, 63);
    size_t len = strlen(text) + 1;
    const once_bytes path = spec->source.path;
    if (path.len && path.data[0] != '/' && getcwd(text + len, PATH_MAX)) len += strlen(text + len) + 1;
    const size_t size = path.len < PATH_MAX ? path.len : PATH_MAX;
    memcpy(text + len, path.data, size);
    fact_name(store, "files", spec->consumer, (once_bytes){text, len + size}, out);
}

/* The kept texts of a source that has files, and the names of their facts. */
static int read_kept(once_pipeline *pipeline, once_store *store, once_kept_names *names, once_hash *lock, once_kept_places *kept, once_arena *arena, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    *lock = fact_name(store, "cursor", spec->consumer, spec->source.path, names->cursor);
    files_name(store, spec, names->files);
    *kept = (once_kept_places){.lock = spec->source.cursor ? lock : NULL};
    const int rc = store->ops->fact_get(store, names->files, &kept->files, arena, err);
    if (rc == ONCE_OK) names->files_seen = once_xxh128(0, kept->files.data, kept->files.len);
    return rc == ONCE_OK && kept->lock ? store->ops->fact_get(store, names->cursor, &kept->cursor, arena, err) : rc;
}

int once__memory_files(once_pipeline *pipeline, once_store *store, once_bytes *out, once_arena *arena, once_error *err)
{
    char name[64];
    files_name(store, pipeline->spec, name);
    return store->ops->fact_get(store, name, out, arena, err);
}

int once__memory_take_places(once_pipeline *pipeline, const once_parts *parts, once_kept_names *names, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    once_store *store = parts->store;
    once_arena arena = {0};
    once_bytes owner = {0};
    once_kept_places kept;
    once_hash lock;
    once_error why;
    char owner_name[64], host[64] = "?", mine[100];
    fact_name(store, "holder", spec->consumer, spec->source.path, owner_name);
    gethostname(host, sizeof host - 1);
    const int n = snprintf(mine, sizeof mine, "process %ld on %s", (long)getpid(), host);

    int rc = read_kept(pipeline, store, names, &lock, &kept, &arena, err);
    if (rc == ONCE_OK && kept.lock) rc = store->ops->fact_get(store, owner_name, &owner, &arena, err);
    if (rc == ONCE_OK) {
        rc = parts->source->ops->seek(parts->source, &kept, &why);
        if (rc == ONCE_E_BUSY) once_fail(err, rc, "%s (%.*s); stop that one, or take 'cursor' out", why.text, show(owner), owner.data);
        else if (rc != ONCE_OK) once_fail(err, rc, "%s", why.text);
    }
    if (rc == ONCE_OK && kept.lock) rc = store->ops->fact_set(store, owner_name, (once_bytes){mine, (size_t)n}, err);
    once_arena_release(&arena);
    return rc;
}

/* --- whether the last run ended --- */

int once__memory_run_begins(once_pipeline *pipeline, once_store *store, uint64_t run, bool *unclean, once_error *err)
{
    char name[64], mark[32];
    once_arena arena = {0};
    once_bytes was;
    fact_name(store, "run", pipeline->spec->consumer, (once_bytes){0}, name);
    int rc = store->ops->fact_get(store, name, &was, &arena, err);
    snprintf(mark, sizeof mark, "%016llx", (unsigned long long)run);
    const bool ours = rc == ONCE_OK && was.len == strlen(mark) && memcmp(was.data, mark, was.len) == 0; /* the reply was lost, and this is repeated */
    *unclean = rc == ONCE_OK && was.len > 0 && !ours;
    once_arena_release(&arena);
    if (rc != ONCE_OK) return rc;
    return store->ops->fact_set(store, name, (once_bytes){mark, strlen(mark)}, err);
}

int once__memory_run_ended(once_pipeline *pipeline, once_store *store, uint64_t run, once_error *err)
{
    char name[64], mark[32];
    once_arena arena = {0};
    once_bytes was;
    fact_name(store, "run", pipeline->spec->consumer, (once_bytes){0}, name);
    snprintf(mark, sizeof mark, "%016llx", (unsigned long long)run);
    int rc = store->ops->fact_get(store, name, &was, &arena, err);
    /* Another process may have begun since; its mark stays. */
    if (rc == ONCE_OK && was.len == strlen(mark) && memcmp(was.data, mark, was.len) == 0)
        rc = store->ops->fact_set(store, name, (once_bytes){0}, err);
    once_arena_release(&arena);
    return rc;
}
