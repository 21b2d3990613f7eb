/* Failpoints (base/failpoint.h): one rule per point, parsed once before threads start. The counts are atomic, because
 * every thread may reach a point. */
#include "base/failpoint.h"

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

#include "base/banned.h"

#define EXIT_STATUS 99 /* of the action `exit`; the command itself never uses it */

typedef enum action { ACTION_NONE, ACTION_KILL, ACTION_ABORT, ACTION_STOP, ACTION_EXIT, ACTION_ERROR, ACTIONS } action;

static const char *const action_names[ACTIONS] = {
    [ACTION_KILL] = "kill", [ACTION_ABORT] = "abort", [ACTION_STOP] = "stop",
    [ACTION_EXIT] = "exit", [ACTION_ERROR] = "error",
};

typedef struct rule {
    action action;
    unsigned long at;      /* which time the point is reached, counted from 1; 0: by chance */
    unsigned long percent; /* the chance */
    unsigned long seed;
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

static bool parse_number(word piece, unsigned long *ret_number)
{
    unsigned long number = 0;
    if (piece.len == 0 || piece.len > 9) return false;
    for (size_t i = 0; i < piece.len; i++) {
        if (piece.text[i] < '0' || piece.text[i] > '9') return false;
        number = number * 10 + (unsigned long)(piece.text[i] - '0');
    }
    *ret_number = number;
    return true;
}

/* N, P% or P%SEED. */
static bool parse_when(word piece, rule *into)
{
    const char *at = piece.text, *end = piece.text + piece.len;
    if (!memchr(piece.text, '%', piece.len)) return parse_number(piece, &into->at) && into->at > 0;
    word percent = cut(&at, end, '%'), seed = {at, (size_t)(end - at)};
    into->at = 0;
    return parse_number(percent, &into->percent) && into->percent > 0 && into->percent <= 100 &&
           (seed.len == 0 || parse_number(seed, &into->seed));
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

    rule parsed = {.action = (action)found, .at = 1};
    bool says_when = verb.text + verb.len < end; /* a ':' follows the action */
    word when = {at, (size_t)(end - at)};
    if (says_when && !parse_when(when, &parsed))
        return refuse(why, why_len, "expected a count from 1 or a share such as 30%, not", when);

    into[point] = parsed;
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

/* The same for the same seed, point and time, whichever thread asks. */
static bool by_chance(const rule *given, once_failpoint point, unsigned long times)
{
    uint64_t mixed = (given->seed * ONCE_FAILPOINTS + (unsigned)point + 1) * UINT64_C(0x9e3779b97f4a7c15) + times;
    for (int round = 0; round < 2; round++) {
        mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    }
    return (mixed >> 32) % 100 < given->percent;
}

bool once_failpoint_hit(once_failpoint point)
{
    assert((unsigned)point < ONCE_FAILPOINTS);
    const unsigned long times = atomic_fetch_add(&reached[point], 1) + 1;
    const rule *given = &rules[point];
    if (given->action == ACTION_NONE) return false;
    const bool happens = given->at ? times == given->at : by_chance(given, point, times);
    once_log(ONCE_LOG_DEBUG, "failpoint", "%s, time %lu: %s", once_failpoint_name(point), times,
             happens ? action_names[given->action] : "nothing");
    if (!happens) return false;
    switch (given->action) {
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
