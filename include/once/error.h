/* Statuses and errors.
 *
 * Every function that can fail returns an int: 0 (ONCE_OK) or one of the statuses below. Callers branch on the
 * class of a status, which says what to do, and not on the status itself, which says what happened.
 *
 * Detail travels in an optional `once_error` owned by the caller. Success leaves it untouched. It may be NULL.
 * Wording: lower case, what failed first, the subject in 'quotes', then "; " and what to do when we know it.
 *
 * Thread rule: statuses are plain integers; a once_error belongs to one thread at a time. */
#ifndef ONCE_ERROR_H
#define ONCE_ERROR_H

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONCE_API __attribute__((visibility("default")))

/* What the caller should do about a status. */
typedef enum once_class {
    ONCE_CLASS_OK,      /* nothing */
    ONCE_CLASS_USAGE,   /* fix the call, the config or the command line; nothing was done */
    ONCE_CLASS_MESSAGE, /* this one message is at fault; the others are not */
    ONCE_CLASS_RETRY,   /* a passing condition; the same call may succeed later */
    ONCE_CLASS_FENCED,  /* the claim is no longer ours; do not repeat, do not ack */
    ONCE_CLASS_PAUSE,   /* nothing will work until somebody acts (missing table, permission, disk full) */
    ONCE_CLASS_FATAL    /* stop; going on could do harm */
} once_class;

/*        name         value  class    text */
#define ONCE_STATUS_MAP(X)                                                                                             \
    X(OK, 0, OK, "ok")                                                                                                 \
    X(E_USAGE, -1, USAGE, "wrong use")                                                                                 \
    X(E_CONFIG, -2, USAGE, "mistake in the configuration")                                                             \
    X(E_UNSUPPORTED, -3, USAGE, "not in this build")                                                                   \
    X(E_SCOPE, -4, USAGE, "consumer, operation, key or fingerprint changed")                                           \
    X(E_NO_STORE, -5, USAGE, "there is no store yet")                                                                  \
    X(E_MESSAGE, -10, MESSAGE, "the message cannot be used")                                                           \
    X(E_BUSY, -20, RETRY, "busy")                                                                                      \
    X(E_UNAVAILABLE, -21, RETRY, "not reachable")                                                                      \
    X(E_NOMEM, -22, RETRY, "out of memory")                                                                            \
    X(E_ABORTED, -23, RETRY, "rolled back by the database")                                                            \
    X(E_FENCED, -30, FENCED, "the claim is somebody else's")                                                           \
    X(E_SCHEMA, -40, PAUSE, "the database lacks something that a statement needs")                                     \
    X(E_DENIED, -41, PAUSE, "permission denied")                                                                       \
    X(E_FULL, -42, PAUSE, "no space left")                                                                             \
    X(E_READONLY, -43, PAUSE, "read-only")                                                                             \
    X(E_MISSING, -44, PAUSE, "something that is needed is not there")                                                  \
    X(E_IO, -50, FATAL, "input/output error")                                                                          \
    X(E_CORRUPT, -51, FATAL, "damaged data")                                                                           \
    X(E_NOT_OURS, -52, FATAL, "the file belongs to another program")                                                   \
    X(E_NEWER, -53, FATAL, "written by a newer version")                                                               \
    X(E_BUG, -54, FATAL, "internal error")                                                                             \
    X(E_MOVED, -55, FATAL, "the file is not where it was")                                                             \
    X(E_FORGOTTEN, -56, FATAL, "the store forgot what it had acknowledged")                                            \
    X(E_OTHER_STORE, -57, FATAL, "not the store that was known")                                                       \
    X(E_COMMIT_UNKNOWN, -58, FATAL, "it is not known what was committed")

typedef enum once_status {
#define ONCE_STATUS_ENUM(name, value, class_, text) ONCE_##name = (value),
    ONCE_STATUS_MAP(ONCE_STATUS_ENUM)
#undef ONCE_STATUS_ENUM
} once_status;

#define ONCE_E_UNSURE ONCE_E_COMMIT_UNKNOWN /* its name before */

/* The caller's own; fixed size, no allocation, nothing to free. */
typedef struct once_error {
    int status;     /* ONCE_OK, or the status that the failing function returned */
    char text[500]; /* one line, no newline at the end; never contains a secret or a message body */
} once_error;

ONCE_API once_class once_status_class(int status);
ONCE_API const char *once_status_name(int status); /* "E_BUSY"; "?" for a number that is none of ours */
ONCE_API const char *once_status_text(int status);

/* Fills `err` (which may be NULL) and returns `status`, so that `return once_fail(err, ONCE_E_BUSY, "...")` reads well.
 */
ONCE_API int once_fail(once_error *err, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
