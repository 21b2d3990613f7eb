/* Gates (core/gate.h): why a handler is held, when it is probed, and what its rate allows. */
#include "core/gate.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/plant.h"

#include "base/banned.h"

#define RECENT_MS 500
#define QUANTUM_MS 20 /* a rate lets messages begin for so much time at once, so that they share transactions */

void once_gate_init(once_gate *gate, const once_gate_spec *spec)
{
    assert(spec->breaker.of <= ONCE_BREAKER_MOST);
    *gate = (once_gate){.spec = spec, .credit_ms = ONCE_NO_TIME};
}

/* --- the rate --- */

/* So many messages begin together at least. */
static int64_t quantum(const once_rate *rate)
{
    const int64_t n = QUANTUM_MS * (int64_t)rate->n / rate->per_ms;
    return n > 1 ? n : 1;
}

/* A second's worth, at least one message. */
static int64_t most_credit(const once_rate *rate)
{
    const int64_t second = 1000 * (int64_t)rate->n;
    return second > rate->per_ms ? second : rate->per_ms;
}

static int64_t credit_at(const once_gate *gate, int64_t now_ms)
{
    const once_rate *rate = &gate->spec->rate;
    const int64_t most = most_credit(rate);
    if (gate->credit_ms == ONCE_NO_TIME) return quantum(rate) * rate->per_ms;
    const int64_t lacks = most - gate->credit, passed_ms = now_ms > gate->credit_ms ? now_ms - gate->credit_ms : 0;
    return passed_ms > lacks / rate->n ? most : gate->credit + passed_ms * (int64_t)rate->n;
}

static size_t rate_room(const once_gate *gate, int64_t now_ms)
{
    const once_rate *rate = &gate->spec->rate;
    if (rate->n == 0) return SIZE_MAX;
    const int64_t n = credit_at(gate, now_ms) / rate->per_ms;
    return n >= quantum(rate) ? (size_t)n : 0;
}

static int64_t rate_at_ms(const once_gate *gate, int64_t now_ms)
{
    const once_rate *rate = &gate->spec->rate;
    if (rate->n == 0 || rate_room(gate, now_ms)) return ONCE_NEVER;
    const int64_t lacks = quantum(rate) * rate->per_ms - credit_at(gate, now_ms);
    return now_ms + (lacks + rate->n - 1) / rate->n;
}

static void spend(once_gate *gate, int64_t now_ms)
{
    if (gate->spec->rate.n == 0) return;
    gate->credit = credit_at(gate, now_ms) - gate->spec->rate.per_ms;
    gate->credit_ms = now_ms;
}

/* --- room --- */

static bool may_probe(const once_gate *gate, int64_t now_ms)
{
    return (!gate->probe || ONCE_PLANTED(many_probes)) && now_ms >= gate->at_ms && !ONCE_PLANTED(never_resumed);
}

size_t once_gate_room(const once_gate *gate, int64_t now_ms)
{
    const size_t room = rate_room(gate, now_ms);
    if (!once_gate_is_held(gate)) return room;
    if (!may_probe(gate, now_ms)) return 0;
    if (ONCE_PLANTED(many_probes)) return room;
    return room > 0;
}

int64_t once_gate_at_ms(const once_gate *gate, int64_t now_ms)
{
    if (!once_gate_is_held(gate)) return rate_at_ms(gate, now_ms);
    if (gate->probe) return ONCE_NEVER;
    return now_ms < gate->at_ms ? gate->at_ms : rate_at_ms(gate, now_ms);
}

void once_gate_begin(once_gate *gate, const void *who, int64_t now_ms)
{
    assert(who);
    spend(gate, now_ms);
    if (once_gate_is_held(gate) && !gate->probe) gate->probe = who;
}

void once_gate_keep_probe(once_gate *gate, const void *who, int64_t at_ms)
{
    if (!once_gate_is_held(gate) || gate->probe) return;
    gate->probe = who;
    gate->at_ms = at_ms;
}

