#include "runtime/known.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "once/operate.h"

#include "base/banned.h"

/* --- where --- */

static bool folder(char *out, size_t size)
{
    const char *said = getenv("STATE_DIRECTORY"), *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (said && *said) n = snprintf(out, size, "%.*s", (int)strcspn(said, ":"), said);
    else if (state && *state == '/') n = snprintf(out, size, "%s/once", state);
    else if (home && *home == '/') n = snprintf(out, size, "%s/.local/state/once", home);
    return n > 0 && (size_t)n < size;
}

/* As it was said, from the root: without "." and doubled slashes, with the links that somebody means ("current"). */
static bool absolute(once_bytes path, char *out, size_t size)
{
    char *here = path.len && path.data[0] == '/' ? NULL : get_current_dir_name(); /* $PWD, when that is where we are */
    const bool relative = path.len == 0 || path.data[0] != '/';
    if (relative && !here) return false;
    const int n = snprintf(out, size, "%s%s%.*s", relative ? here : "", relative ? "/" : "", (int)path.len, path.data);
    free(here);
    if (n < 0 || (size_t)n >= size) return false;
    char *to = out;
    for (const char *from = out; *from;) {
        while (from[0] == '/' && (from[1] == '/' || (from[1] == '.' && from[2] == '/'))) from += from[1] == '/' ? 1 : 2;
        *to++ = *from++;
    }
    *to = 0;
    return true;
}

/* The options of a URL that say where a store is, and not how it is used. */
static const char *const places[] = {"dbname", "host",   "hostaddr", "name", "options",
                                     "port",   "schema", "service",  "user"};

static void add_places(const char *query, once_buf *out)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const size_t len = strlen(places[i]);
        for (const char *at = query; *at; at += strcspn(at, "&")) {
            at += *at == '?' || *at == '&';
            if (strncmp(at, places[i], len) != 0 || at[len] != '=') continue;
            once_buf_puts(out, "&");
            once_buf_append(out, at, strcspn(at, "&"));
        }
    }
}

/* Where the store is: the URL without password and options, a file from the root. With PostgreSQL the role may choose
 * the schema ("$user"). */
static bool place_of(const char *url, once_buf *out)
{
    const once_store_driver *driver = once__store_find(url, strcspn(url, ":"));
    assert(driver); /* the URL was read */
    char path[PATH_MAX];
    if (driver->bits & ONCE_DRIVER_FILE) {
        const char *rest = url + strcspn(url, ":") + 1;
        if (!absolute((once_bytes){rest, strlen(rest)}, path, sizeof path)) return false;
        return once_buf_printf(out, "%s:%s", driver->scheme, path);
    }
    const char *host = strstr(url, "://");
    if (!host) return once_buf_puts(out, url);
    host += 3;
    const size_t len = strcspn(host, "?");
    const char *at = memrchr(host, '@', len), *query = host + len;
    once_buf_printf(out, "%s://", driver->place ? driver->place : driver->scheme);
    if (at && driver->bits & ONCE_DRIVER_ROLE) {
        once_buf_append(out, host, strcspn(host, ":@"));
        once_buf_puts(out, "@");
    }
    if (at) host = at + 1;
    once_buf_append(out, host, (size_t)(query - host));
    add_places(query, out);
    return !out->failed;
}

static void name_by(once_known_by *by, once_bytes what, once_bytes consumer, once_buf *text)
{
    assert(consumer.len > 0);
    size_t n = 0;
    once_buf_clear(text);
    once_buf_append(text, what.data, what.len);
    once_buf_append(text, "", 1);
    once_buf_append(text, consumer.data, consumer.len);
    if (text->failed) return;
    for (size_t i = 0; i < consumer.len && n < 40; i++) {
        const unsigned char c = (unsigned char)consumer.data[i];
        by->name[n++] = (char)((c < 128 && isalnum(c)) || c == '-' || c == '_' ? c : '_');
    }
    (void)snprintf(by->name + n, sizeof by->name - n, "-%016llx.store",
                   (unsigned long long)once_xxh128(0, text->data, text->len).a);
}

