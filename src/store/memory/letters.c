/* Letters, audits and facts of the memory store. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "store/memory/memory.h"

#include "base/banned.h"

void once__mem_letter_free(once_mem_letter *box)
{
    if (!box) return;
    once_arena_release(&box->arena);
    free(box);
}

void once__mem_audit_free(once_mem_audit *box)
{
    if (!box) return;
    once_arena_release(&box->arena);
    free(box);
}

void once__mem_fact_free(once_mem_fact *f)
{
    if (!f) return;
    once_arena_release(&f->arena);
    free(f);
}

static int letter_again(once_mem *m, size_t at, const once_letter *again, once_error *err)
{
    assert(at < m->letters.n && m->letters.at[at]);
    once_mem_letter *old = m->letters.at[at], *box = calloc(1, sizeof *box);
    once_letter raised = old->letter;
    once__letter_again(&raised, again);
    if (!box || !ONCE_MEM_ROOM(m->undos) || !once__letter_copy(&box->arena, &raised, &box->letter)) {
        once__mem_letter_free(box);
        return once_no_memory(err, "in the memory store");
    }
    box->unique = old->unique;
    m->undos.at[m->undos.n++] = (once_mem_undo){.what = UNDO_LETTER_DROP, .index = at, .letter = old};
    m->letters.at[at] = box;
    return ONCE_OK;
}

int once__mem_letter_put(once_storage *storage, const once_letter *letter, once_hash unique, bool *fresh,
                         once_error *err)
{
    once_mem *m = once__mem_of(storage);
    assert(once__mem_of(storage)->write);
    for (size_t i = 0; i < m->letters.n; i++) {
        if (!m->letters.at[i] || !once_hash_equal(m->letters.at[i]->unique, unique)) continue;
        *fresh = false;
        return once_hash_is_zero(letter->entry) ? letter_again(m, i, letter, err) : ONCE_OK;
    }
    if (!ONCE_MEM_ROOM(m->letters) || !ONCE_MEM_ROOM(m->undos)) return once_no_memory(err, "in the memory store");
    once_mem_letter *box = calloc(1, sizeof *box);
    if (!box || !once__letter_copy(&box->arena, letter, &box->letter)) {
        once__mem_letter_free(box);
        return once_no_memory(err, "in the memory store");
    }
    box->letter.id = ++m->next_letter;
    box->unique = unique;
    m->undos.at[m->undos.n++] = (once_mem_undo){.what = UNDO_LETTER_PUT, .index = m->letters.n};
    m->letters.at[m->letters.n++] = box;
    *fresh = true;
    return ONCE_OK;
}

static size_t find_letter(const once_mem *m, uint64_t id)
{
    size_t i = 0;
    while (i < m->letters.n && (!m->letters.at[i] || m->letters.at[i]->letter.id != id)) i++;
    return i;
}

int once__mem_letter_get(once_storage *storage, uint64_t id, once_letter *out, bool *found, once_arena *arena,
                         once_error *err)
{
    assert(once__mem_of(storage)->open);
    once_mem *m = once__mem_of(storage);
    const size_t i = find_letter(m, id);
    *found = i < m->letters.n;
    if (!*found) return ONCE_OK;
    if (!once__letter_copy(arena, &m->letters.at[i]->letter, out)) return once_no_memory(err, "in the memory store");
    out->identity = m->letters.at[i]->unique;
    return ONCE_OK;
}

int once__mem_letter_drop(once_storage *storage, uint64_t id, once_error *err)
{
    once_mem *m = once__mem_of(storage);
    assert(once__mem_of(storage)->write);
    const size_t i = find_letter(m, id);
    if (i == m->letters.n) return ONCE_OK;
    if (!ONCE_MEM_ROOM(m->undos)) return once_no_memory(err, "in the memory store");
    m->undos.at[m->undos.n++] = (once_mem_undo){.what = UNDO_LETTER_DROP, .index = i, .letter = m->letters.at[i]};
    m->letters.at[i] = NULL;
    return ONCE_OK;
}

int once__mem_audit_put(once_storage *storage, const once_audit *audit, once_error *err)
{
    once_mem *m = once__mem_of(storage);
    assert(once__mem_of(storage)->write);
    if (!ONCE_MEM_ROOM(m->audits) || !ONCE_MEM_ROOM(m->undos)) return once_no_memory(err, "in the memory store");
    once_mem_audit *box = calloc(1, sizeof *box);
    if (!box) return once_no_memory(err, "in the memory store");
    box->audit = *audit;
    once_bytes *const fields[] = {&box->audit.consumer, &box->audit.who,  &box->audit.what,
                                  &box->audit.key,      &box->audit.note, &box->audit.body};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (once_arena_copy(&box->arena, *fields[i], fields[i])) continue;
        once__mem_audit_free(box);
        return once_no_memory(err, "in the memory store");
    }
    m->undos.at[m->undos.n++] = (once_mem_undo){.what = UNDO_AUDIT};
    m->audits.at[m->audits.n++] = box;
    return ONCE_OK;
}

int once__mem_audits(once_storage *storage, once_bytes consumer, once_page *page, once_audit_visit *visit, void *user,
                     once_error *err)
{
    assert(once__mem_of(storage)->open && page->max > 0);
    (void)page, (void)err;
    const once_mem *m = once__mem_of(storage);
    for (size_t i = 0; i < m->audits.n; i++)
        if (once_bytes_equal(m->audits.at[i]->audit.consumer, consumer) && !visit(user, &m->audits.at[i]->audit)) break;
    return ONCE_OK;
}

int once__mem_letters(once_storage *storage, const once_letter_query *what, once_page *page, once_letter_visit *visit,
                      void *user, once_error *err)
{
    assert(once__mem_of(storage)->open && page->max > 0);
    (void)err;
    const once_mem *m = once__mem_of(storage);
    for (size_t i = 0; i < m->letters.n; i++) {
        const once_mem_letter *box = m->letters.at[i];
        if (!box || box->letter.id <= page->number || !once_bytes_equal(box->letter.scope.consumer, what->consumer))
            continue;
        if (!visit(user, &box->letter)) break;
    }
    return ONCE_OK;
}

/* The position of the fact, or the position where it would be put. */
static size_t find_fact(const once_mem *m, const char *name)
{
    size_t i = 0;
    while (i < m->facts.n && (!m->facts.at[i] || strcmp(m->facts.at[i]->name, name) != 0)) i++;
    return i;
}

