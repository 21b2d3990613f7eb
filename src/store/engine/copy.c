/* Deep copies of entries, letters and audits into an arena. */
#include "store/engine/parts.h"

#include "base/banned.h"

static bool copy_all(once_arena *arena, once_bytes *const *fields, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (fields[i]->len == 0) *fields[i] = (once_bytes){0};
        else if (!once_arena_copy(arena, *fields[i], fields[i])) return false;
    }
    return true;
}

bool once__entry_copy(once_arena *arena, const once_entry *from, once_entry *to)
{
    once_entry copy = *from;
    once_bytes *const fields[] = {
        &copy.scope.tenant, &copy.scope.consumer,   &copy.scope.operation,  &copy.key,          &copy.at.place,
        &copy.at.point,     &copy.result,           &copy.reason,           &copy.message.body, &copy.message.headers,
        &copy.message.type, &copy.message.at.place, &copy.message.at.point, &copy.who,          &copy.worker,
        &copy.history};
    if (!copy_all(arena, fields, sizeof fields / sizeof *fields)) return false;
    *to = copy;
    return true;
}

bool once__letter_copy(once_arena *arena, const once_letter *from, once_letter *to)
{
    once_letter copy = *from;
    once_bytes *const fields[] = {
        &copy.scope.tenant,     &copy.scope.consumer,   &copy.scope.operation, &copy.key,
        &copy.reason,           &copy.message.body,     &copy.message.headers, &copy.message.type,
        &copy.message.at.place, &copy.message.at.point, &copy.history};
    if (!copy_all(arena, fields, sizeof fields / sizeof *fields)) return false;
    *to = copy;
    return true;
}

bool once__audit_copy(once_arena *arena, const once_audit *from, once_audit *to)
{
    once_audit copy = *from;
    once_bytes *const fields[] = {&copy.consumer, &copy.who, &copy.what, &copy.key, &copy.note, &copy.body};
    if (!copy_all(arena, fields, sizeof fields / sizeof *fields)) return false;
    *to = copy;
    return true;
}
