/* Statuses and errors.
 *
 * Every function that can fail returns an int: ONCE_OK (0), or one of the statuses below, all of which are negative.
 * A status says what happened. Its class says what to do. Branch on the class: later versions may add statuses, and
 * each belongs to one of these classes.
 *
 *   class     what to do
 *   OK        nothing
 *   USAGE     fix the call, the pipeline file or the command line. Nothing was done
 *   MESSAGE   set this one message aside. The others are not affected
 *   RETRY     make the same call again after a pause
 *   FENCED    stop working on this message: the claim is no longer yours. Do not ack it, do not repeat its effect
 *   PAUSE     wait until an operator has acted (missing table, permission, full disk), then make the same call again
 *   FATAL     stop the process. Going on could do harm
 *
 * Guarantees
 *   - Values of statuses and classes never change.
 *   - The text of an error is one line and contains neither a secret nor a message body. It says what failed, then the
 *     subject in 'quotes', then "; " and what to do where that is known.
 *   - A function that returns ONCE_OK leaves the caller's once_error untouched.
 *
 * Ownership: the caller owns the once_error. It has a fixed size, holds no pointers, and needs no release. NULL is
 * accepted wherever a function takes one, and means that the text is not wanted. The texts that functions here return
 * are static.
 *
 * Thread rule: the functions here may be called from any thread. A once_error belongs to one thread at a time.
 *
 * Example
 *
 *     #include <stdio.h>
 *     #include <once/error.h>
 *
 *     static int charge(int cents, once_error *err)
 *     {
 *         if (cents <= 0) return once_fail(err, ONCE_E_MESSAGE, "cannot charge '%d' cents; send more than 0", cents);
 *         return ONCE_OK;
 *     }
 *
 *     int main(void)
 *     {
 *         once_error err;
 *         const int rc = charge(-5, &err);
 *         if (once_status_class(rc) == ONCE_CLASS_MESSAGE) printf("%s: %s\n", once_status_name(rc), err.text);
 *         return 0;
 *     }
 */
#ifndef ONCE_ERROR_H
#define ONCE_ERROR_H

#include <stdarg.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONCE_API __attribute__((visibility("default")))

/* What the caller should do about a status; the table above says more. */
typedef enum once_class {
    ONCE_CLASS_OK,      /* nothing */
    ONCE_CLASS_USAGE,   /* fix the call, the pipeline file or the command line; nothing was done */
    ONCE_CLASS_MESSAGE, /* set this one message aside */
    ONCE_CLASS_RETRY,   /* make the same call again after a pause */
    ONCE_CLASS_FENCED,  /* stop working on this message: the claim is no longer yours */
    ONCE_CLASS_PAUSE,   /* wait until an operator has acted, then make the same call again */
    ONCE_CLASS_FATAL    /* stop the process */
} once_class;

/* Every status: its name, its value, its class, and what once_status_text returns. */
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
    X(E_FENCED, -30, FENCED, "the claim is no longer ours")                                                            \
    X(E_SCHEMA, -40, PAUSE, "the database lacks something that a statement needs")                                     \
    X(E_DENIED, -41, PAUSE, "permission denied")                                                                       \
    X(E_FULL, -42, PAUSE, "no space left")                                                                             \
    X(E_READONLY, -43, PAUSE, "read-only")                                                                             \
    X(E_MISSING, -44, PAUSE, "something that is needed is missing")                                                    \
    X(E_PAUSED, -45, PAUSE, "a handler is paused")                                                                     \
    X(E_IO, -50, FATAL, "input/output error")                                                                          \
    X(E_CORRUPT, -51, FATAL, "damaged data")                                                                           \
    X(E_NOT_OURS, -52, FATAL, "the file belongs to another program")                                                   \
    X(E_NEWER, -53, FATAL, "written by a newer version")                                                               \
    X(E_BUG, -54, FATAL, "internal error")                                                                             \
    X(E_MOVED, -55, FATAL, "the file was moved or replaced")                                                           \
    X(E_FORGOTTEN, -56, FATAL, "the store lost what it had acknowledged")                                              \
    X(E_OTHER_STORE, -57, FATAL, "not the store that was used before")                                                 \
    X(E_COMMIT_UNKNOWN, -58, FATAL, "it is not known what was committed")

/* ONCE_OK, ONCE_E_USAGE... */
typedef enum once_status {
#define ONCE_STATUS_ENUM(name, value, class_, text) ONCE_##name = (value),
    ONCE_STATUS_MAP(ONCE_STATUS_ENUM)
#undef ONCE_STATUS_ENUM
} once_status;

#define ONCE_E_UNSURE ONCE_E_COMMIT_UNKNOWN /* its former name */

/* Where a failing function writes the detail. */
typedef struct once_error {
    int status;     /* the status that the failing function returned */
    char text[500]; /* one line without a newline at its end; cut if it would be longer */
} once_error;

/* The class of a status. ONCE_CLASS_FATAL for a number that is not in the map. */
ONCE_API once_class once_status_class(int status);

/* The name of a status without its prefix, "E_BUSY"; "?" for a number that is not in the map. */
ONCE_API const char *once_status_name(int status);

/* The text of a status, "not reachable"; "unknown status" for a number that is not in the map. */
ONCE_API const char *once_status_text(int status);

/* Writes `status` and the formatted text to `err`, unless that is NULL, and returns `status`: for
 * `return once_fail(err, ONCE_E_BUSY, "...")`. Control characters in the text become spaces. A failure is never
 * ONCE_OK: that status is replaced by ONCE_E_BUG. */
ONCE_API int once_fail(once_error *err, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