void once_gate_forget(once_gate *gate, const void *who)
{
    if (gate->probe == who) gate->probe = NULL;
}

void once_gate_undo(once_gate *gate, const void *who)
{
    if (gate->spec->rate.n) gate->credit += gate->spec->rate.per_ms;
    once_gate_forget(gate, who);
}

/* --- the reasons of dead letters --- */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || (c & 0x80);
}

/* The end of what is quoted from `at` on; `at` itself: nothing is. An apostrophe inside of a word is no quote. */
static size_t quoted_upto(once_bytes text, size_t at)
{
    const char quote = text.data[at];
    if ((quote != '\'' && quote != '"') || (at > 0 && is_word(text.data[at - 1]))) return at;
    for (size_t i = at + 1; i < text.len; i++)
        if (text.data[i] == quote && (i + 1 == text.len || !is_word(text.data[i + 1]))) return i + 1;
    return text.len;
}

static size_t word_upto(once_bytes text, size_t at, bool *digits)
{
    *digits = false;
    for (; at < text.len && is_word(text.data[at]); at++) *digits |= text.data[at] >= '0' && text.data[at] <= '9';
    return at;
}

static uint32_t mix(uint32_t hash, char c) { return (hash ^ (unsigned char)c) * UINT32_C(16777619); }

uint32_t once_gate_fold(once_bytes reason)
{
    uint32_t hash = UINT32_C(2166136261);
    if (reason.len > ONCE_GATE_REASON) reason.len = ONCE_GATE_REASON;
    for (size_t at = 0; at < reason.len;) {
        bool digits;
        const size_t quoted = quoted_upto(reason, at), word = word_upto(reason, at, &digits);
        if (quoted > at) {
            hash = mix(hash, '\'');
            at = quoted;
        } else if (word > at && digits) {
            hash = mix(hash, '0');
            at = word;
        } else if (word > at) {
            for (; at < word; at++) hash = mix(hash, reason.data[at]);
        } else {
            hash = mix(hash, reason.data[at++]);
        }
    }
    return hash ? hash : 1;
}

static uint32_t dead_most(const once_gate *gate)
{
    const uint32_t most = (gate->spec->dead_share * ONCE_DEAD_OUTCOMES + 99) / 100;
    return gate->spec->dead_share == 0 || ONCE_PLANTED(storm_buried) ? UINT32_MAX : most;
}

static void window_add(once_dead_window *window, uint32_t reason)
{
    window->reasons[window->at] = reason;
    window->at = (window->at + 1) % ONCE_DEAD_OUTCOMES;
}

static uint32_t window_count(const once_dead_window *window, uint32_t reason)
{
    uint32_t n = 0;
    for (size_t i = 0; i < ONCE_DEAD_OUTCOMES; i++) n += window->reasons[i] == reason;
    return n;
}

bool once_gate_spares(const once_gate *gate, once_bytes reason)
{
    return gate->hold == ONCE_GATE_DEAD && once_gate_fold(reason) == gate->storm;
}

/* --- held, and open again --- */

static int64_t longest_ms(const once_gate *gate)
{
    if (gate->hold == ONCE_GATE_UNABLE) return ONCE_GATE_UNABLE_LONGEST_MS;
    return gate->costly ? ONCE_GATE_COSTLY_LONGEST_MS : ONCE_GATE_LONGEST_MS;
}

/* The next probe comes after half to all of the interval, so that several workers do not probe together. */
static void wait(once_gate *gate, int64_t now_ms, const once_env *env)
{
    const int64_t half_ms = gate->interval_ms / 2;
    gate->at_ms = now_ms + half_ms + (int64_t)(once_env_random_u64(env) % (uint64_t)(half_ms + 1));
}

/* The breaker begins anew. The last letters still count: where only some messages die of a reason, one that does not
 * opens the gate, and each time as many would be buried again as the limit allows. */
static void open_again(once_gate *gate)
{
    gate->hold = ONCE_GATE_OPEN;
    gate->probe = NULL;
    gate->ended = gate->failures = gate->next = 0;
}

