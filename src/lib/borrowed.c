#include "lib/borrowed.h"

#include <assert.h>
#include <stdlib.h>

#include "base/no_memory.h"

#include "base/banned.h"

once_borrowed *once__borrowed_find(once_borrowed_list *list, const void *connection, int server)
{
    assert(connection);
    pthread_mutex_lock(&list->lock);
    once_borrowed *at = list->first;
    while (at && (at->connection != connection || at->server != server)) at = at->next;
    pthread_mutex_unlock(&list->lock);
    return at;
}

int once__borrowed_add(once_borrowed_list *list, void *connection, int server, once_backend *store, once_error *err)
{
    assert(connection && store);
    once_borrowed *made = calloc(1, sizeof *made);
    if (!made) {
        once__store_close(store);
        return once_no_memory(err, "for a connection");
    }
    *made = (once_borrowed){.connection = connection, .server = server, .store = store};
    pthread_mutex_lock(&list->lock);
    made->next = list->first;
    list->first = made;
    pthread_mutex_unlock(&list->lock);
    return ONCE_OK;
}

void once__borrowed_release(once_borrowed_list *list, const void *connection)
{
    pthread_mutex_lock(&list->lock);
    once_borrowed **at = &list->first;
    while (*at && (*at)->connection != connection) at = &(*at)->next;
    once_borrowed *found = *at;
    if (found) *at = found->next;
    pthread_mutex_unlock(&list->lock);
    if (!found) return;
    once__store_close(found->store);
    free(found);
}

int once__borrowed_settle(once_borrowed *b, const once_work *work, once_error *err)
{
    assert(b->running && work->settlement.request);
    bool applied;
    const int rc = b->store->ops->settle(b->store, &work->settlement, 1, &applied, err);
    return rc == ONCE_OK && !applied ? once_fail(err, ONCE_E_BUG, "a claim was lost inside its transaction") : rc;
}

static int decide(once_borrowed *b, once_borrowed_run *run, once_work *work, once_callback *callback, void *user,
                  once_error *err)
{
    assert(b->running && !work->plan.request.hold);
    const once_request *request = &work->plan.request;
    once_letter letter;
    bool fresh;
    const int rc = b->store->ops->claim(b->store, &request, 1, &work->decision, &work->arena, err);
    if (rc != ONCE_OK) return rc;
    if (once__work_letter(work, &letter)) return b->store->ops->bury(b->store, &letter, 1, &fresh, err);
    if (work->decision.answer == ONCE_ANSWER_UNKNOWN) return once__work_attach(b->store, work, err);
    return work->decision.answer == ONCE_ANSWER_RUN ? run(b, work, callback, user, err) : ONCE_OK;
}

static int handle(once_borrowed *b, once_borrowed_run *run, once_work *work, once_callback *callback, void *user,
                  once_error *err)
{
    int rc = b->store->ops->begin(b->store, err);
    if (rc != ONCE_OK) return rc;
    b->running = true;
    rc = decide(b, run, work, callback, user, err);
    if (rc == ONCE_OK) rc = b->store->ops->commit(b->store, err);
    else b->store->ops->rollback(b->store);
    b->running = false;
    return rc;
}

int once__borrowed_handle(once_borrowed *b, once_borrowed_run *run, const once_scope *scope,
                          const once_delivery *delivery, once_callback *callback, void *user, once_verdict *out,
                          once_error *err)
{
    assert(!b->running && callback && out);
    once_work work;
    int rc = once__work_begin(&work, b->store, scope, delivery, err);
    if (rc == ONCE_OK) work.plan.request.hold = false; /* an attempt that did not commit had no effect */
    if (rc == ONCE_OK) rc = handle(b, run, &work, callback, user, err);
    if (rc == ONCE_OK) rc = once__work_report(&work, out, err);
    once__work_release(&work);
    return rc;
}
