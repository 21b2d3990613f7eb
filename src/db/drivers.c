/* The list of database drivers, and the way from a URL to one of them. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/module.h"
#include "db/db.h"
#include "db/sqlite/sqlite.h"

#include "base/banned.h"

typedef struct driver_row {
    const char *scheme, *alias; /* alias: may be NULL */
    const char *write;          /* an example of its URL, for error texts */
    const once_db_driver *here; /* linked in; NULL: `module` has it */
    const char *module;         /* NULL as well: this build does not have it */
    bool file;                  /* the scheme is followed by the path of a file */
} driver_row;

static const once_db_driver sqlite = {.open = once__sqlite_open_other};

static const driver_row drivers[] = {
    {"postgres", "postgresql", "postgres://...",
#ifdef ONCE_WITH_POSTGRES
     .module = "postgres"
#endif
    },
    {"sqlite", NULL, "sqlite:PATH", .here = &sqlite, .file = true},
};

enum { DRIVERS = sizeof drivers / sizeof *drivers, KINDS_SIZE = 100 };

static bool is_built(const driver_row *driver) { return driver->here || driver->module; }

/* "postgres://... or sqlite:PATH": the URLs that this build can open. */
static const char *kinds(char out[KINDS_SIZE])
{
    size_t n = 0;
    for (size_t i = 0; i < DRIVERS; i++) {
        if (!is_built(&drivers[i])) continue;
        n += (size_t)snprintf(out + n, KINDS_SIZE - n, "%s%s", n ? " or " : "", drivers[i].write);
        assert(n < KINDS_SIZE);
    }
    assert(n > 0);
    return out;
}

static bool is_scheme(const char *name, once_bytes scheme)
{
    return name && scheme.len > 0 && strlen(name) == scheme.len && memcmp(name, scheme.data, scheme.len) == 0;
}

static const driver_row *find(once_bytes scheme)
{
    for (size_t i = 0; i < DRIVERS; i++)
        if (is_scheme(drivers[i].scheme, scheme) || is_scheme(drivers[i].alias, scheme)) return &drivers[i];
    return NULL;
}

/* The driver of a URL that can be opened, and the part of the URL behind "scheme:". */
static int look_up(once_bytes url, const driver_row **out, once_bytes *rest, once_error *err)
{
    char text[KINDS_SIZE];
    const char *colon = url.len ? memchr(url.data, ':', url.len) : NULL;
    if (!colon) return once_fail(err, ONCE_E_CONFIG, "not the URL of a database; write %s", kinds(text));
    if (memchr(url.data, '\0', url.len))
        return once_fail(err, ONCE_E_CONFIG, "the URL of a database has a NUL byte; remove it");
    const once_bytes scheme = {url.data, (size_t)(colon - url.data)};
    const driver_row *driver = find(scheme);
    if (!driver)
        return once_fail(err, ONCE_E_CONFIG, "no database '%.*s:' is known; write %s",
                         scheme.len < 20 ? (int)scheme.len : 20, scheme.data, kinds(text));
    if (!is_built(driver))
        return once_fail(err, ONCE_E_UNSUPPORTED, "'%s:' is not in this build; use %s", driver->scheme, kinds(text));
    *rest = (once_bytes){colon + 1, url.len - scheme.len - 1};
    if (driver->file && (rest->len == 0 || rest->data[0] == ':')) /* sqlite::memory: is no file */
        return once_fail(err, ONCE_E_CONFIG, "'%s:' names no file; write %s", driver->scheme, driver->write);
    *out = driver;
    return ONCE_OK;
}

int once_db_check_url(once_bytes url, once_error *err)
{
    const driver_row *driver;
    once_bytes rest;
    return look_up(url, &driver, &rest, err);
}

int once_db_open(const char *url, const once_db_options *options, once_db **out, once_error *err)
{
    assert(url && options && options->stop && out);
    const driver_row *row;
    once_bytes rest;
    int rc = look_up((once_bytes){url, strlen(url)}, &row, &rest, err);
    if (rc != ONCE_OK) return rc;
    const void *part = row->here;
    if (!part) rc = once_module_part_get(row->module, "db", row->scheme, &part, err);
    return rc == ONCE_OK ? ((const once_db_driver *)part)->open(rest.data, options, out, err) : rc;
}