static void hold(once_gate *gate, once_gate_hold why, const once_ended *how, int64_t now_ms, const once_env *env)
{
    assert(why != ONCE_GATE_OPEN);
    const bool was_held = once_gate_is_held(gate);
    const bool same = gate->hold == why;
    gate->hold = why;
    gate->costly = why == ONCE_GATE_BREAKER && how->held;
    gate->status = how->status;
    (void)snprintf(gate->reason, sizeof gate->reason, "%.*s",
                   how->reason.len < sizeof gate->reason ? (int)how->reason.len : (int)sizeof gate->reason - 1,
                   how->reason.data ? how->reason.data : "");
    if (was_held && same) return;
    if (!was_held) {
        gate->since_ms = now_ms;
        gate->probes = 0;
    }
    gate->interval_ms = why == ONCE_GATE_UNABLE ? ONCE_GATE_UNABLE_FIRST_MS : ONCE_GATE_FIRST_MS;
    wait(gate, now_ms, env);
}

static void probe_failed(once_gate *gate, int64_t now_ms, const once_env *env)
{
    gate->interval_ms = 2 * gate->interval_ms < longest_ms(gate) ? 2 * gate->interval_ms : longest_ms(gate);
    wait(gate, now_ms, env);
}

static bool is_failure(once_outcome outcome) { return outcome == ONCE_RETRY || outcome == ONCE_UNKNOWN; }

static bool opens(const once_gate *gate, const once_ended *how)
{
    if (how->status != ONCE_OK) return false;
    const bool answers = !is_failure(how->outcome) && how->outcome != ONCE_RELEASE;
    switch (gate->hold) {
    case ONCE_GATE_UNABLE: return true;
    case ONCE_GATE_PAUSED: return how->outcome != ONCE_RELEASE;
    case ONCE_GATE_BREAKER: return answers;
    default: return answers && !how->dead;
    }
}

/* Of many calls in flight those that get no answer end together, when their time is over: a row of failures, in the
 * midst of others that are answered. So the share is reached only if it is also reached in the last half or whole
 * second, however many end in that. */
static bool recently_fails(once_gate *gate, bool failed, int64_t now_ms)
{
    struct once_recent *recent = gate->recent;
    if (now_ms - gate->recent_ms >= RECENT_MS) {
        recent[0] = now_ms - gate->recent_ms < 2 * RECENT_MS ? recent[1] : (struct once_recent){0};
        recent[1] = (struct once_recent){0};
        gate->recent_ms = now_ms;
    }
    recent[1].ended++;
    recent[1].failed += failed;
    return (recent[0].failed + recent[1].failed) * 100 >=
           gate->spec->breaker.share * (recent[0].ended + recent[1].ended);
}

/* Whether too many of the last outcomes are failures. */
static bool breaks(once_gate *gate, bool failed, int64_t now_ms)
{
    const once_breaker *breaker = &gate->spec->breaker;
    if (breaker->of == 0) return false;
    const bool recently = recently_fails(gate, failed, now_ms);
    if (gate->ended == breaker->of) gate->failures -= gate->failed[gate->next];
    else gate->ended++;
    gate->failures += failed;
    gate->failed[gate->next] = failed;
    gate->ended_ms[gate->next] = now_ms;
    gate->next = (gate->next + 1) % breaker->of;
    /* The oldest of them is where the next one goes. */
    return failed && recently && gate->ended == breaker->of && gate->failures * 100 >= breaker->share * breaker->of &&
           now_ms - gate->ended_ms[gate->next] <= breaker->within_ms && !ONCE_PLANTED(breaker_shut);
}

/* Its place among those that were refused; n_pausers: it was not, or that is long ago. */
static uint32_t find_pauser(const once_gate *gate, uint64_t id)
{
    uint32_t i = 0;
    while (i < gate->n_pausers && gate->pausers[i].id != id) i++;
    return i;
}

bool once_gate_blames(const once_gate *gate, uint64_t id)
{
    const uint32_t i = once_gate_is_held(gate) ? gate->n_pausers : find_pauser(gate, id);
    return i < gate->n_pausers && gate->pausers[i].cleared;
}

