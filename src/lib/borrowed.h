/* Connections of callers that were prepared for us: each has a store of ours on it. Shared by once_sqlite_handle and
 * once_postgres_handle, which run a handler on it in different ways.
 *
 * Thread rule: any thread may use a list; an entry of it belongs to the thread that uses the connection. */
#ifndef ONCE_LIB_BORROWED_H
#define ONCE_LIB_BORROWED_H

#include "lib/lib.h"

typedef struct once_borrowed once_borrowed;
struct once_borrowed {
    void *connection;
    int server; /* postgres: its process there; sqlite: 0 */
    /* sqlite: the last row that the caller or its handler inserted, which they may ask for after we have inserted
     * rows */
    int64_t rowid;
    once_backend *store;
    bool running; /* inside once_*_handle */
    once_borrowed *next;
};

typedef struct once_borrowed_list {
    pthread_mutex_t lock;
    once_borrowed *first;
} once_borrowed_list;

once_borrowed *once__borrowed_find(once_borrowed_list *list, const void *connection,
                                   int server); /* NULL: it is not ready */
/* Takes over `store`, which is closed when this fails. */
int once__borrowed_add(once_borrowed_list *list, void *connection, int server, once_backend *store, once_error *err);
/* For any process of its server. Does nothing when the connection is not in the list. */
void once__borrowed_release(once_borrowed_list *list, const void *connection);

/* Calls the handler with a savepoint around it, and settles, in the transaction that is open on the store. */
typedef int once_borrowed_run(once_borrowed *borrowed, once_work *work, once_callback *callback, void *user,
                              once_error *err);

/* All of once_*_handle, on a connection that is not running. */
int once__borrowed_handle(once_borrowed *borrowed, once_borrowed_run *run, const once_scope *scope,
                          const once_delivery *delivery, once_callback *callback, void *user, once_verdict *out,
                          once_error *err);
/* The claim of this transaction has its outcome. */
int once__borrowed_settle(once_borrowed *borrowed, const once_work *work, once_error *err);

#endif
