/* libonce: every message takes effect once. This header includes all public headers.
 *
 *   once/handle.h    around a handler of your own: claim, call, settle; also inside your own transaction
 *   once/pipeline.h  run a pipeline file: source, store, handlers
 *   once/operate.h   look at a pipeline's store, replay dead letters, resolve unknowns
 *   once/store.h     a store, with claim, extend and settle as single calls
 *   once/error.h     statuses and errors;  once/types.h  bytes, scope, outcome, answer
 *   once/log.h       log lines;  once/version.h  what this build contains;  once/testing.h  failpoints for tests
 *
 * Guarantees: each header states its own, with the thread rule, who owns which memory, and the errors.
 *
 * Wrong calls: a pointer may be NULL where its function says so. Elsewhere these get ONCE_E_USAGE: NULL, a struct whose
 * `size` is not one that the library knows, bytes with a length whose data is NULL, a number that is not an outcome. In
 * that case a function without a status does nothing, and a function that returns a name returns "?".
 *
 * Growth: structs with a `size` may get more fields at their end. Set `size` to sizeof of the struct that your program
 * was compiled with: the library reads and writes no more than that. A field that is zero means its default.
 *
 * Example (link with $(pkg-config --cflags --libs libonce))
 *
 *     #include <stdio.h>
 *     #include <once/once.h>
 *
 *     int main(void)
 *     {
 *         once_store *store;
 *         once_error err;
 *         if (once_store_open("sqlite:payments.db", NULL, &store, &err) != ONCE_OK)
 *             return fprintf(stderr, "%s\n", err.text), 1;
 *         printf("open\n");
 *         once_store_close(store);
 *         return 0;
 *     }
 */
#ifndef ONCE_ONCE_H
#define ONCE_ONCE_H
#include "once/error.h"
#include "once/handle.h"
#include "once/log.h"
#include "once/operate.h"
#include "once/pipeline.h"
#include "once/store.h"
#include "once/testing.h"
#include "once/types.h"
#include "once/version.h"
#endif
