/* Handlers that are held up (core/gate.h), for the log, the progress line, the summary, and for other processes: the
 * worker writes the list into the store with its record, and `once status` reads it there. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "base/log.h"
#include "runtime/run.h"

#include "base/banned.h"

once_bytes once__paused_name(const once_handler_spec *handler)
{
    return handler->type.len ? handler->type : handler->operation;
}

static const char *why_of(once_gate_hold hold)
{
    switch (hold) {
    case ONCE_GATE_BREAKER: return "too many of its effects fail";
    case ONCE_GATE_DEAD: return "too many of its messages would be dead letters for one reason";
    case ONCE_GATE_UNABLE: return "its effects cannot be started";
    default: return "its effects cannot work until somebody acts";
    }
}

/* How long until then; a part of a second counts as one. */
static const char *until_text(int64_t then_ms, int64_t now_ms, char out[ONCE_DURATION_TEXT])
{
    return once_duration_about(then_ms - now_ms + 999, out);
}

static void log_paused(const once_held_view *held, int64_t now_ms)
{
    const once_bytes name = once__paused_name(held->handler);
    char next[ONCE_DURATION_TEXT];
    once_log(ONCE_LOG_WARN, "paused",
             "handler '%.*s' is paused, because %s: %.*s; its messages wait in the store, and it is tried with one of "
             "them at a time, in %s for the first time, until that succeeds",
             (int)name.len, name.data, why_of(held->hold), (int)held->reason.len, held->reason.data,
             until_text(held->next_ms, now_ms, next));
}

static void log_still_paused(const once_held_view *held, const once_handler_state *state, int64_t now_ms)
{
    const once_bytes name = once__paused_name(held->handler);
    char since[ONCE_TIME_TEXT], next[ONCE_DURATION_TEXT];
    once_log(ONCE_LOG_WARN, "paused",
             "handler '%.*s' is paused since %s, because %s: %.*s; it was tried %" PRIu32 " time%s, and is tried again "
             "in %s",
             (int)name.len, name.data, once_time_format(state->held_wall_ms, since), why_of(held->hold),
             (int)held->reason.len, held->reason.data, held->probes, held->probes == 1 ? "" : "s",
             until_text(held->next_ms, now_ms, next));
}

static void log_resumed(const once_handler_spec *handler, const once_handler_state *state, int64_t now_ms)
{
    const once_bytes name = once__paused_name(handler);
    once_log(ONCE_LOG_WARN, "resumed", "handler '%.*s' goes on, after %.1f s", (int)name.len, name.data,
             (double)(now_ms - state->held_since_ms) / 1000);
}

/* A handler that is held and goes on again many times a minute must not fill the log. */
static bool may_say(once_handler_state *state, const once_held_view *held, int64_t now_ms)
{
    char why[ONCE_GATE_REASON];
    (void)snprintf(why, sizeof why, "%.*s", (int)held->reason.len, held->reason.data);
    return once__throttle_allows(&state->held_throttle, why, now_ms);
}

/* It is held up. Logs that when it begins, when its cause changes, and when a probe has failed. */
static void note_held(once_run *r, once_handler_state *state, const once_held_view *held, int64_t now_ms)
{
    const int64_t wall_ms = once_env_wall_ms(r->pipeline->env);
    const bool began = !state->held, changed = began || state->held_why != held->hold;
    const bool failed = !changed && state->probes != held->probes;
    if (began) state->held_wall_ms = wall_ms;
    if (began) state->held_said = false;
    if (began || state->next_ms != held->next_ms) state->next_wall_ms = wall_ms + held->next_ms - now_ms;
    state->held = true;
    state->held_since_ms = held->since_ms;
    state->held_why = held->hold;
    state->next_ms = held->next_ms;
    state->probes = held->probes;
    if ((!changed && !failed) || !may_say(state, held, now_ms)) return;
    if (state->held_said && failed) log_still_paused(held, state, now_ms);
    else log_paused(held, now_ms);
    state->held_said = true;
}

static void note_open(const once_handler_spec *handler, once_handler_state *state, int64_t now_ms)
{
    if (state->held && state->held_said) log_resumed(handler, state, now_ms);
    state->held = false;
}

/* Layout of the fact: for each handler a line, "since next probes cause NAME<tab>reason", where since and next are
 * times of the wall clock in ms. next is 0: with its next message, because none waits. */
