/* Logs that fetching pauses because waiting_max is reached, and that it resumes. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/log.h"
#include "runtime/executor.h"

#include "base/banned.h"

enum { SIZE_TEXT = 32, MORE_TEXT = 256 };

static const char *format_bytes(uint64_t bytes, char out[SIZE_TEXT])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double n = (double)bytes;
    size_t unit = 0;
    while (n >= 1024 && unit + 1 < sizeof units / sizeof *units) n /= 1024, unit++;
    (void)snprintf(out, SIZE_TEXT, unit ? "%.1f %s" : "%.0f %s", n, units[unit]);
    return out;
}

/* What they wait for, as far as that is known here. */
static const char *format_more(const once_machine *machine, uint64_t without_slot, char out[MORE_TEXT])
{
    size_t at = 0;
    once_held_view held;
    int len = 0;
    out[0] = 0;
    if (without_slot)
        len = snprintf(out, MORE_TEXT, ", %" PRIu64 " more wait for a free slot of their handler", without_slot);
    if (!once_machine_next_held(machine, &at, &held)) return out;
    const once_bytes name = held.handler->type.len ? held.handler->type : held.handler->operation;
    (void)snprintf(out + len, MORE_TEXT - (size_t)len, ", handler '%.*s' is paused",
                   name.len < 100 ? (int)name.len : 100, name.data);
    return out;
}

static bool reached(const once_spec *spec, const once_waiting_size *size)
{
    return spec->waiting_max.messages && size->messages >= spec->waiting_max.messages;
}

/* The limit that was reached: messages, or bytes. */
static void format_bound(const once_spec *spec, const once_waiting_size *size, char out[SIZE_TEXT + 16])
{
    assert(spec->waiting_max.messages || spec->waiting_max.bytes);
    char bytes[SIZE_TEXT];
    if (reached(spec, size) || !spec->waiting_max.bytes)
        (void)snprintf(out, SIZE_TEXT + 16, "%" PRIu64 " messages", spec->waiting_max.messages);
    else (void)snprintf(out, SIZE_TEXT + 16, "%s", format_bytes(spec->waiting_max.bytes, bytes));
}

enum { LONG_MS = 10 * 1000, LONGEST_MS = 5 * 60 * 1000 };

static bool begins(once_fetch_pause *said, int64_t now_ms)
{
    assert(!said->paused && !said->warned);
    if (!said->long_ms || now_ms - said->since_ms >= said->long_ms) said->long_ms = LONG_MS;
    said->paused = true;
    said->since_ms = now_ms;
    return true;
}

static bool ends(once_fetch_pause *said, int64_t now_ms, bool *warn)
{
    assert(said->paused);
    *warn = said->warned;
    said->paused = said->warned = false;
    said->since_ms = now_ms;
    return true;
}

bool once__fetch_pause_news(once_fetch_pause *said, bool full, int64_t now_ms, bool *warn)
{
    *warn = false;
    if (full && !said->paused) return begins(said, now_ms);
    if (!full) return said->paused && ends(said, now_ms, warn);
    if (said->warned || now_ms - said->since_ms < said->long_ms) return false;
    *warn = said->warned = true;
    said->long_ms = said->long_ms < LONGEST_MS / 2 ? said->long_ms * 2 : LONGEST_MS;
    return true;
}

void once__log_fetch_pause(once_fetch_pause *said, const once_machine *machine, const once_spec *spec, int64_t now_ms)
{
    once_waiting_size size;
    uint64_t without_slot;
    bool warn;
    char bytes[SIZE_TEXT], bound[SIZE_TEXT + 16], more[MORE_TEXT];
    const bool full = once_machine_full(machine, &size, &without_slot);
    if (!once__fetch_pause_news(said, full, now_ms, &warn)) return;
    format_bound(spec, &size, bound);
    if (full)
        once_log(warn ? ONCE_LOG_WARN : ONCE_LOG_DEBUG, "fetch_paused",
                 "fetching is paused: %" PRIu64
                 " messages (%s) wait in the store%s, and waiting_max is %s; fetching resumes when there is room "
                 "again. If that takes too long, 'once list --waiting' shows what they wait for; make the handlers "
                 "faster, or raise waiting_max",
                 size.messages, format_bytes(size.bytes, bytes), format_more(machine, without_slot, more), bound);
    else
        once_log(warn ? ONCE_LOG_WARN : ONCE_LOG_DEBUG, "fetch_resumed",
                 "fetching resumes: %" PRIu64 " messages (%s) wait in the store", size.messages,
                 format_bytes(size.bytes, bytes));
}

void once__fetch_pause_text(const once_machine *machine, char out[ONCE_WAITING_TEXT])
{
    once_waiting_size size;
    uint64_t without_slot;
    char more[MORE_TEXT];
    if (once_machine_full(machine, &size, &without_slot))
        (void)snprintf(out, ONCE_WAITING_TEXT,
                       "fetching is paused: %" PRIu64 " wait in the store%s, as many as waiting_max allows",
                       size.messages, format_more(machine, without_slot, more));
    else out[0] = 0;
}