static bool find_names(const once_pipeline *pipeline, once_known *out)
{
    const once_bytes consumer = pipeline->spec->consumer;
    char file[PATH_MAX], real[PATH_MAX];
    once_buf text, place;
    if (!absolute(pipeline->spec->file, file, sizeof file)) return false;
    once_buf_init(&text, (size_t)1 << 20);
    once_buf_init(&place, (size_t)1 << 20);
    name_by(&out->by[ONCE_KNOWN_BY_FILE], once_bytes_of(file), consumer, &text);
    bool fine = place_of(pipeline->store_url, &place);
    if (fine) name_by(&out->by[ONCE_KNOWN_BY_URL], once_buf_bytes(&place), consumer, &text);
    if (realpath(file, real) && strcmp(real, file) != 0)
        name_by(&out->by[ONCE_KNOWN_BY_LINK], once_bytes_of(real), consumer, &text);
    fine = fine && !text.failed;
    once_buf_release(&text);
    once_buf_release(&place);
    return fine;
}

/* --- reading --- */

#define ANOTHER " or another" /* behind the id: --new-store was said, and there was none to meet */

static bool is_id(const char *text) { return strspn(text, "0123456789abcdef") == ONCE_STORE_ID - 1; }

static int show(once_bytes text) { return text.len < 120 ? (int)text.len : 120; }

static void path_of(const once_known *known, const once_known_by *by, char out[PATH_MAX])
{
    (void)snprintf(out, PATH_MAX, "%s/%s", known->folder, by->name);
}

static void read_by(const once_known *known, once_known_by *by)
{
    assert(by->name[0] && known->folder[0]);
    char path[PATH_MAX], text[2000];
    path_of(known, by, path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        by->damaged = errno != ENOENT && errno != ENOTDIR; /* what may not be read may say anything */
        return;
    }
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *at = strncmp(text, "store ", 6) == 0 ? text : strstr(text, "\nstore ");
    if (at) at += *at == '\n' ? 7 : 6;
    by->damaged = !at || !is_id(at);
    if (by->damaged) return;
    memcpy(by->id, at, ONCE_STORE_ID - 1);
    by->any = strncmp(at + ONCE_STORE_ID - 1, ANOTHER, strlen(ANOTHER)) == 0;
}

int once__known_read(const once_pipeline *pipeline, once_known *out, once_error *err)
{
    const once_bytes said = pipeline->spec->store_id;
    *out = (once_known){0};
    if (once__store_driver_bits(once_bytes_of(pipeline->store_url)) & ONCE_DRIVER_NEW) return ONCE_OK;
    if (said.len) memcpy(out->said, said.data, ONCE_STORE_ID - 1); /* its form was checked when the file was read */
    if (said.len || !folder(out->folder, sizeof out->folder)) return ONCE_OK;
    if (!find_names(pipeline, out))
        return once_fail(
            err, ONCE_E_NOMEM,
            "out of memory, or a path is too long, for the files that remember the store of this pipeline");
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++)
        if (out->by[i].name[0]) read_by(out, &out->by[i]);
    return ONCE_OK;
}

/* The first that another store than this would contradict; NULL: none. `id` NULL: any store would. */
static const once_known_by *contradicts(const once_known *known, const char *id)
{
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++) {
        const once_known_by *by = &known->by[i];
        if (!by->any && (by->damaged || (by->id[0] && !(id && strcmp(by->id, id) == 0)))) return by;
    }
    return NULL;
}

bool once__known_requires(const once_known *known) { return known->said[0] || contradicts(known, NULL); }

void once__known_allow(once_known *known)
{
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++) known->by[i].any = true;
}

/* What the store that is there replaces: its id, "one that is not known" when that was damaged, or NULL: it replaces
 * none. */
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

