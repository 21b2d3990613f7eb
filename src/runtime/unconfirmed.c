#include "runtime/unconfirmed.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/message_log.h"
#include "store/history.h"

#include "base/banned.h"

enum { UNCONFIRMED_MOST = 4096 };

const char *once_unconfirmed_event(const once_decision *decision)
{
    if (decision->lapsed) return "unknown";
    return decision->answer == ONCE_ANSWER_CONFLICT ? "dead" : NULL;
}

static void add_line(once_message_log *log, const once_item *item, const once_keying *keying)
{
    assert(once_unconfirmed_event(&item->decision));
    once_message_log_add(log, ONCE_LOG_WARN, once_unconfirmed_event(&item->decision), item, item->decision.reason,
                         keying);
}

static void log_now(const once_item *item, const once_keying *keying)
{
    once_message_log now;
    once_message_log_init(&now);
    add_line(&now, item, keying);
    once_message_log_write(&now);
    once_message_log_release(&now);
}

/* The same decision again: a call that was repeated within a millisecond. */
static bool is_there(const once_unconfirmed *unconfirmed, const once_item *item)
{
    for (size_t i = 0; i < unconfirmed->n; i++) {
        const once_item *other = &unconfirmed->items[i];
        if (once_hash_equal(other->request.id, item->request.id) &&
            once_hash_equal(other->request.token, item->request.token) &&
            other->decision.lapsed_ms == item->decision.lapsed_ms)
            return true;
    }
    return false;
}

static bool make_room(once_unconfirmed *unconfirmed)
{
    if (unconfirmed->n < unconfirmed->room) return true;
    const size_t room = unconfirmed->room ? 2 * unconfirmed->room : 16;
    once_item *items = room <= UNCONFIRMED_MOST ? reallocarray(unconfirmed->items, room, sizeof *items) : NULL;
    if (!items) return false;
    unconfirmed->items = items;
    unconfirmed->room = room;
    return true;
}

static bool copy_item(once_arena *arena, const once_item *from, once_item *to)
{
    *to = (once_item){.scope = from->scope,
                      .decision = {.answer = from->decision.answer,
                                   .attempt = from->decision.attempt,
                                   .lapsed = from->decision.lapsed,
                                   .lapsed_ms = from->decision.lapsed_ms,
                                   .old_key = from->decision.old_key,
                                   .reason = from->decision.reason}};
    to->message.at = from->message.at;
    to->request.key = from->request.key;
    to->request.id = from->request.id;
    to->request.token = from->request.token;
    once_bytes *const fields[] = {&to->scope.tenant,     &to->scope.consumer,   &to->scope.operation,
                                  &to->message.at.place, &to->message.at.point, &to->request.key,
                                  &to->decision.reason};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i]->len && !once_arena_copy(arena, *fields[i], fields[i])) return false;
    return true;
}

void once_unconfirmed_add(once_unconfirmed *unconfirmed, const once_item *item, const once_keying *keying)
{
    if (!once_unconfirmed_event(&item->decision) || is_there(unconfirmed, item)) return;
    assert(unconfirmed->n <= unconfirmed->room && unconfirmed->room <= UNCONFIRMED_MOST);
    if (make_room(unconfirmed) && copy_item(&unconfirmed->arena, item, &unconfirmed->items[unconfirmed->n]))
        unconfirmed->n++;
    else log_now(item, keying);
}

/* Whether our call wrote it, and not another worker, which logged it then: a letter has our token, and an attempt that
 * ended without reporting an outcome has the time at which we noticed it. */
static bool was_written(const once_item *item, const once_entry *entry)
{
    once_attempt attempts[ONCE_HISTORY_ATTEMPTS];
    if (!item->decision.lapsed)
        return entry->state == ONCE_STATE_DEAD && once_hash_equal(entry->token, item->request.token);
    if (entry->state != ONCE_STATE_UNKNOWN) return false;
    for (size_t i = 0, n = once__history_read(entry->history, attempts); i < n; i++)
        if (attempts[i].attempt == item->decision.attempt && attempts[i].ended_ms == item->decision.lapsed_ms &&
            strcmp(attempts[i].outcome, ONCE_UNREPORTED) == 0)
            return true;
    return false;
}

static void forget(once_unconfirmed *unconfirmed)
{
    free(unconfirmed->items);
    once_arena_release(&unconfirmed->arena);
    *unconfirmed = (once_unconfirmed){0};
}

int once_unconfirmed_check(once_unconfirmed *unconfirmed, once_backend *store, const once_keying *keying,
                           once_error *err)
{
    once_message_log now;
    once_arena arena = {0};
    int rc = ONCE_OK;
    if (!unconfirmed->n) return ONCE_OK;
    once_message_log_init(&now);
    for (size_t i = 0; i < unconfirmed->n && rc == ONCE_OK; i++) {
        once_entry entry;
        rc = store->ops->get(store, unconfirmed->items[i].request.id, &entry, &arena, err);
        if (rc == ONCE_OK && was_written(&unconfirmed->items[i], &entry))
            add_line(&now, &unconfirmed->items[i], keying);
        once_arena_reset(&arena);
    }
    if (rc == ONCE_OK) {
        once_message_log_write(&now);
        forget(unconfirmed);
    }
    once_message_log_release(&now);
    once_arena_release(&arena);
    return rc;
}

void once_unconfirmed_end(once_unconfirmed *unconfirmed, const once_keying *keying)
{
    for (size_t i = 0; i < unconfirmed->n; i++) log_now(&unconfirmed->items[i], keying);
    forget(unconfirmed);
}
