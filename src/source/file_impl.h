/* What the files of the file source share. Not for others. */
#ifndef ONCE_SOURCE_FILE_IMPL_H
#define ONCE_SOURCE_FILE_IMPL_H

#include <dirent.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "source/file.h"
#include "source/lines.h"

/* A file that is read, or will be. Offset and line of its place say how far it was delivered. */
typedef struct open_file {
    once_place place;
    int fd;
    once_lines lines; /* read, and not delivered yet */
    int64_t read;     /* bytes read */
    char tail[64];    /* the last of them, to notice that they were changed */
    size_t tail_len;
    bool at_eof;
    int64_t grown_ms; /* when it had more for the last time */
    int64_t ended_ms; /* when it was looked at for the last time, and had not */
} open_file;

typedef struct file_source {
    once_source base;
    char *path;
    bool is_stdin, regular;
    open_file files[ONCE_FILES_MAX]; /* oldest first; the last one has the path */
    size_t n;
    once_places known; /* files of this path from before, by their numbers */
    bool sought, locks;
    bool looks; /* for one message */
    once_file_keeping keeping;
    bool goes_on; /* it has a cursor */
    once_hash lock;
    uint64_t version;   /* of the set of files */
    uint64_t delivered; /* messages */
    int path_error;     /* what was logged about the path last */
    atomic_bool woken;
    _Atomic int64_t left;
    int failed; /* not ONCE_OK: the next fetch fails with it; `failure` has the text */
    once_error failure;
} file_source;

/* A batch while it is filled. */
typedef struct filling {
    once_batch *batch;
    once_resume *resumes; /* of its items; NULL: of a pipe, which cannot go on */
    size_t max;           /* items */
    size_t bytes;         /* of bodies so far */
} filling;

static inline int64_t once__file_now_ms(const file_source *f) { return once_env_mono_ns(f->base.env) / 1000000; }
static inline bool once__file_follows(const file_source *f) { return once_file_of(&f->base.spec->source)->follow; }
/* The one that has the path; NULL: none. */
static inline open_file *once__file_current(file_source *f) { return f->n ? &f->files[f->n - 1] : NULL; }

/* file_set.c: the files that are open */
int once__file_bad(const file_source *f, int status, const char *what, int error, once_error *err);
void once__file_drop(file_source *f, open_file *file);
void once__file_remove(file_source *f, size_t i);
open_file *once__file_add(file_source *f, int fd, const once_place *place);
bool once__file_has_room(file_source *f);
uint64_t once__file_next_number(const file_source *f);
int once__file_lock(file_source *f, int fd, once_error *err);

/* file_folder.c: the folder, as it was at one moment */
enum { FOLDER_TRIES = 100, FOLDER_PAUSE_MS = 10 };

typedef struct folder_name {
    char *name;
    bool counts; /* the folder is another one when this is another file */
    dev_t device;
    ino_t inode;
} folder_name;

typedef struct folder {
    DIR *dir;
    folder_name *names;
    size_t n, room;
} folder;

/* What rotation makes of the name of the file: "in.ndjson.1", "in.ndjson-20260102", "in-2.ndjson", "in.ndjson.old"; or
 * of such a one that was compressed. */
typedef enum rotation { ROTATION_NONE, ROTATION_READABLE, ROTATION_PACKED } rotation;

/* ONCE_E_ABORTED: a file was renamed meanwhile; then it is called again, with the names that there are by then. */
typedef int folder_look(const file_source *f, const folder *list, void *user, once_error *err);

const char *once__file_name_in(const char *path);
rotation once__file_kind_of_name(const char *name, const char *entry);
/* Reads the names that may belong to the source, and that of the file `inode`. ONCE_E_UNAVAILABLE: the folder cannot
 * be read reliably now. */
int once__file_look_through(const file_source *f, uint64_t inode, folder_look *look, void *user, once_error *err);
int once__file_renamed_too_often(const file_source *f, once_error *err); /* fails: files are renamed all the time */
/* A regular file of the list, which is not the one that the path names. `fd` -1: it is none, may not be read, or is to
 * be left alone: a store may lie in the folder, too. ONCE_E_ABORTED: it has another name now. */
int once__file_open_other(const file_source *f, const folder *list, size_t i, int *fd, struct stat *st,
                          once_error *err);

/* file_find.c: files in the folder that may be files of this source */
bool once__file_is(const once_place *place, uint64_t device, uint64_t inode, int fd);
int once__file_find(const file_source *f, const once_place *place, bool copies, int *fd, once_error *err);
int once__file_is_elsewhere(const file_source *f, const once_place *place, bool *is, once_error *err);

/* file_between.c: files that had the path and were never seen there */
typedef struct rotated {
    int fd;
    struct stat st;
} rotated;

typedef struct between {
    rotated at[ONCE_FILES_MAX];
    size_t n;
} between;

/* Files of the folder that had the path after the file `old` and before `now`: made, and written to, after that, and
 * never seen. */
int once__file_find_between(const file_source *f, int old, int now, between *found, once_error *err);
int once__file_take_between(file_source *f, between *list, once_error *err); /* as far as there is room */
void once__file_drop_between(between *list);
bool once__file_has_path(const file_source *f, int fd);

/* file_start.c: where it begins */
int once__file_open_first(file_source *f, once_error *err);
int once__file_place_of_new(const file_source *f, int fd, once_place *place, once_error *err);
int once__file_go_to(file_source *f, open_file *file, once_error *err);

/* file_rotate.c: what happens to the path and the files meanwhile */
int once__file_look_at_path(file_source *f, once_error *err);
bool once__file_is_changed(const open_file *file);
int once__file_was_truncated(file_source *f, size_t i, once_error *err);

/* file_read.c: bytes, lines, items */
bool once__file_is_blank(const file_source *f, const once_line *line); /* it is no message */
size_t once__file_write_number(uint64_t number, char out[20]);
int once__file_fill(file_source *f, filling *to, size_t *index, once_error *err);

#endif
