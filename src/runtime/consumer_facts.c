/* What a store remembers about a consumer between runs, as facts. Each consumer has its own.
 *
 * How its keys are made. If the key template, the fingerprint or the operation of a type changes, every old message
 * looks new and would run again; with another salt, the receivers of idempotency keys take it for new. So each is a
 * fact, and a change is refused until it is confirmed.
 *
 * Its pipeline file. If a file names a consumer that this store has never seen, and named another one before, the
 * consumer was renamed, and the new name would start with no history. A second consumer has a file of its own. A file
 * that is moved while its consumer is renamed cannot be distinguished from a second one.
 *
 * Whether its last run ended (store/worker.h). One that did not was killed, perhaps by a message. */
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "runtime/config.h"
#include "runtime/runtime.h"

#include "base/banned.h"

typedef struct checking {
    once_pipeline *pipeline;
    once_backend *store;
    once_keys_check how;
    once_arena arena;
    once_error *err;
    int rc;
} checking;

static int show(once_bytes text) { return text.len < 120 ? (int)text.len : 120; }

/* Refuses a fact that changed. `what` and `of` name it to the user, `effect` says what would happen. */
static int check_fact(checking *c, const char *kind, once_bytes consumer, once_bytes of, once_bytes now,
                      const char *what, const char *effect)
{
    assert(kind[0] && now.len > 0);
    char name[64];
    once_bytes was;
    once__fact_name(c->store, kind, consumer, of, name);
    int rc = c->store->ops->fact_get(c->store, name, &was, &c->arena, c->err);
    if (rc != ONCE_OK) return rc;
    if (once_bytes_equal(was, now)) return ONCE_OK;
    if (was.len && c->how != ONCE_KEYS_CONFIRM)
        return once_fail(c->err, ONCE_E_SCOPE,
                         "%.*s: %s '%.*s' was '%.*s' in this store and is '%.*s' now; %s; change it back, or confirm "
                         "with --confirm-scope-change",
                         show(c->pipeline->spec->file), c->pipeline->spec->file.data, what, show(of), of.data,
                         show(was), was.data, show(now), now.data, effect);
    return c->how == ONCE_KEYS_LOOK ? ONCE_OK : c->store->ops->fact_set(c->store, name, now, c->err);
}

static bool check_operation(void *user, once_bytes operation, once_bytes text)
{
    assert(operation.len > 0 && text.len > 0);
    checking *c = user;
    c->rc = check_fact(c, "scope", c->pipeline->spec->consumer, operation, text, "the key of operation",
                       "settled messages would run again");
    return c->rc == ONCE_OK;
}

/* --- the salt of idempotency keys --- */

/* Messages that may have had their effect under an idempotency key of the old salt. Those with old_key keep theirs. */
typedef struct given_keys {
    uint64_t unknown, claimed, waiting, dead;
} given_keys;

static bool count_given(void *user, const once_entry *entry)
{
    given_keys *n = user;
    if (entry->old_key) return true;
    const bool maybe = entry->maybe_done || entry->unreported;
    n->unknown += entry->state == ONCE_STATE_UNKNOWN;
    n->claimed += entry->state == ONCE_STATE_CLAIMED;
    n->waiting += entry->state == ONCE_STATE_WAITING && maybe;
    n->dead += entry->state == ONCE_STATE_DEAD && maybe;
    return true;
}

static int find_given(checking *c, given_keys *out)
{
    static const once_state states[] = {ONCE_STATE_UNKNOWN, ONCE_STATE_CLAIMED, ONCE_STATE_WAITING, ONCE_STATE_DEAD};
    int rc = ONCE_OK;
    *out = (given_keys){0};
    for (size_t i = 0; rc == ONCE_OK && i < sizeof states / sizeof *states; i++)
        rc = c->store->ops->list(c->store, c->pipeline->spec->consumer, states[i], count_given, out, c->err);
    return rc;
}