/* Where too many are refused, any of them gives way: they come again in the order in which they came, and the oldest
 * one would be forgotten just before its turn. */
static void note_pauser(once_gate *gate, const once_ended *how, const once_env *env)
{
    if (how->status != ONCE_E_DENIED || find_pauser(gate, how->id) < gate->n_pausers) return;
    const bool full = gate->n_pausers == ONCE_GATE_PAUSERS;
    struct once_pauser *pauser =
        &gate->pausers[full ? once_env_random_u64(env) % ONCE_GATE_PAUSERS : gate->n_pausers++];
    if (!full || pauser->cleared) gate->n_uncleared++;
    *pauser = (struct once_pauser){.id = how->id};
}

/* It was blamed. The next time that takes another answer: perhaps nobody gets through any more. */
static void use_up_blame(once_gate *gate, uint64_t id)
{
    const uint32_t i = find_pauser(gate, id);
    if (i == gate->n_pausers || !gate->pausers[i].cleared) return;
    gate->pausers[i].cleared = false;
    gate->n_uncleared++;
}

static void clear_pausers(once_gate *gate)
{
    if (gate->n_uncleared == 0) return;
    for (uint32_t i = 0; i < gate->n_pausers; i++) gate->pausers[i].cleared = true;
    gate->n_uncleared = 0;
}

static void heed_status(once_gate *gate, const once_ended *how, int64_t now_ms, const once_env *env)
{
    const bool pause = once_status_class(how->status) == ONCE_CLASS_PAUSE;
    hold(gate, pause ? ONCE_GATE_PAUSED : ONCE_GATE_UNABLE, how, now_ms, env);
}

/* It was under way when its gate was held, and says that somebody must act. */
static bool is_worse(const once_gate *gate, const once_ended *how)
{
    return gate->hold != ONCE_GATE_PAUSED && once_status_class(how->status) == ONCE_CLASS_PAUSE;
}

/* Counts it among the last outcomes. True: too many of them are dead letters with its reason. */
static bool storms(once_gate *gate, const once_ended *how)
{
    const uint32_t reason = how->dead ? once_gate_fold(how->reason) : 0;
    window_add(&gate->dead, reason);
    return reason && window_count(&gate->dead, reason) >= dead_most(gate);
}

static void hold_storm(once_gate *gate, const once_ended *how, int64_t now_ms, const once_env *env)
{
    once_ended why = *how;
    why.status = ONCE_E_MESSAGE;
    gate->storm = once_gate_fold(how->reason);
    hold(gate, ONCE_GATE_DEAD, &why, now_ms, env);
}

static void heed_outcome(once_gate *gate, const once_ended *how, int64_t now_ms, const once_env *env)
{
    /* What was under way when the gate was held may have begun before the others were refused. */
    if (!once_gate_is_held(gate) && !how->asked && !is_failure(how->outcome) && how->outcome != ONCE_RELEASE)
        clear_pausers(gate);
    if (is_failure(how->outcome)) use_up_blame(gate, how->id);
    const bool storm = !how->unjudged && storms(gate, how);
    const bool broken = breaks(gate, is_failure(how->outcome), now_ms);
    if (once_gate_is_held(gate)) return; /* it knows why */
    if (storm) {
        hold_storm(gate, how, now_ms, env);
    } else if (broken) {
        once_ended why = *how;
        why.status = ONCE_E_UNAVAILABLE;
        hold(gate, ONCE_GATE_BREAKER, &why, now_ms, env);
    }
}

static bool says_nothing(const once_gate *gate, const once_ended *how)
{
    return how->asked && how->status == ONCE_OK && !is_failure(how->outcome) && gate->hold != ONCE_GATE_UNABLE;
}

