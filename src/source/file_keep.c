/* What the store keeps for a file source from run to run: the files that it has read, because their numbers are part of
 * coordinates; with `cursor`, where it goes on, and which process moves the cursor.
 *
 * The facts, each under the path as it was written. Machines that share a store and each have a file of that path are
 * told apart by their consumers:
 *
 *   files    the files, as text (source/place.h), and those before them as far as there is room
 *   cursor   the places, in the same form
 *   holder   "process PID on HOST": which process has the cursor, for a message */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/no_memory.h"
#include "source/file.h"

#include "base/banned.h"

static bool has_cursor(const once_source *source) { return once_spec_keeps_cursor(source->spec); }

static int get(const once_source *source, const once_facts *facts, const char *kind, once_bytes *out, once_arena *arena,
               once_error *err)
{
    return facts->get(facts, kind, source->spec->source.name, out, arena, err);
}

static int set(const once_source *source, const once_facts *facts, const char *kind, once_bytes value, once_error *err)
{
    return facts->set(facts, kind, source->spec->source.name, value, err);
}

static int set_places(const once_source *source, const once_facts *facts, const char *kind, const once_places *places,
                      once_hash *hash, once_error *err)
{
    once_buf text;
    once_buf_init(&text, ONCE_PLACES_TEXT);
    once_places_write(places, &text);
    const int rc = text.failed ? once_no_memory(err, "for what is kept of '%.*s'", (int)source->spec->source.name.len,
                                                source->spec->source.name.data)
                               : set(source, facts, kind, once_buf_bytes(&text), err);
    if (hash) *hash = once_xxh128(0, text.data, text.len);
    once_buf_release(&text);
    return rc;
}

/* --- the start --- */

