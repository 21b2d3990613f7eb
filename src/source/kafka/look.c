/* Reads one message again, for `once explain`. Only the reader is there: it joins no group and commits nothing. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/no_memory.h"
#include "source/kafka/kafka.h"

#include "base/banned.h"

/* Behind the last message, or before the first one, there is nothing to wait for. */
static int open_at(kafka_source *k, once_bytes topic, int32_t number, int64_t offset, once_error *err)
{
    once_bytes name;
    assert(k->purpose == ONCE_OPEN_LOOK && k->n_partitions == 0 && !k->member);
    once_arena arena = {0};
    int64_t low = 0, high = 0;
    if (!once_arena_copy(&arena, topic, &name)) return once_no_memory(err, "for a topic");
    rd_kafka_resp_err_t error =
        rd_kafka_query_watermark_offsets(k->reader, name.data, number, &low, &high, 2 * ONCE_KAFKA_ASK_MS);
    int rc = ONCE_OK;
    if (error) {
        rc = once__kafka_fail(err, error, "'%s/%d'", name.data, (int)number);
    } else if (offset < low || offset >= high) {
        k->look_for = -1;
    } else if (!once__kafka_add(k, name.data, number)) {
        rc = once_no_memory(err, "for a partition");
    } else {
        kafka_partition *p = k->partitions[0];
        p->next = offset;
        k->look_for = offset;
        rc = once__kafka_open_partition(k, p, err);
        if (rc == ONCE_OK) p->state = KAFKA_READING;
    }
    once_arena_release(&arena);
    return rc;
}

int once__kafka_look(once_source *source, once_coordinates at, const once_facts *facts, once_error *err)
{
    kafka_source *k = once__kafka(source);
    once_bytes topic;
    int32_t number;
    int64_t offset = 0;
    (void)facts;
    k->look_for = -1;
    if (!once__kafka_place(at.place, &topic, &number) || at.point.len == 0 || at.point.len > 18) return ONCE_OK;
    for (size_t i = 0; i < at.point.len; i++) {
        if (at.point.data[i] < '0' || at.point.data[i] > '9') return ONCE_OK;
        offset = offset * 10 + (at.point.data[i] - '0');
    }
    return open_at(k, topic, number, offset, err);
}
