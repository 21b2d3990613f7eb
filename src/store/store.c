/* The list of store drivers, opening a store by its URL, and the counters that all stores share. */
#include "store/store.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/module.h"

#include "base/banned.h"

static const once_store_driver drivers[] = {
    {"memory", "the reference; nothing is kept", .ops = &once__store_memory, .bits = ONCE_DRIVER_HERE | ONCE_DRIVER_NEW,
     .url = "memory:", .write = "memory for a try"},
    {"sqlite", "an SQLite file; the embedded default; SQL effects in the same file are atomic",
     .ops = &once__store_sqlite, .bits = ONCE_DRIVER_HERE | ONCE_DRIVER_FILE, .write = "sqlite:PATH"},
#ifdef ONCE_WITH_POSTGRES
    {"postgres", "a PostgreSQL schema; any number of workers; SQL effects in the same database are atomic",
     .module = "postgres", .bits = ONCE_DRIVER_ROLE, .write = "postgres://HOST/DATABASE", .alias = "postgresql",
     .password = "PGPASSWORD"},
#endif
#ifdef ONCE_WITH_REDIS
    {"redis", "many workers, short horizons; durable with appendfsync always, never across a failover",
     .module = "redis", .write = "redis://HOST"},
    {"rediss", "the same over TLS", .module = "redis", .place = "redis"},
#endif
};

/* Documented schemes that this build lacks: their error must not say "unknown". */
static const char *const elsewhere[] = {
    "ledger",   "dynamodb",
#ifndef ONCE_WITH_POSTGRES
    "postgres", "postgresql",
#endif
#ifndef ONCE_WITH_REDIS
    "redis",    "rediss",
#endif
};

enum { DRIVERS = sizeof drivers / sizeof *drivers, ELSEWHERE = sizeof elsewhere / sizeof *elsewhere };

/* First the stores meant for work, then those that keep nothing. */
const char *once__store_kinds(char out[ONCE_STORE_KINDS])
{
    size_t n = 0;
    for (unsigned new = 0; new <= ONCE_DRIVER_NEW; new += ONCE_DRIVER_NEW)
        for (size_t i = 0; i < DRIVERS; i++) {
            if (!drivers[i].write || (drivers[i].bits & ONCE_DRIVER_NEW) != new) continue;
            n += (size_t)snprintf(out + n, ONCE_STORE_KINDS - n, "%s%s",
                                  n == 0 ? ""
                                  : new  ? ", or "
                                         : ", ",
                                  drivers[i].write);
            assert(n < ONCE_STORE_KINDS);
        }
    return out;
}

const once_store_driver *once__store_drivers(size_t *n)
{
    *n = DRIVERS;
    return drivers;
}

static bool is_scheme(const char *name, const char *scheme, size_t len)
{
    return name && len > 0 && strlen(name) == len && memcmp(name, scheme, len) == 0;
}

const once_store_driver *once__store_find(const char *scheme, size_t len)
{
    for (size_t i = 0; i < DRIVERS; i++)
        if (is_scheme(drivers[i].scheme, scheme, len) || is_scheme(drivers[i].alias, scheme, len)) return &drivers[i];
    return NULL;
}

unsigned once__store_driver_bits(once_bytes url)
{
    size_t len = 0;
    while (len < url.len && url.data[len] != ':') len++;
    const once_store_driver *driver = once__store_find(url.data, len);
    return driver ? driver->bits : 0;
}

const char *once__store_scheme(size_t i)
{
    for (size_t k = 0; k < DRIVERS; k++) {
        if (i-- == 0) return drivers[k].scheme;
        if (drivers[k].alias && i-- == 0) return drivers[k].alias;
    }
    return i < ELSEWHERE ? elsewhere[i] : NULL;
}

int once__store_load(const once_store_driver *driver, const once_store_ops **out, once_error *err)
{
    assert(driver && (driver->ops || driver->module));
    const void *part = driver->ops;
    const int rc = part ? ONCE_OK : once_module_part_get(driver->module, "store", driver->scheme, &part, err);
    if (rc == ONCE_OK) *out = part;
    return rc;
}

int once__store_open(const char *url, const once_store_options *options, once_backend **out, once_error *err)
{
    assert(url && out);
    char kinds[ONCE_STORE_KINDS];
    const size_t len = strcspn(url, ":");
    if (url[len] != ':' && (strchr(url, '@') || strchr(url, '='))) /* a password may be in it */
        return once_fail(err, ONCE_E_USAGE, "the store has no scheme; write %s", once__store_kinds(kinds));
    if (url[len] != ':') return once_fail(err, ONCE_E_USAGE, "store '%s' has no scheme; write 'sqlite:%s'", url, url);
    const once_store_driver *driver = once__store_find(url, len);
    if (driver) {
        const once_store_ops *ops;
        const int rc = once__store_load(driver, &ops, err);
        return rc == ONCE_OK ? ops->open(url + len + 1, options, out, err) : rc;
    }
    for (size_t i = 0; i < ELSEWHERE; i++)
        if (is_scheme(elsewhere[i], url, len))
            return once_fail(err, ONCE_E_UNSUPPORTED, "stores of kind '%s:' are not in this build; write %s",
                             elsewhere[i], once__store_kinds(kinds));
    return once_fail(err, ONCE_E_USAGE, "unknown store '%.*s:'; write %s", len < 40 ? (int)len : 40, url,
                     once__store_kinds(kinds));
}

