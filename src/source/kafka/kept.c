/* What is kept with each offset of the group, as words in its metadata:
 *
 *   once:partitions=3 epoch=1 after=88
 *
 *   partitions   how many the topic had when the group began with it
 *   epoch        of the cursors in the store that count beside this offset. When the messages of a partition are others
 *                than before, because its topic was made anew, a new epoch begins, and earlier cursors say nothing. Not
 *                there: a run without `cursor` committed the offset, and no cursor counts
 *   after        there is no message from this offset to the committed one
 *
 * Offsets of other programs have other metadata, or none. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "source/kafka/kafka.h"

#include "base/banned.h"

#define OURS "once:"
#define TEXT_MAX 100

/* The number behind "NAME=" in the words of the text; `missing` if it is not there. */
static int64_t number_of(const char *words, const char *name, int64_t missing)
{
    const size_t len = strlen(name);
    for (const char *at = words; (at = strstr(at, name)); at += len) {
        const char *digits = at + len + 1;
        const bool whole = (at == words || at[-1] == ' ') && at[len] == '=' && *digits >= '0' && *digits <= '9';
        if (whole) return strtoll(digits, NULL, 10);
    }
    return missing;
}

kafka_kept once__kafka_read_kept(const rd_kafka_topic_partition_t *at)
{
    kafka_kept kept = {.partitions = -1, .epoch = -1, .after = -1};
    char text[TEXT_MAX];
    const size_t len = strlen(OURS);
    if (!at->metadata || at->metadata_size < len || at->metadata_size >= sizeof text) return kept;
    memcpy(text, at->metadata, at->metadata_size); /* anybody may have written it */
    text[at->metadata_size] = '\0';
    if (memcmp(text, OURS, len) != 0) return kept;
    const int64_t partitions = number_of(text + len, "partitions", -1), epoch = number_of(text + len, "epoch", -1);
    if (partitions < 0 || partitions > INT32_MAX || epoch > INT32_MAX) return kept;
    kept.ours = true;
    kept.partitions = (int32_t)partitions;
    kept.epoch = (int32_t)epoch;
    kept.after = number_of(text + len, "after", -1);
    return kept;
}

kafka_kept once__kafka_kept(const kafka_source *k, const kafka_partition *p)
{
    assert(p->topic->began_with >= 0 && p->epoch >= 0);
    return (kafka_kept){
        .ours = true, .partitions = p->topic->began_with, .epoch = k->kafka->cursor ? p->epoch : -1, .after = -1};
}

void once__kafka_add_commit(rd_kafka_topic_partition_list_t *list, const kafka_partition *p, int64_t offset,
                            const kafka_kept *kept)
{
    assert(offset >= 0 && kept->ours);
    char text[TEXT_MAX], epoch[24] = "", after[32] = "";
    rd_kafka_topic_partition_t *at = rd_kafka_topic_partition_list_add(list, p->topic->name, p->number);
    at->offset = offset;
    if (kept->epoch >= 0) (void)snprintf(epoch, sizeof epoch, " epoch=%d", (int)kept->epoch);
    if (kept->after >= 0) (void)snprintf(after, sizeof after, " after=%" PRId64, kept->after);
    const int len = snprintf(text, sizeof text, OURS "partitions=%d%s%s", (int)kept->partitions, epoch, after);
    assert(len > 0 && len < TEXT_MAX);
    at->metadata = strdup(text); /* librdkafka frees it */
    if (at->metadata) at->metadata_size = (size_t)len;
    /* Out of memory: then partitions that are added begin at their first message, too, and a cursor counts. */
}