/* A lookup with the new key would find nothing, and the effect would happen again. */
static int refuse_salt(checking *c, const char *what, const given_keys *given)
{
    assert(c->how != ONCE_KEYS_CONFIRM || given->unknown + given->claimed + given->waiting > 0);
    const once_bytes file = c->pipeline->spec->file;
    if (given->unknown + given->claimed + given->waiting)
        return once_fail(
            c->err, ONCE_E_SCOPE,
            "%.*s: 'idempotency_salt' changed in this store: %s; %llu unknown, %llu claimed and %llu waiting messages "
            "may have had their effect under their old idempotency keys, and lookups would use new ones; restore the "
            "old salt, finish them ('once run', 'once resolve'), then change it",
            show(file), file.data, what, (unsigned long long)given->unknown, (unsigned long long)given->claimed,
            (unsigned long long)given->waiting);
    char letters[160] = "";
    if (given->dead)
        snprintf(letters, sizeof letters,
                 " (%llu dead letter%s may also have had an effect: discard or replay them first)",
                 (unsigned long long)given->dead, given->dead == 1 ? "" : "s");
    return once_fail(
        c->err, ONCE_E_SCOPE,
        "%.*s: 'idempotency_salt' changed in this store: %s; every idempotency key would change, and the other side "
        "would treat retries as new requests%s; change it back, or confirm with --confirm-scope-change",
        show(file), file.data, what, letters);
}

/* The fact is a digest of the salt under the store's secret. A store without the fact is older than salts: its messages
 * have none, and keep their keys. */
static int check_salt(checking *c)
{
    char name[64];
    once_bytes was;
    once_outward now;
    given_keys given;
    const once_spec *spec = c->pipeline->spec;
    const once_keying keying = once__keying_of(c->pipeline, c->store);
    once__fact_name(c->store, "salt", spec->consumer, (once_bytes){0}, name);
    once_salt_digest(&keying, now);
    const once_bytes is = {now, strlen(now)};
    int rc = c->store->ops->fact_get(c->store, name, &was, &c->arena, c->err);
    if (rc != ONCE_OK || once_bytes_equal(was, is)) return rc;
    if (was.len) {
        const char *what = once_bytes_equal(was, ONCE_BYTES("none")) ? "there was none before"
                           : keying.salt.len                         ? "it was another one before"
                                                                     : "there was one before, and now there is none";
        rc = find_given(c, &given);
        if (rc != ONCE_OK) return rc;
        if (c->how != ONCE_KEYS_CONFIRM || given.unknown + given.claimed + given.waiting)
            return refuse_salt(c, what, &given);
        if (given.dead)
            once_log(ONCE_LOG_WARN, "salt_changed",
                     "%llu dead letter%s may have had an effect under idempotency keys of the old salt; they are shown "
                     "and replayed with new keys",
                     (unsigned long long)given.dead, given.dead == 1 ? "" : "s");
    }
    return c->how == ONCE_KEYS_LOOK ? ONCE_OK : c->store->ops->fact_set(c->store, name, is, c->err);
}

int once__consumer_check_salt(once_pipeline *pipeline, once_backend *store, once_error *err)
{
    checking c = {.pipeline = pipeline, .store = store, .how = ONCE_KEYS_LOOK, .err = err};
    const int rc = check_salt(&c);
    once_arena_release(&c.arena);
    return rc;
}

/* --- the consumer, and the file that named it --- */

/* The names of the facts that record which consumer a pipeline file named last: by its path and, if that differs, by
 * its path without links. A path may lead through a link that every release sets anew, and a file may be reached in
 * several ways. The source is part of the name, because containers often use the same path; the host is not, because
 * containers get a new one each time. */
typedef struct file_facts {
    char names[2][64];
    size_t n;
} file_facts;

/* Removes ".", but keeps "..", which behind a link is not the folder above. */
static void absolute(const once_spec *spec, once_buf *out)
{
    const char *at = spec->file.data, *end = at + spec->file.len;
    char folder[PATH_MAX];
    if (spec->file.len && *at != '/' && getcwd(folder, sizeof folder)) once_buf_puts(out, folder);
    while (at < end) {
        const char *slash = memchr(at, '/', (size_t)(end - at));
        const size_t len = (size_t)((slash ? slash : end) - at);
        if (len > 1 || (len == 1 && *at != '.')) {
            once_buf_puts(out, "/");
            once_buf_append(out, at, len);
        }
        at += len + (slash ? 1 : 0);
    }
}

