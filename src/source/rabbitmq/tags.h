/* The deliveries of a channel that are not acked, in the order of their tags, and what to send to ack some of them.
 *
 * An ack of AMQP with `multiple` covers every delivery up to its tag. It may be sent if all of these are settled, and
 * its own tag must not have been acked before: the broker closes the channel otherwise.
 *
 * Thread rule: the caller's lock. */
#ifndef ONCE_SOURCE_RABBITMQ_TAGS_H
#define ONCE_SOURCE_RABBITMQ_TAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum rabbitmq_tag_state {
    RABBITMQ_TAG_OPEN,
    RABBITMQ_TAG_SETTLED, /* its ack is to be sent */
    RABBITMQ_TAG_ACKED    /* or given back */
} rabbitmq_tag_state;

typedef struct rabbitmq_tag {
    uint64_t tag;
    int64_t came_ms;
    rabbitmq_tag_state state;
} rabbitmq_tag;

/* `list` from `first` up to `n` is sorted, and its first one is not acked. */
typedef struct rabbitmq_tags {
    rabbitmq_tag *list;
    size_t first, n, size;
    size_t open; /* how many are not acked */
} rabbitmq_tags;

/* A higher tag than all before. False: out of memory. */
bool once__rabbitmq_tags_add(rabbitmq_tags *tags, uint64_t tag, int64_t came_ms);
/* NULL: there is none, or it was acked. */
rabbitmq_tag *once__rabbitmq_tags_find(rabbitmq_tags *tags, uint64_t tag);

/* The next ack to send for those that are settled; false: there is none. Begin with *at = 0. */
bool once__rabbitmq_tags_next(rabbitmq_tags *tags, size_t *at, uint64_t *tag, bool *multiple);

/* It is open, and was given back: it needs no ack. */
void once__rabbitmq_tags_drop(rabbitmq_tags *tags, uint64_t tag);

void once__rabbitmq_tags_clear(rabbitmq_tags *tags);
void once__rabbitmq_tags_free(rabbitmq_tags *tags);

#endif
