/* The deliveries of a channel that are not acked (tags.h). */
#include "source/rabbitmq/tags.h"

#include <assert.h>
#include <stdlib.h>

#include "base/banned.h"

/* Leaves out those that were acked. One that is not acked for long stays first, with many that are behind it. */
static void compact(rabbitmq_tags *tags)
{
    size_t n = 0;
    for (size_t i = tags->first; i < tags->n; i++)
        if (tags->list[i].state != RABBITMQ_TAG_ACKED) tags->list[n++] = tags->list[i];
    assert(n == tags->open);
    tags->first = 0;
    tags->n = n;
}

bool once__rabbitmq_tags_add(rabbitmq_tags *tags, uint64_t tag, int64_t came_ms)
{
    assert(tags->n == tags->first || tag > tags->list[tags->n - 1].tag);
    if (tags->n == tags->size && tags->open <= tags->size / 2) compact(tags);
    if (tags->n == tags->size) {
        const size_t size = tags->size ? 2 * tags->size : 256;
        rabbitmq_tag *list = realloc(tags->list, size * sizeof *list);
        if (!list) return false;
        tags->list = list;
        tags->size = size;
    }
    tags->list[tags->n++] = (rabbitmq_tag){.tag = tag, .came_ms = came_ms};
    tags->open++;
    return true;
}

rabbitmq_tag *once__rabbitmq_tags_find(rabbitmq_tags *tags, uint64_t tag)
{
    size_t from = tags->first, to = tags->n;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        rabbitmq_tag *at = &tags->list[middle];
        if (at->tag == tag) return at->state == RABBITMQ_TAG_ACKED ? NULL : at;
        if (at->tag < tag) from = middle + 1;
        else to = middle;
    }
    return NULL;
}

static void acked(rabbitmq_tags *tags, rabbitmq_tag *at)
{
    assert(at->state == RABBITMQ_TAG_SETTLED && tags->open > 0);
    at->state = RABBITMQ_TAG_ACKED;
    tags->open--;
}

/* Those in front that are all settled: one ack for them. */
static bool next_multiple(rabbitmq_tags *tags, uint64_t *tag, bool *multiple)
{
    size_t covered = 0;
    for (; tags->first < tags->n && tags->list[tags->first].state != RABBITMQ_TAG_OPEN; tags->first++) {
        rabbitmq_tag *each = &tags->list[tags->first];
        if (each->state == RABBITMQ_TAG_ACKED) continue;
        *tag = each->tag;
        covered++;
        acked(tags, each);
    }
    *multiple = covered > 1;
    return covered > 0;
}

bool once__rabbitmq_tags_next(rabbitmq_tags *tags, size_t *at, uint64_t *tag, bool *multiple)
{
    if (*at == 0 && next_multiple(tags, tag, multiple)) return true;
    if (*at < tags->first) *at = tags->first;
    for (; *at < tags->n; ++*at) {
        if (tags->list[*at].state != RABBITMQ_TAG_SETTLED) continue;
        acked(tags, &tags->list[*at]);
        *tag = tags->list[*at].tag;
        *multiple = false;
        return true;
    }
    return false;
}

void once__rabbitmq_tags_drop(rabbitmq_tags *tags, uint64_t tag)
{
    rabbitmq_tag *at = once__rabbitmq_tags_find(tags, tag);
    assert(at && at->state == RABBITMQ_TAG_OPEN && tags->open > 0);
    at->state = RABBITMQ_TAG_ACKED;
    tags->open--;
    while (tags->first < tags->n && tags->list[tags->first].state == RABBITMQ_TAG_ACKED) tags->first++;
}

void once__rabbitmq_tags_clear(rabbitmq_tags *tags) { tags->first = tags->n = tags->open = 0; }

void once__rabbitmq_tags_free(rabbitmq_tags *tags)
{
    free(tags->list);
    *tags = (rabbitmq_tags){0};
}