static void add_line(once_paused *to, const once_held_view *held, const once_handler_state *state)
{
    const once_bytes name = once__paused_name(held->handler);
    const size_t room = sizeof to->text - to->len;
    const int n =
        snprintf(to->text + to->len, room, "%" PRId64 " %" PRId64 " %" PRIu32 " %s %.*s\t%.*s\n", state->held_wall_ms,
                 held->unmet ? 0 : state->next_wall_ms, state->probes, once_gate_hold_name(held->hold), (int)name.len,
                 name.data, (int)held->reason.len, held->reason.data);
    to->n++;
    if (n < 0 || (size_t)n >= room) { /* no more fit */
        to->text[to->len] = 0;
        return;
    }
    for (char *c = to->text + to->len; c < to->text + to->len + n - 1; c++)
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f) *c = ' '; /* it is shown on a terminal */
    to->len += (size_t)n;
}

static bool same(const once_paused *a, const once_paused *b)
{
    return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

void once__run_report_held(once_run *r) /* @locks: lock */
{
    const once_spec *spec = r->pipeline->spec;
    const int64_t now_ms = once__run_now_ms(r);
    once_paused now = {0};
    once_held_view held = {0};
    size_t at = 0;
    bool more = once_machine_next_held(r->machine, &at, &held);
    if (!more && r->paused.n == 0) return;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        if (!more || held.handler != &spec->handlers[i]) {
            note_open(&spec->handlers[i], &r->handlers[i], now_ms);
            continue;
        }
        note_held(r, &r->handlers[i], &held, now_ms);
        add_line(&now, &held, &r->handlers[i]);
        more = once_machine_next_held(r->machine, &at, &held);
    }
    if (same(&now, &r->paused)) return;
    now.version = r->paused.version + 1;
    r->paused = now;
    once_machine_renew_soon(r->machine, now_ms); /* others read it with the worker's record */
}

/* --- reading it --- */

/* A whole number and the space behind it. */
static bool take_number(const char **at, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(*at, &end, 10);
    if (end == *at || *end != ' ' || errno) return false;
    *at = end + 1;
    return true;
}

/* Up to the character, which must come before the end of the line. */
static bool take_text(const char **at, char upto, once_bytes *out)
{
    const size_t len = strcspn(*at, (const char[]){upto, '\n', 0});
    if ((*at)[len] != upto) return false;
    *out = (once_bytes){*at, len};
    *at += len + 1;
    return true;
}

bool once__paused_next(const char **text, once_paused_line *out)
{
    once_paused_line line = {0};
    int64_t probes = 0;
    const char *at = *text;
    if (!take_number(&at, &line.since_ms) || !take_number(&at, &line.next_ms) || !take_number(&at, &probes) ||
        probes < 0 || !take_text(&at, ' ', &line.cause) || !take_text(&at, '\t', &line.handler) ||
        !take_text(&at, '\n', &line.reason))
        return false;
    line.probes = (uint64_t)probes;
    *out = line;
    *text = at;
    return true;
}

/* " for 12s, next try in 4s" */
static void when_text(const once_paused_line *line, int64_t wall_ms, char *out, size_t size)
{
    char since[ONCE_DURATION_TEXT], next[ONCE_DURATION_TEXT];
    out[0] = 0;
    if (wall_ms == ONCE_NO_TIME) return;
    once_duration_about(wall_ms - line->since_ms, since);
    if (line->next_ms == 0) (void)snprintf(out, size, " for %s, tried with its next message", since);
    else if (line->next_ms <= wall_ms) (void)snprintf(out, size, " for %s, tried now", since);
    else (void)snprintf(out, size, " for %s, next try in %s", since, until_text(line->next_ms, wall_ms, next));
}

void once__paused_text(const once_paused *paused, int64_t wall_ms, char *out, size_t size)
{
    const char *text = paused->text;
    once_paused_line line;
    size_t len = 0;
    out[0] = 0;
    while (len < size && once__paused_next(&text, &line)) {
        char when[80];
        when_text(&line, wall_ms, when, sizeof when);
        const int n = snprintf(out + len, size - len, "%s%.*s%s (%.*s)", len ? ", " : "paused: ", (int)line.handler.len,
                               line.handler.data, when, (int)line.reason.len, line.reason.data);
        if (n < 0) return;
        len += (size_t)n;
    }
}