int once__mem_fact_get(once_storage *storage, const char *name, once_bytes *out, once_arena *arena, once_error *err)
{
    assert(once__mem_of(storage)->open);
    const once_mem *m = once__mem_of(storage);
    const size_t i = find_fact(m, name);
    if (i == m->facts.n || m->facts.at[i]->value.len == 0) return ONCE_OK;
    return once_arena_copy(arena, m->facts.at[i]->value, out) ? ONCE_OK : once_no_memory(err, "in the memory store");
}

int once__mem_fact_set(once_storage *storage, const char *name, once_bytes value, once_error *err)
{
    once_mem *m = once__mem_of(storage);
    assert(once__mem_of(storage)->write);
    const size_t i = find_fact(m, name);
    if ((i == m->facts.n && !ONCE_MEM_ROOM(m->facts)) || !ONCE_MEM_ROOM(m->undos))
        return once_no_memory(err, "in the memory store");
    once_mem_fact *fresh = calloc(1, sizeof *fresh);
    if (!fresh || (value.len > 0 && !once_arena_copy(&fresh->arena, value, &fresh->value))) {
        once__mem_fact_free(fresh);
        return once_no_memory(err, "in the memory store");
    }
    assert(strlen(name) < sizeof fresh->name);
    memcpy(fresh->name, name, strlen(name) + 1);
    if (i == m->facts.n) m->facts.at[m->facts.n++] = NULL;
    m->undos.at[m->undos.n++] = (once_mem_undo){.what = UNDO_FACT, .index = i, .fact = m->facts.at[i]};
    m->facts.at[i] = fresh;
    return ONCE_OK;
}

int once__mem_facts(once_storage *storage, const char *prefix, once_fact_visit *visit, void *user, once_error *err)
{
    assert(once__mem_of(storage)->open);
    const once_mem *m = once__mem_of(storage);
    (void)err;
    for (size_t i = 0; i < m->facts.n; i++) {
        const once_mem_fact *f = m->facts.at[i];
        if (!f || f->value.len == 0 || strncmp(f->name, prefix, strlen(prefix)) != 0) continue;
        if (!visit(user, (once_bytes){f->name, strlen(f->name)}, f->value)) break;
    }
    return ONCE_OK;
}