/* What takes the store that is there, in this state folder: a unit has another one than a shell, and perhaps another
 * working folder. */
static void put_command(const once_pipeline *pipeline, const once_known *known, once_buf *out)
{
    const char *state = getenv("STATE_DIRECTORY");
    char file[PATH_MAX], here[PATH_MAX];
    const bool unit = state && *state && absolute(pipeline->spec->file, file, sizeof file);
    const bool relative = once__store_driver_bits(once_bytes_of(pipeline->store_url)) & ONCE_DRIVER_FILE &&
                          pipeline->store_url[strcspn(pipeline->store_url, ":") + 1] != '/';
    if (unit && relative && absolute(ONCE_BYTES("."), here, sizeof here)) {
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
    const once_spec *spec = pipeline->spec;
    const int shown = show(spec->file);
    char path[PATH_MAX];
    once_buf command;
    if (known->said[0])
        return once_fail(err, ONCE_E_OTHER_STORE,
                         "%.*s:%d: %s; 'store_id' names store %s: every message would be new here and take effect "
                         "again; bring that store back, or remove 'store_id'",
                         shown, spec->file.data, spec->store_line, what, known->said);
    if (!by->name[0]) /* there is no folder */
        return once_fail(err, ONCE_E_OTHER_STORE,
                         "%.*s:%d: %s; this run used store %s: every message would be new here and take effect again; "
                         "bring that store back",
                         shown, spec->file.data, spec->store_line, what, by->id);
    path_of(known, by, path);
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

/* With what is to be seen there, the end of it where it is long, because the command that follows must have room. Not
 * with what it says to do: that is advice for a place that never had a store. */
int once__known_missing(const once_pipeline *pipeline, const once_known *known, const once_error *why, once_error *err)
{
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
    if (known->said[0] ? strcmp(id, known->said) == 0 : !by) return ONCE_OK;
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
        return once_fail(err, rc, "%.*s:%d: %s", show(pipeline->spec->file), pipeline->spec->file.data,
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

/* --- keeping --- */

static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        const bool made = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!made) return false;
    }
    return true;
}

/* A file of its own in the folder. What root writes belongs to whom the folder does, so that a unit can read it. */
static int make_beside(const char *folder, const char *path, char out[PATH_MAX])
{
    struct stat owner;
    if (snprintf(out, PATH_MAX, "%s.XXXXXX", path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int fd = mkostemp(out, O_CLOEXEC);
    if (fd < 0 || geteuid() != 0 || stat(folder, &owner) != 0 || owner.st_uid == 0 ||
        fchown(fd, owner.st_uid, owner.st_gid) == 0)
        return fd;
    const int no = errno;
    close(fd);
    unlink(out);
    errno = no;
    return -1;
}

static bool sync_folder(const char *folder)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    const bool synced = fsync(fd) == 0 || errno == EINVAL;
    close(fd);
    return synced;
}

static bool write_whole(const char *folder, const char *path, const once_buf *text)
{
    char beside[PATH_MAX];
    const int fd = make_beside(folder, path, beside);
    if (fd < 0) return false;
    const bool written = write(fd, text->data, text->len) == (ssize_t)text->len && fsync(fd) == 0;
    const bool closed = close(fd) == 0;
    if (written && closed && rename(beside, path) == 0) return sync_folder(folder);
    const int no = errno;
    unlink(beside);
    errno = no;
    return false;
}

static bool say_no_folder(char *why, size_t size)
{
    (void)snprintf(why, size,
                   "there is no folder in which to remember the store ($STATE_DIRECTORY, $XDG_STATE_HOME or $HOME)");
    return false;
}

static bool say_why(const once_known *known, char *why, size_t size)
{
    (void)snprintf(why, size, "the store cannot be remembered in folder '%.200s': %s", known->folder,
                   once_errno_text(errno));
    return false;
}

static bool write_by(const once_pipeline *pipeline, const once_known *known, const once_known_by *by, const char *id,
                     const char *mark)
{
    assert(known->folder[0]);
    char path[PATH_MAX];
    once_buf text;
    path_of(known, by, path);
    once_buf_init(&text, 8000);
    once_buf_printf(
        &text,
        "# The store that this pipeline uses. 'once run' refuses another one unless '--new-store' is given.\n"
        "store %s%s\n"
        "url ",
        id, mark);
    once__store_show(pipeline->store_url, &text);
    once_buf_printf(&text, "\nconsumer %.*s\nfile %.*s\n", show(pipeline->spec->consumer),
                    pipeline->spec->consumer.data, show(pipeline->spec->file), pipeline->spec->file.data);
    errno = ENOMEM;
    const bool kept = !text.failed && make_folders(path) && write_whole(known->folder, path, &text);
    once_buf_release(&text);
    return kept;
}

bool once__known_keep(const once_pipeline *pipeline, const once_known *known, const once_backend *store, char *why,
                      size_t size)
{
    assert(once__store_lasts(store));
    char id[ONCE_STORE_ID];
    once__store_id(store, id);
    if (known->said[0]) return true;
    if (!known->folder[0]) return say_no_folder(why, size);
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++) {
        const once_known_by *by = &known->by[i];
        const bool there = by->damaged || by->id[0];
        if (!by->name[0] || (i == ONCE_KNOWN_BY_LINK && !there)) continue;
        if (!by->any && strcmp(by->id, id) == 0) continue;
        if (!write_by(pipeline, known, by, id, "")) return say_why(known, why, size);
    }
    return true;
}

bool once__known_try(const once_known *known, char *why, size_t size)
{
    char path[PATH_MAX], beside[PATH_MAX];
    if (known->said[0]) return true;
    if (!known->folder[0]) return say_no_folder(why, size);
    path_of(known, &known->by[0], path);
    const int fd = make_folders(path) ? make_beside(known->folder, path, beside) : -1;
    if (fd < 0) return say_why(known, why, size);
    close(fd);
    unlink(beside);
    return true;
}

/* --- taking another one --- */

/* There is none that could be taken: the next one that a run makes or meets is. */
static bool keep_open(const once_pipeline *pipeline, const once_known *known, char *why, size_t size)
{
    for (size_t i = 0; i < ONCE_KNOWN_WAYS; i++) {
        const once_known_by *by = &known->by[i];
        const bool whole = by->id[0] && !by->damaged;
        if (!by->id[0] && !by->damaged) continue;
        if (!write_by(pipeline, known, by, whole ? by->id : "0000000000000000", ANOTHER))
            return say_why(known, why, size);
    }
    return true;
}

int once__known_audit(const once_pipeline *pipeline, const once_known *known, once_backend *store, once_error *err)
{
    const char *before = known->said[0] ? NULL : replaced(known, store);
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
    if (known.said[0])
        return once_fail(err, ONCE_E_USAGE, "'%.*s' has 'store_id'; change it there", show(pipeline->spec->file),
                         pipeline->spec->file.data);
    once__known_allow(&known);
    rc = open_there(pipeline, &known, &store, err);
    const bool none = rc == ONCE_E_NO_STORE;
    if (rc == ONCE_OK) rc = once__known_audit(pipeline, &known, store, err);
    bool kept = true;
    if (rc == ONCE_OK && once__store_lasts(store)) kept = once__known_keep(pipeline, &known, store, why, sizeof why);
    if (none) {
        kept = known.folder[0] ? keep_open(pipeline, &known, why, sizeof why) : say_no_folder(why, sizeof why);
        rc = ONCE_OK;
    }
    if (store) once__store_close(store);
    *ret_there = !none;
    return kept || rc != ONCE_OK ? rc : once_fail(err, ONCE_E_IO, "%s", why);
}