void once_gate_ended(once_gate *gate, const once_ended *how, int64_t now_ms, const once_env *env)
{
    assert(how->who && (unsigned)how->outcome < ONCE_OUTCOMES);
    if (says_nothing(gate, how)) {
        once_gate_forget(gate, how->who);
        return;
    }
    const bool was_held = once_gate_is_held(gate), probe = was_held && gate->probe == how->who;
    if (probe) {
        gate->probe = NULL;
        gate->probes++;
        gate->costly = gate->hold == ONCE_GATE_BREAKER && how->held;
        if (opens(gate, how)) open_again(gate);
        else probe_failed(gate, now_ms, env);
    }
    note_pauser(gate, how, env);
    if (how->status == ONCE_OK) heed_outcome(gate, how, now_ms, env);
    else if (!was_held || probe || is_worse(gate, how)) heed_status(gate, how, now_ms, env);
}

void once_gate_judged(once_gate *gate, const once_ended *how, int64_t now_ms, const once_env *env)
{
    if (storms(gate, how) && !once_gate_is_held(gate)) hold_storm(gate, how, now_ms, env);
}

/* --- effects inside of a transaction --- */

void once_gate_begin_pass(once_gate *gate)
{
    if (gate->in_pass) gate->probe = NULL;
    gate->credit += gate->in_pass * gate->spec->rate.per_ms;
    gate->in_pass = 0;
    gate->tried = false;
}

void once_gate_begin_inside(once_gate *gate, const void *who, int64_t now_ms)
{
    once_gate_begin(gate, who, now_ms);
    gate->in_pass++;
}

bool once_gate_try(once_gate *gate, once_bytes reason)
{
    const uint32_t hash = reason.len ? once_gate_fold(reason) : 0;
    if (!gate->tried) gate->trial = gate->dead;
    gate->tried = true;
    window_add(&gate->trial, hash);
    return hash && (once_gate_spares(gate, reason) || window_count(&gate->trial, hash) >= dead_most(gate));
}

void once_gate_end_pass(once_gate *gate)
{
    gate->in_pass = 0;
    gate->tried = false;
}

/* --- in words --- */

const char *once_gate_hold_name(once_gate_hold hold)
{
    static const char *const names[] = {[ONCE_GATE_OPEN] = "open",
                                        [ONCE_GATE_PAUSED] = "pause",
                                        [ONCE_GATE_UNABLE] = "unable",
                                        [ONCE_GATE_BREAKER] = "breaker",
                                        [ONCE_GATE_DEAD] = "dead_limit"};
    assert((unsigned)hold < sizeof names / sizeof *names);
    return names[hold];
}

/* --- of all handlers --- */

bool once_gates_init(once_gates *gates, const once_spec *spec)
{
    *gates = (once_gates){.spec = spec, .at = calloc(spec->n_handlers + 1, sizeof *gates->at)};
    if (!gates->at) return false;
    for (size_t i = 0; i < spec->n_handlers; i++) {
        once_gate_init(&gates->at[i], &spec->handlers[i].gate);
        gates->has_rates |= spec->handlers[i].gate.rate.n > 0;
    }
    return true;
}

void once_gates_release(once_gates *gates)
{
    free(gates->at);
    *gates = (once_gates){0};
}

bool once_gates_are_wide(const once_gates *gates)
{
    for (size_t i = 0; i < gates->spec->n_handlers; i++)
        if (!once_gate_is_wide(&gates->at[i])) return false;
    return true;
}

int64_t once_gates_at_ms(const once_gates *gates, int64_t now_ms)
{
    int64_t at_ms = ONCE_NEVER;
    for (size_t i = 0; i < gates->spec->n_handlers; i++) {
        const int64_t gate_ms = once_gate_at_ms(&gates->at[i], now_ms);
        if (gate_ms < at_ms) at_ms = gate_ms;
    }
    return at_ms;
}

void once_gates_begin_pass(once_gates *gates)
{
    for (size_t i = 0; i < gates->spec->n_handlers; i++) once_gate_begin_pass(&gates->at[i]);
}

void once_gates_end_pass(once_gates *gates)
{
    for (size_t i = 0; i < gates->spec->n_handlers; i++) once_gate_end_pass(&gates->at[i]);
}