void once__store_sign(once_backend *store)
{
    assert(store->env);
    once_env_who(store->env, store->who);
    for (char *at = store->who; *at; at++)
        if ((unsigned char)*at <= ' ' || *at == 0x7f) *at = '_';
}

bool once__store_show(const char *url, once_buf *out)
{
    const char *host = strstr(url, "://");
    const char *at = host ? memrchr(host + 3, '@', strcspn(host + 3, "?")) : NULL;
    /* No '@' before the '?': the password may contain a '?'. If the '@' belongs to an option instead, more than the
     * password is hidden. */
    if (host && !at) at = strrchr(host + 3, '@');
    const char *colon = at ? memchr(host + 3, ':', (size_t)(at - host - 3)) : NULL;
    if (colon) {
        once_buf_append(out, url, (size_t)(colon - url));
        once_buf_puts(out, ":***");
        url = at;
    }
    for (const char *word; (word = strstr(url, "password=")); url = word + strcspn(word, "&")) { /* sslpassword, too */
        once_buf_append(out, url, (size_t)(word - url));
        once_buf_puts(out, "password=***");
    }
    return once_buf_puts(out, url);
}

void once__store_close(once_backend *store)
{
    if (!store) return;
    if (store->ops->rollback) store->ops->rollback(store);
    store->ops->close(store);
}

void once__store_id(const once_backend *store, char out[ONCE_STORE_ID])
{
    static const char what[] = "once store id";
    unsigned char digest[32];
    once_sha256_state state;
    once_sha256_begin(&state);
    once_sha256_add(&state, what, sizeof what);
    once_sha256_add(&state, &store->secret, sizeof store->secret);
    once_sha256_end(&state, digest);
    for (int i = 0; i < (ONCE_STORE_ID - 1) / 2; i++) (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

int once__store_forgot(once_error *err)
{
    return once_fail(
        err, ONCE_E_FORGOTTEN,
        "the store has lost commits that it had acknowledged: there was a failover to a replica that was behind, or a "
        "backup was restored. Messages of that time may be lost or run again; check them, then start the run again");
}

/* ---- counters, which are never dropped ---- */

static const char *counter_name(const char *what, once_bytes consumer, char out[ONCE_FACT_NAME])
{
    (void)snprintf(out, ONCE_FACT_NAME, "%s/%.*s", what, (int)consumer.len, consumer.data);
    return out;
}

static int counter_read(once_backend *store, const char *what, once_bytes consumer, once_arena *arena, int64_t *out,
                        once_error *err)
{
    assert(consumer.len > 0);
    char name[ONCE_FACT_NAME];
    once_bytes text;
    *out = 0;
    const int rc = store->ops->fact_get(store, counter_name(what, consumer, name), &text, arena, err);
    for (size_t i = 0; rc == ONCE_OK && i < text.len; i++) *out = *out * 10 + (text.data[i] - '0');
    return rc;
}

static int counter_add(once_backend *store, const char *what, once_bytes consumer, int64_t n, once_arena *scratch,
                       once_error *err)
{
    assert(n != 0); /* a fact that does not change need not be written */
    int64_t before;
    char name[ONCE_FACT_NAME], text[24];
    const int rc = counter_read(store, what, consumer, scratch, &before, err);
    if (rc != ONCE_OK) return rc;
    const int len = snprintf(text, sizeof text, "%" PRId64, before + n < 0 ? 0 : before + n);
    return store->ops->fact_set(store, counter_name(what, consumer, name), (once_bytes){text, (size_t)len}, err);
}

int once_repeats_read(once_backend *store, once_bytes consumer, once_arena *arena, int64_t *out, once_error *err)
{
    return counter_read(store, "repeats", consumer, arena, out, err);
}

int once_repeats_add(once_backend *store, once_bytes consumer, int64_t n, once_arena *scratch, once_error *err)
{
    return counter_add(store, "repeats", consumer, n, scratch, err);
}

int once_given_up_read(once_backend *store, once_bytes consumer, once_arena *arena, int64_t *out, once_error *err)
{
    return counter_read(store, "given_up", consumer, arena, out, err);
}

int once_given_up_add(once_backend *store, once_bytes consumer, int64_t n, once_arena *scratch, once_error *err)
{
    return counter_add(store, "given_up", consumer, n, scratch, err);
}