/* A name that an earlier holder left; the present one has not written its own yet. */
static bool has_ended(const char *name, const char *host)
{
    long pid = 0;
    int at = 0;
    return sscanf(name, "process %ld on %n", &pid, &at) == 1 && at && strcmp(name + at, host) == 0 && pid > 0 &&
           kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* The holder of the cursor writes its name after it has taken the lock, so the name may not be there yet. */
static int fail_held(const once_source *source, const once_facts *facts, const char *host, const once_error *why,
                     once_arena *arena, once_error *err)
{
    once_bytes owner;
    once_error ignored;
    char name[100] = "";
    if (get(source, facts, "holder", &owner, arena, &ignored) == ONCE_OK && owner.len < sizeof name) {
        if (owner.len) memcpy(name, owner.data, owner.len);
        name[owner.len] = '\0';
    }
    const bool known = *name && !has_ended(name, host);
    return once_fail(err, ONCE_E_BUSY, "%s%s%s%s; stop that one, or take 'cursor' out", why->text, known ? " (" : "",
                     known ? name : "", known ? ")" : "");
}

/* Before anything is read: a file that is rotated away before the first commit is looked for by the next run. Files of
 * the cursor that were not found stay in it until then. */
static int keep_beginning(const once_source *source, const once_facts *facts, once_bytes cursor, once_error *err)
{
    once_places places, before;
    once__file_places(source, &places);
    if (places.n == 0) return ONCE_OK;
    if (!once_places_read(cursor, &before)) before.n = 0;
    for (size_t i = 0; i < before.n; i++) {
        bool found = false;
        for (size_t k = 0; k < places.n; k++) found |= places.at[k].number == before.at[i].number;
        if (!found) return ONCE_OK;
    }
    return set_places(source, facts, "cursor", &places, NULL, err);
}

static int begin(once_source *source, const once_facts *facts, once_arena *arena, once_error *err)
{
    const bool cursor = has_cursor(source);
    const once_hash lock = facts->id(facts, "cursor", source->spec->source.name);
    once_kept_places kept = {.lock = cursor ? &lock : NULL};
    once_error why;
    char host[64] = "?", mine[100];
    gethostname(host, sizeof host - 1);
    int rc = get(source, facts, "files", &kept.files, arena, err);
    if (rc == ONCE_OK) once__file_keeping(source)->seen = once_xxh128(0, kept.files.data, kept.files.len);
    if (rc == ONCE_OK && cursor) rc = get(source, facts, "cursor", &kept.cursor, arena, err);
    if (rc != ONCE_OK) return rc;
    rc = once__file_start(source, &kept, &why);
    if (rc == ONCE_E_BUSY) return fail_held(source, facts, host, &why, arena, err);
    if (rc != ONCE_OK) return once_fail(err, rc, "%s", why.text);
    if (!cursor) return ONCE_OK;
    const int n = snprintf(mine, sizeof mine, "process %ld on %s", (long)getpid(), host);
    rc = set(source, facts, "holder", (once_bytes){mine, (size_t)n}, err);
    return rc == ONCE_OK ? keep_beginning(source, facts, kept.cursor, err) : rc;
}

int once__file_seek(once_source *source, uint32_t stream, const once_facts *facts, once_error *err)
{
    assert(stream == 0);
    if (!once__file_has_places(source)) return ONCE_OK;
    once_arena arena = {0};
    const int rc = begin(source, facts, &arena, err);
    once_arena_release(&arena);
    return rc;
}

/* --- with each transaction --- */

/* Another process that follows the same path counts the same files, or one of the two has missed a file. What the
 * store had before this transaction is certain; what we have set ourselves may still be rolled back, and is read
 * again. */
static int merge_files(once_source *source, const once_facts *facts, const once_origin *newest, once_arena *arena,
                       once_error *err)
{
    once_file_keeping *keeping = once__file_keeping(source);
    assert(newest->places.n > 0 && newest->version > keeping->version);
    once_bytes text;
    once_places stored, all = newest->places;
    const int rc = get(source, facts, "files", &text, arena, err);
    if (rc != ONCE_OK) return rc;
    const bool others =
        !has_cursor(source) && text.len && !once_hash_equal(once_xxh128(0, text.data, text.len), keeping->seen);
    const bool readable = text.len && once_places_read(text, &stored);
    const bool disagree = others && readable && !once_places_agree(&stored, &newest->places);
    if (disagree && once_spec_uses_coordinates(source->spec))
        return once_fail(
            err, ONCE_E_CORRUPT,
            "another process reads the same source and numbers its files otherwise; start again, with one process, "
            "or with another consumer for each machine that has a file of this path");
    if (readable) once_places_add_known(&all, &stored);
    const bool own = keeping->set && keeping->set_in == facts->transaction;
    if (disagree || (readable && once_places_same_files(&stored, &all))) { /* and others are not held up by it */
        *(own ? &keeping->set : &keeping->version) = newest->version;
        return ONCE_OK;
    }
    keeping->set = newest->version;
    keeping->set_in = facts->transaction;
    return set_places(source, facts, "files", &all, &keeping->seen, err);
}

/* Before, or with, the first message of a file its number is kept. */
static int keep_files(once_source *source, const once_facts *facts, once_item *const *items, size_t n, once_error *err)
{
    const once_file_keeping *keeping = once__file_keeping(source);
    const uint64_t known =
        keeping->set_in == facts->transaction && keeping->set > keeping->version ? keeping->set : keeping->version;
    const once_origin *newest = NULL;
    for (size_t i = 0; i < n; i++) {
        const once_resume *resume = items[i]->resume;
        if (resume && resume->origin->version > known && (!newest || resume->origin->version > newest->version))
            newest = resume->origin;
    }
    if (!newest) return ONCE_OK;
    once_arena arena = {0};
    const int rc = merge_files(source, facts, newest, &arena, err);
    once_arena_release(&arena);
    return rc;
}

int once__file_keep(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                    const once_item *const *last, size_t n_last, once_error *err)
{
    assert(n_last <= 1); /* it has one stream */
    assert(n_last == 0 || has_cursor(source));
    int rc = keep_files(source, facts, items, n, err);
    if (rc != ONCE_OK || n_last == 0 || !last[0]->resume) return rc;
    once_places places;
    once_places_behind(last[0], &places);
    return set_places(source, facts, "cursor", &places, NULL, err);
}
