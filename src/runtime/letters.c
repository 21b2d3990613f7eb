/* Dead letters: their kinds, how long they are remembered, and prefetching them. */
#include <assert.h>

#include "runtime/operate.h"
#include "store/engine.h"

#include "base/banned.h"

enum {
    AHEAD_FIRST = 16,     /* letters to prefetch while their size is not known */
    AHEAD = 1024,         /* letters to prefetch at most */
    AHEAD_BYTES = 1 << 20 /* bytes to prefetch, about */
};

const char *once__letter_kind(const once_letter *letter)
{
    if (letter->kind == ONCE_ANSWER_DEAD && letter->key.len == 0) return "malformed";
    return once_answer_name(letter->kind);
}

/* A letter without a handler has no operation, and its message never got an idempotency key. */
void once__letter_outward_key(const once_keying *keying, const once_letter *letter, char *out)
{
    if (letter->key.len && letter->scope.operation.len)
        once_outward_key(keying, &letter->scope, letter->key, letter->entry, letter->old_key, out);
}

int once__letters_ahead(once_reading *r, once_backend *store, const uint64_t *ids, size_t n, once_error *err)
{
    assert(n > 0);
    if (!store->ops->letters_ahead || (r->left > 0 && --r->left > 0)) return ONCE_OK;
    const size_t each = r->n ? r->bytes / r->n + 1 : AHEAD_BYTES / AHEAD_FIRST;
    r->left = AHEAD_BYTES / each;
    if (r->left > AHEAD) r->left = AHEAD;
    if (r->left > n) r->left = n;
    if (r->left == 0) r->left = 1;
    assert(r->left > 0 && r->left <= n);
    return store->ops->letters_ahead(store, ids, r->left, err);
}

void once__letters_note(once_reading *r, const once_letter *letter)
{
    assert(letter->id > 0);
    r->n++;
    r->bytes += letter->message.body.len + letter->message.headers.len;
}

int64_t once__letter_remember(const once_spec *spec, once_bytes operation)
{
    const once_handler_spec *handler = once_spec_handler_by_operation(spec, operation);
    int64_t longest_ms = handler ? handler->remember_ms : 0;
    for (size_t i = 0; i < spec->n_handlers && !handler; i++)
        if (spec->handlers[i].remember_ms > longest_ms) longest_ms = spec->handlers[i].remember_ms;
    return longest_ms;
}
