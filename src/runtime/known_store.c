/* Compares the store that is there with the one that this pipeline used before, and refuses another one
 * (known_store.h). */
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "once/operate.h"
#include "runtime/known_store.h"
#include "runtime/operate.h"

#include "base/banned.h"

/* --- comparing --- */

/* The first file that contradicts a store with this id; NULL: none. `id` NULL: the first that names any store. */
static const once_known_by *contradicts(const once_known *known, const char *id)
{
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++) {
        const once_known_by *by = &known->by[i];
        if (!by->accepts_any && (by->damaged || (by->id[0] && !(id && strcmp(by->id, id) == 0)))) return by;
    }
    return NULL;
}

bool once__known_requires(const once_known *known) { return known->pinned[0] || contradicts(known, NULL); }

void once__known_allow(once_known *known)
{
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++) known->by[i].accepts_any = true;
}

/* The id of the store that this one replaces, "an unknown one" if its file is damaged, or NULL: it replaces none. */
static const char *replaced(const once_known *known, const once_backend *store)
{
    char id[ONCE_STORE_ID];
    bool damaged = false;
    once__store_id(store, id);
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++) {
        if (known->by[i].id[0] && strcmp(known->by[i].id, id) != 0) return known->by[i].id;
        damaged = damaged || known->by[i].damaged;
    }
    return damaged ? "an unknown one" : NULL;
}

/* --- refusing --- */

/* For a shell. */
static void put_word(once_buf *out, const char *word)
{
    const bool plain =
        *word && word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%,")] == 0;
    if (plain) {
        once_buf_puts(out, word);
        return;
    }
    once_buf_puts(out, "'");
    for (; *word; word++) {
        if (*word == '\'') once_buf_puts(out, "'\\''");
        else once_buf_append(out, word, 1);
    }
    once_buf_puts(out, "'");
}

/* The command that accepts the store that is there, for the same state folder: a systemd unit has another one than a
 * shell, and perhaps another working folder. */
static void put_command(const once_pipeline *pipeline, const once_known *known, once_buf *out)
{
    assert(known->folder[0]);
    const char *state = getenv("STATE_DIRECTORY");
    char file[PATH_MAX], here[PATH_MAX];
    const bool unit = state && *state && once__known_absolute(pipeline->spec->file, file, sizeof file);
    const bool relative = once__store_driver_bits(once_bytes_of(pipeline->store_url)) & ONCE_DRIVER_FILE &&
                          pipeline->store_url[strcspn(pipeline->store_url, ":") + 1] != '/';
    if (unit && relative && once__known_absolute(ONCE_BYTES("."), here, sizeof here)) {
        const size_t len = strlen(here);
        if (len > 2 && strcmp(here + len - 2, "/.") == 0) here[len - 2] = 0;
        once_buf_puts(out, "cd ");
        put_word(out, here);
        once_buf_puts(out, " && ");
    }
    if (unit) {
        once_buf_puts(out, "STATE_DIRECTORY=");
        put_word(out, known->folder);
        once_buf_puts(out, " ");
    } else {
        (void)snprintf(file, sizeof file, "%.*s", (int)pipeline->spec->file.len, pipeline->spec->file.data);
    }
    once_buf_puts(out, "once check --new-store ");
    put_word(out, file);
}

static int refuse(const once_pipeline *pipeline, const once_known *known, const once_known_by *by, const char *what,
                  once_error *err)
{
    assert(known->pinned[0] || (by && (by->id[0] || by->damaged)));
    const once_spec *spec = pipeline->spec;
    const int shown = once__shown_len(spec->file);
    char path[PATH_MAX];
    once_buf command;
    if (known->pinned[0])
        return once_fail(err, ONCE_E_OTHER_STORE,
                         "%.*s:%d: %s; 'store_id' names store %s: every message would be new here and take effect "
                         "again; bring that store back, or remove 'store_id'",
                         shown, spec->file.data, spec->store_line, what, known->pinned);
    if (!by->name[0]) /* nothing was remembered, because there is no folder */
        return once_fail(err, ONCE_E_OTHER_STORE,
                         "%.*s:%d: %s; this run used store %s: every message would be new here and take effect again; "
                         "bring that store back",
                         shown, spec->file.data, spec->store_line, what, by->id);
    once__known_path(known, by, path);
    once_buf_init(&command, (size_t)1 << 20);
    put_command(pipeline, known, &command);
    const char *how = command.failed ? "once check --new-store" : command.data;
    if (by->damaged)
        once_fail(err, ONCE_E_OTHER_STORE,
                  "%.*s:%d: %s; file '%.200s' is damaged or cannot be read, so this may not be the store used before; "
                  "to go on with what is here: %s",
                  shown, spec->file.data, spec->store_line, what, path, how);
    else
        once_fail(err, ONCE_E_OTHER_STORE,
                  "%.*s:%d: %s; '%.200s' names store %s: every message would be new here; bring that store back, or to "
                  "go on without it: %s",
                  shown, spec->file.data, spec->store_line, what, path, by->id, how);
    once_buf_release(&command);
    return ONCE_E_OTHER_STORE;
}

/* Quotes the error of opening it, up to its advice, which is meant for a place that never had a store. Only the end of
 * a long one, because the command that follows must have room. */