static void add_file_fact(const checking *c, once_bytes path, file_facts *facts)
{
    assert(facts->n < 2);
    const once_bytes source = c->pipeline->spec->source.name;
    once_buf text;
    once_buf_init(&text, 3 * PATH_MAX);
    once_buf_append(&text, source.data, source.len);
    once_buf_append(&text, "", 1);
    once_buf_append(&text, path.data, path.len);
    char *name = facts->names[facts->n];
    once__fact_name(c->store, "file", (once_bytes){0}, once_buf_bytes(&text), name);
    if (facts->n == 0 || strcmp(name, facts->names[0]) != 0) facts->n++;
    once_buf_release(&text);
}

static void facts_of_file(const checking *c, file_facts *out)
{
    once_buf path;
    *out = (file_facts){0};
    once_buf_init(&path, 2 * PATH_MAX);
    absolute(c->pipeline->spec, &path);
    add_file_fact(c, once_buf_bytes(&path), out);
    once_buf_append(&path, "", 1);
    char *real = path.failed ? NULL : realpath(path.data, NULL);
    if (real) add_file_fact(c, (once_bytes){real, strlen(real)}, out);
    free(real);
    once_buf_release(&path);
}

static int forget(once_backend *store, const char *name, once_error *err)
{
    assert(name[0]);
    return store->ops->fact_set(store, name, (once_bytes){0}, err);
}

static bool is_one_of(const file_facts *facts, const char *name)
{
    bool is = false;
    for (size_t i = 0; i < facts->n; i++) is |= strcmp(facts->names[i], name) == 0;
    return is;
}

/* Drops the facts of the file that this consumer was run from before, if that is another one and still names this
 * consumer. */
static int forget_other_file(checking *c, once_bytes kept, const file_facts *now)
{
    int rc = ONCE_OK;
    while (rc == ONCE_OK && kept.len) {
        char other[64];
        once_bytes whose;
        const char *space = memchr(kept.data, ' ', kept.len);
        const size_t len = space ? (size_t)(space - kept.data) : kept.len;
        if (len >= sizeof other) return ONCE_OK;
        memcpy(other, kept.data, len);
        other[len] = 0;
        kept = (once_bytes){kept.data + len + (space ? 1 : 0), kept.len - len - (space ? 1 : 0)};
        if (is_one_of(now, other)) continue;
        rc = c->store->ops->fact_get(c->store, other, &whose, &c->arena, c->err);
        if (rc == ONCE_OK && once_bytes_equal(whose, c->pipeline->spec->consumer)) rc = forget(c->store, other, c->err);
    }
    return rc;
}

/* Records the consumer, with the names of the facts of its file. */
static int keep_consumer(checking *c, const char *own, once_bytes kept, const file_facts *facts)
{
    assert(facts->n > 0 && c->how != ONCE_KEYS_LOOK);
    const once_spec *spec = c->pipeline->spec;
    char text[2 * 64];
    int rc = ONCE_OK;
    for (size_t i = 0; rc == ONCE_OK && i < facts->n; i++) {
        once_bytes named;
        rc = c->store->ops->fact_get(c->store, facts->names[i], &named, &c->arena, c->err);
        if (rc == ONCE_OK && !once_bytes_equal(named, spec->consumer))
            rc = c->store->ops->fact_set(c->store, facts->names[i], spec->consumer, c->err);
    }
    if (rc == ONCE_OK) rc = forget_other_file(c, kept, facts);
    const int len = snprintf(text, sizeof text, "%s%s%s", facts->names[0], facts->n > 1 ? " " : "",
                             facts->n > 1 ? facts->names[1] : "");
    const once_bytes now = {text, (size_t)len};
    return rc == ONCE_OK && !once_bytes_equal(kept, now) ? c->store->ops->fact_set(c->store, own, now, c->err) : rc;
}

