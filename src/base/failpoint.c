/* Failpoints (base/failpoint.h): one rule per point, parsed once before threads start. The counts are atomic, because
 * every thread may reach a point. */
#include "base/failpoint.h"

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/banned.h"

#define EXIT_STATUS 99 /* of the action `exit`; the command itself never uses it */

typedef enum action { ACTION_NONE, ACTION_KILL, ACTION_ABORT, ACTION_STOP, ACTION_EXIT, ACTION_ERROR, ACTIONS } action;

static const char *const action_names[ACTIONS] = {
    [ACTION_KILL] = "kill", [ACTION_ABORT] = "abort", [ACTION_STOP] = "stop",
    [ACTION_EXIT] = "exit", [ACTION_ERROR] = "error",
};

typedef struct rule {
    action action;
    unsigned long at; /* which time the point is reached, counted from 1 */
} rule;

bool once_failpoints_armed;
static rule rules[ONCE_FAILPOINTS];
static atomic_ulong reached[ONCE_FAILPOINTS];

const char *once_failpoint_name(once_failpoint point)
{
    static const char *const names[ONCE_FAILPOINTS] = {
#define ONCE_FAILPOINT_NAME(name, where) #name,
        ONCE_FAILPOINT_MAP(ONCE_FAILPOINT_NAME)
#undef ONCE_FAILPOINT_NAME
    };
    assert((unsigned)point < ONCE_FAILPOINTS);
    return names[point];
}

const char *once_failpoint_where(once_failpoint point)
{
    static const char *const wheres[ONCE_FAILPOINTS] = {
#define ONCE_FAILPOINT_WHERE(name, where) where,
        ONCE_FAILPOINT_MAP(ONCE_FAILPOINT_WHERE)
#undef ONCE_FAILPOINT_WHERE
    };
    assert((unsigned)point < ONCE_FAILPOINTS);
    return wheres[point];
}

/* One piece of the text, up to `stop` or its end. */
typedef struct word {
    const char *text;
    size_t len;
} word;

static word cut(const char **at, const char *end, char stop)
{
    const char *found = memchr(*at, stop, (size_t)(end - *at));
    const char *last = found ? found : end;
    word piece = {*at, (size_t)(last - *at)};
    *at = found ? found + 1 : end;
    return piece;
}

static bool is(word piece, const char *name)
{
    return strlen(name) == piece.len && memcmp(name, piece.text, piece.len) == 0;
}

static bool parse_count(word piece, unsigned long *count)
{
    unsigned long number = 0;
    if (piece.len == 0 || piece.len > 9) return false;
    for (size_t i = 0; i < piece.len; i++) {
        if (piece.text[i] < '0' || piece.text[i] > '9') return false;
        number = number * 10 + (unsigned long)(piece.text[i] - '0');
    }
    *count = number;
    return number > 0;
}

static bool refuse(char *why, unsigned long why_len, const char *what, word piece)
{
    int shown = piece.len > 60 ? 60 : (int)piece.len;
    if (why_len > 0) (void)snprintf(why, why_len, "failpoint: %s '%.*s'", what, shown, piece.text);
    return false;
}

/* Reads NAME:ACTION[:N] into `into`. */
static bool parse_rule(word entry, rule into[ONCE_FAILPOINTS], char *why, unsigned long why_len)
{
    const char *at = entry.text, *end = entry.text + entry.len;
    word name = cut(&at, end, ':');
    int point = 0;
    while (point < ONCE_FAILPOINTS && !is(name, once_failpoint_name((once_failpoint)point))) point++;
    if (point == ONCE_FAILPOINTS) return refuse(why, why_len, "no point is called", name);
    if (into[point].action != ACTION_NONE) return refuse(why, why_len, "only one rule per point, a second for", name);

    word verb = cut(&at, end, ':');
    int found = ACTION_NONE + 1;
    while (found < ACTIONS && !is(verb, action_names[found])) found++;
    if (found == ACTIONS) return refuse(why, why_len, "expected kill, abort, stop, exit or error, not", verb);

    unsigned long count = 1;
    bool has_count = verb.text + verb.len < end; /* a ':' follows the action */
    word number = {at, (size_t)(end - at)};
    if (has_count && !parse_count(number, &count)) return refuse(why, why_len, "expected a count from 1, not", number);

    into[point] = (rule){(action)found, count};
    return true;
}

bool once_failpoints_arm(const char *spec, char *why, unsigned long why_len)
{
    assert(why || why_len == 0);
    rule parsed[ONCE_FAILPOINTS] = {{0}};
    bool any = false;
    if (spec && *spec) {
        const char *at = spec, *end = spec + strlen(spec);
        bool more = true;
        while (more) {
            word entry = cut(&at, end, ',');
            more = entry.text + entry.len < end;
            if (!parse_rule(entry, parsed, why, why_len)) return false;
            any = true;
        }
    }
    for (int i = 0; i < ONCE_FAILPOINTS; i++) {
        rules[i] = parsed[i];
        atomic_store(&reached[i], 0);
    }
    once_failpoints_armed = any;
    return true;
}

bool once_failpoint_hit(once_failpoint point)
{
    assert((unsigned)point < ONCE_FAILPOINTS);
    unsigned long times = atomic_fetch_add(&reached[point], 1) + 1;
    if (rules[point].action == ACTION_NONE || times != rules[point].at) return false;
    switch (rules[point].action) {
    case ACTION_KILL:
        kill(getpid(), SIGKILL);
        for (;;) pause(); /* the signal may take a moment; nothing after this point may run */
    case ACTION_ABORT: abort();
    case ACTION_STOP: raise(SIGSTOP); return false;
    case ACTION_EXIT: _exit(EXIT_STATUS);
    case ACTION_ERROR: return true;
    default: return false;
    }
}