int once__known_missing(const once_pipeline *pipeline, const once_known *known, const once_error *why, once_error *err)
{
    assert(once__known_requires(known));
    enum { MOST = 100 };
    char what[200];
    const size_t seen = strcspn(why->text, ";"), from = seen > MOST ? seen - MOST : 0;
    (void)snprintf(what, sizeof what, "there is no store here: it was lost, emptied or moved (%s%.*s)",
                   from ? "..." : "", (int)(seen - from), why->text + from);
    return refuse(pipeline, known, contradicts(known, NULL), what, err);
}

int once__known_compare(const once_pipeline *pipeline, const once_known *known, const once_backend *store,
                        once_error *err)
{
    char id[ONCE_STORE_ID], what[100];
    once__store_id(store, id);
    const once_known_by *by = contradicts(known, id);
    if (known->pinned[0] ? strcmp(id, known->pinned) == 0 : !by) return ONCE_OK;
    (void)snprintf(what, sizeof what, by && by->damaged ? "this is store %s" : "this is another store, %s", id);
    return refuse(pipeline, known, by, what, err);
}

/* --- opening --- */

static int open_there(const once_pipeline *pipeline, const once_known *known, once_backend **out, once_error *err)
{
    const once_store_options options = {
        .size = sizeof options, .env = pipeline->env, .consumer = pipeline->spec->consumer};
    once_backend *store;
    once_error why;
    int rc = once__store_open(pipeline->store_url, &options, &store, &why);
    if ((rc == ONCE_E_NO_STORE || rc == ONCE_E_NOT_OURS) && once__known_requires(known))
        return once__known_missing(pipeline, known, &why, err);
    if (rc != ONCE_OK)
        return once_fail(err, rc, "%.*s:%d: %s", once__shown_len(pipeline->spec->file), pipeline->spec->file.data,
                         pipeline->spec->store_line, why.text);
    rc = once__known_compare(pipeline, known, store, err);
    if (rc == ONCE_OK) *out = store;
    else once__store_close(store);
    return rc;
}

int once__known_open_store(once_pipeline *pipeline, once_backend **out, once_error *err)
{
    once_known known;
    const int rc = once__known_read(pipeline, &known, err);
    return rc == ONCE_OK ? open_there(pipeline, &known, out, err) : rc;
}

int once__known_lost(const once_pipeline *pipeline, int rc, once_error *err)
{
    once_known known;
    once_backend *store;
    once_error why;
    if ((rc != ONCE_E_FORGOTTEN && rc != ONCE_E_OTHER_STORE) || !pipeline->store_id[0]) return rc;
    if (once__known_read(pipeline, &known, NULL) != ONCE_OK) return rc;
    if (!once__known_requires(&known)) { /* it could not be remembered */
        known = (once_known){0};
        memcpy(known.by[0].id, pipeline->store_id, sizeof known.by[0].id);
    }
    const int there = open_there(pipeline, &known, &store, &why);
    if (there == ONCE_OK) once__store_close(store);
    if (there != ONCE_E_OTHER_STORE) return rc;
    *err = why;
    return there;
}

/* --- taking another one --- */

int once__known_audit(const once_pipeline *pipeline, const once_known *known, once_backend *store, once_error *err)
{
    const char *before = known->pinned[0] ? NULL : replaced(known, store);
    char id[ONCE_STORE_ID], note[80];
    if (!before) return ONCE_OK;
    once__store_id(store, id);
    const int n = snprintf(note, sizeof note, "store %s instead of %s", id, before);
    const once_audit record = {.consumer = pipeline->spec->consumer,
                               .who = {store->who, strlen(store->who)},
                               .what = ONCE_BYTES("new-store"),
                               .note = {note, (size_t)n}};
    return store->ops->audit(store, &record, err);
}

int once_pipeline_take_store(once_pipeline *pipeline, bool *ret_there, once_error *err)
{
    if (!pipeline || !ret_there)
        return once_fail(err, ONCE_E_USAGE, "once_pipeline_take_store needs a pipeline and a place for the answer");
    once_known known;
    once_backend *store = NULL;
    char why[500];
    int rc = once__run_refuse_forked(pipeline->run, err);
    if (rc == ONCE_OK) rc = once__known_read(pipeline, &known, err);
    if (rc != ONCE_OK) return rc;
    if (known.pinned[0])
        return once_fail(err, ONCE_E_USAGE, "'%.*s' has 'store_id'; change it there",
                         once__shown_len(pipeline->spec->file), pipeline->spec->file.data);
    once__known_allow(&known);
    rc = open_there(pipeline, &known, &store, err);
    const bool none = rc == ONCE_E_NO_STORE;
    if (rc == ONCE_OK) rc = once__known_audit(pipeline, &known, store, err);
    bool kept = true;
    if (rc == ONCE_OK && once__store_lasts(store)) kept = once__known_keep(pipeline, &known, store, why, sizeof why);
    if (none) {
        kept = known.folder[0] ? once__known_keep_any(pipeline, &known, why, sizeof why)
                               : once__known_no_folder(why, sizeof why);
        rc = ONCE_OK;
    }
    if (store) once__store_close(store);
    *ret_there = !none;
    return kept || rc != ONCE_OK ? rc : once_fail(err, ONCE_E_IO, "%s", why);
}
