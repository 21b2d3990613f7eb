/* Names in memory: two hash tables (by text, by number) over the same names. */
#include "store/name_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#include "base/banned.h"

/* ---- texts ---- */

/* Reads the text of a name into its fields; false: it is not the text of a name. */
static bool parse(once_name *name)
{
    uint32_t lens[3];
    const size_t head = 1 + sizeof lens;
    if (name->len < 1) return false;
    switch (name->text[0]) {
    case 'S':
        if (name->len < head) return false;
        memcpy(lens, name->text + 1, sizeof lens);
        if ((uint64_t)lens[0] + lens[1] + lens[2] != name->len - head) return false;
        const char *at = name->text + head;
        name->scope = (once_scope){{at, lens[0]}, {at + lens[0], lens[1]}, {at + lens[0] + lens[1], lens[2]}};
        return true;
    case 'P':
    case 'W': name->bytes = (once_bytes){name->text + 1, name->len - 1}; return true;
    case 'R':
        if (name->len != 1 + sizeof name->run) return false;
        memcpy(&name->run, name->text + 1, sizeof name->run);
        return true;
    default: return false;
    }
}

static once_name *name_new(size_t len)
{
    once_name *name = calloc(1, sizeof *name + len + 1);
    if (name) name->len = len;
    return name;
}

static once_name *find(const once_name_table *names, once_hash hash, const once_name *like)
{
    once_name *name = once_table_get(&names->by_text, hash);
    while (name && (name->len != like->len || memcmp(name->text, like->text, like->len) != 0)) name = name->same_hash;
    return name;
}

/* Finds the name that equals `made`, which is freed then, or adds `made`. */
static once_name *settle_on(once_name_table *names, once_name *made, bool *damaged)
{
    const once_hash hash = once_xxh128(0, made->text, made->len);
    once_name *known = find(names, hash, made);
    *damaged = !known && !parse(made);
    made->same_hash = once_table_get(&names->by_text, hash);
    if (known || *damaged || !once_table_put(&names->by_text, hash, made)) {
        free(made);
        return known;
    }
    names->n++;
    return made;
}

static once_name *remember(once_name_table *names, once_name *made, once_name **last)
{
    bool damaged;
    once_name *name = settle_on(names, made, &damaged);
    assert(!damaged); /* this process made the text */
    if (name) *last = name;
    return name;
}

once_name *once__name_scope(once_name_table *names, const once_scope *scope)
{
    once_name *last = names->last_scope;
    if (last && once_bytes_equal(last->scope.tenant, scope->tenant) &&
        once_bytes_equal(last->scope.consumer, scope->consumer) &&
        once_bytes_equal(last->scope.operation, scope->operation))
        return last;
    const once_bytes parts[3] = {scope->tenant, scope->consumer, scope->operation};
    const uint32_t lens[3] = {(uint32_t)parts[0].len, (uint32_t)parts[1].len, (uint32_t)parts[2].len};
    once_name *made = name_new(1 + sizeof lens + parts[0].len + parts[1].len + parts[2].len);
    if (!made) return NULL;
    char *to = made->text;
    *to++ = 'S';
    memcpy(to, lens, sizeof lens);
    to += sizeof lens;
    for (int i = 0; i < 3; i++) {
        if (parts[i].len) memcpy(to, parts[i].data, parts[i].len);
        to += parts[i].len;
    }
    return remember(names, made, &names->last_scope);
}

static once_name *name_of(once_name_table *names, char kind, once_bytes bytes, once_name **last)
{
    if (*last && once_bytes_equal((*last)->bytes, bytes)) return *last;
    once_name *made = name_new(1 + bytes.len);
    if (!made) return NULL;
    made->text[0] = kind;
    if (bytes.len) memcpy(made->text + 1, bytes.data, bytes.len);
    return remember(names, made, last);
}

once_name *once__name_place(once_name_table *names, once_bytes place)
{
    return name_of(names, 'P', place, &names->last_place);
}
once_name *once__name_who(once_name_table *names, once_bytes who) { return name_of(names, 'W', who, &names->last_who); }

once_name *once__name_run(once_name_table *names, uint64_t run)
{
    if (names->last_run && names->last_run->run == run) return names->last_run;
    once_name *made = name_new(1 + sizeof run);
    if (!made) return NULL;
    made->text[0] = 'R';
    memcpy(made->text + 1, &run, sizeof run);
    return remember(names, made, &names->last_run);
}

once_name *once__name_read(once_name_table *names, once_bytes text, bool *damaged)
{
    *damaged = false;
    once_name *made = name_new(text.len);
    if (!made) return NULL;
    if (text.len) memcpy(made->text, text.data, text.len);
    return settle_on(names, made, damaged);
}

/* ---- numbers ---- */

static once_hash number_key(int64_t number) { return (once_hash){0, (uint64_t)number}; }

once_name *once__name_numbered(const once_name_table *names, int64_t number)
{
    return once_table_get(&names->by_number, number_key(number));
}

bool once__name_set_number(once_name_table *names, once_name *name, int64_t number)
{
    if (!once_table_put(&names->by_number, number_key(number), name)) return false;
    name->number = number;
    return true;
}

void once__names_clear(once_name_table *names)
{
    once_name *name;
    for (size_t at = 0; (name = once_table_next(&names->by_text, &at));)
        for (once_name *next; name; name = next) {
            next = name->same_hash;
            free(name);
        }
    once_table_release(&names->by_text);
    once_table_release(&names->by_number);
    *names = (once_name_table){0};
}