static int refuse_consumer(const checking *c, const char *what, once_bytes was)
{
    assert(was.len > 0);
    const once_spec *spec = c->pipeline->spec;
    return once_fail(
        c->err, ONCE_E_SCOPE,
        "%.*s: the consumer of this %s was '%.*s' in this store and is '%.*s' now, which would start with no history; "
        "change it back, give a second consumer its own file, or confirm with --confirm-scope-change",
        show(spec->file), spec->file.data, what, show(was), was.data, show(spec->consumer), spec->consumer.data);
}

/* `old`: until version 5 the consumer was recorded under the source alone, so that a source had one. That record counts
 * until its consumer has run with a file, or another consumer is confirmed. */
static int check_consumer(checking *c)
{
    const once_spec *spec = c->pipeline->spec;
    const once_store_ops *ops = c->store->ops;
    char own[64], old[64];
    file_facts facts;
    once_bytes kept, before;
    facts_of_file(c, &facts);
    assert(facts.n > 0); /* a file has a path, if not one without links */
    once__fact_name(c->store, "consumer", spec->consumer, (once_bytes){0}, own);
    once__fact_name(c->store, "consumer", (once_bytes){0}, spec->source.name, old);
    int rc = ops->fact_get(c->store, own, &kept, &c->arena, c->err);
    if (rc == ONCE_OK) rc = ops->fact_get(c->store, old, &before, &c->arena, c->err);
    const bool asks = kept.len == 0 && c->how != ONCE_KEYS_CONFIRM;
    for (size_t i = 0; rc == ONCE_OK && asks && i < facts.n; i++) {
        once_bytes named;
        rc = ops->fact_get(c->store, facts.names[i], &named, &c->arena, c->err);
        if (rc == ONCE_OK && named.len && !once_bytes_equal(named, spec->consumer))
            return refuse_consumer(c, "file", named);
    }
    if (rc != ONCE_OK) return rc;
    if (asks && before.len && !once_bytes_equal(before, spec->consumer)) return refuse_consumer(c, "source", before);
    if (c->how == ONCE_KEYS_LOOK) return ONCE_OK;
    rc = keep_consumer(c, own, kept, &facts);
    const bool answered = once_bytes_equal(before, spec->consumer) || (kept.len == 0 && c->how == ONCE_KEYS_CONFIRM);
    return rc == ONCE_OK && before.len && answered ? forget(c->store, old, c->err) : rc;
}

int once__consumer_check_keys(once_pipeline *pipeline, once_backend *store, once_keys_check how, once_error *err)
{
    const once_spec *spec = pipeline->spec;
    checking c = {.pipeline = pipeline, .store = store, .how = how, .err = err};
    int rc = once_config_each_operation(spec, &c.arena, check_operation, &c, err);
    if (rc == ONCE_OK) rc = c.rc;
    for (size_t i = 0; rc == ONCE_OK && i < spec->n_handlers; i++) {
        const once_handler_spec *handler = &spec->handlers[i];
        const once_bytes type = handler->type.len ? handler->type : ONCE_BYTES("handler");
        rc = check_fact(&c, "operation", spec->consumer, type, handler->operation, "the operation of type",
                        "settled messages would run again");
    }
    if (rc == ONCE_OK) rc = check_salt(&c);
    if (rc == ONCE_OK) rc = check_consumer(&c);
    once_arena_release(&c.arena);
    return rc;
}

/* --- whether the last run ended --- */

/* Before workers had records (store/worker.h), a run left a mark and removed it when it ended. */
static int take_old_mark(once_pipeline *pipeline, once_backend *store, bool *found, once_error *err)
{
    char name[64];
    once_arena arena = {0};
    once_bytes mark;
    once__fact_name(store, "run", pipeline->spec->consumer, (once_bytes){0}, name);
    int rc = store->ops->fact_get(store, name, &mark, &arena, err);
    if (rc == ONCE_OK && mark.len) {
        *found = true;
        rc = forget(store, name, err);
    }
    once_arena_release(&arena);
    return rc;
}

int once__consumer_run_begins(once_pipeline *pipeline, once_backend *store, once_worker *worker, bool *unclean,
                              once_error *err)
{
    const int rc = take_old_mark(pipeline, store, unclean, err);
    return rc == ONCE_OK ? once_worker_begin(worker, store, unclean, err) : rc;
}
