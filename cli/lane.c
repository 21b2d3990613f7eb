/* The place of a message in its lane, as list and explain show it. */
#include <inttypes.h>
#include <string.h>

#include "cli.h"

enum { SHORT_ID = 8 };

static void json_before(const once_before *b)
{
    printf("{\"operation\":");
    cli_json_string(stdout, b->operation);
    printf(",\"key\":");
    cli_json_string(stdout, b->key);
    printf(",\"state\":\"%s\"", b->state);
    if (b->versioned) printf(",\"version\":%" PRId64, b->version);
    printf(",\"changed_ms\":%" PRId64, b->changed_ms);
    if (b->due_ms != ONCE_NO_TIME) printf(",\"due_ms\":%" PRId64, b->due_ms);
    if (b->worker.len) {
        printf(",\"worker\":");
        cli_json_string(stdout, b->worker);
    }
    if (b->letter) printf(",\"letter\":%" PRIu64, b->letter);
    printf("}");
}

void cli_json_lane(const once_lane_place *lane)
{
    if (!lane->id[0]) return;
    printf(",\"lane\":");
    if (lane->known) cli_json_string(stdout, lane->value);
    else printf("null");
    printf(",\"lane_id\":\"%s\"", lane->id);
    if (lane->versioned) printf(",\"version\":%" PRId64, lane->version);
    if (lane->gap) printf(",\"missing\":[%" PRId64 ",%" PRId64 "]", lane->missing_from, lane->missing_to);
    printf(",\"before\":[");
    for (size_t i = 0; i < lane->n_before; i++) {
        if (i) putchar(',');
        json_before(&lane->before[i]);
    }
    printf("],\"all_before\":%" PRIu64, lane->all_before);
}

void cli_print_lane(const once_lane_place *lane)
{
    if (lane->known) {
        printf("lane '");
        cli_print_safe(lane->value);
        printf("'");
    } else {
        printf("lane #%.*s", SHORT_ID, lane->id); /* only the source has the value */
    }
    if (lane->versioned) printf(", version %" PRId64, lane->version);
}

static void print_before(const once_before *b)
{
    char time[40];
    printf("key '");
    cli_print_safe(b->key);
    printf("'");
    if (b->versioned) printf(", version %" PRId64, b->version);
    if (strcmp(b->state, "dead") == 0) {
        if (b->letter) printf(", dead letter %" PRIu64, b->letter);
        else printf(", a dead letter");
    } else if (strcmp(b->state, "busy") == 0) {
        printf(", being processed");
        if (b->worker.len) {
            printf(" by ");
            cli_print_safe(b->worker);
        }
        if (b->due_ms != ONCE_NO_TIME) printf(" until %s", cli_when(b->due_ms, time));
    } else if (strcmp(b->state, "unknown") == 0) {
        printf(", unknown since %s", cli_when(b->changed_ms, time));
    } else {
        printf(", waiting");
        if (b->due_ms != ONCE_NO_TIME) printf(", not before %s", cli_when(b->due_ms, time));
    }
}

void cli_print_before(const once_lane_place *lane, size_t most)
{
    const size_t n = lane->n_before < most ? lane->n_before : most;
    for (size_t i = 0; i < n; i++) {
        printf("    behind ");
        print_before(&lane->before[i]);
        if (i + 1 == n && lane->all_before > n)
            printf("; and %" PRIu64 "%s more", lane->all_before - n, lane->all_before >= 1000 ? " or" : "");
        putchar('\n');
    }
}
