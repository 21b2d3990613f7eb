/* The ack executor: acks finished deliveries, extends those that are still worked on, and releases streams.
 *
 * A delivery is over when the transaction that ended its message is committed. Deliveries that expire are extended
 * after a third of their time, all those of a stream in one round, wherever their messages are. Between two calls of a
 * round finished deliveries are acked, unless others would expire meanwhile. A revoked stream is released when nothing
 * of it is in a transaction and its acks are answered, or at its deadline. Only one call is out at a time, so an ack or
 * an extension that blocks delays the release, and must return in time (source/source.h). */
#include "core/machine_impl.h"

#include <assert.h>

#include "core/plant.h"

#include "base/banned.h"

/* The i-th stream from the one whose turn it is; NULL: none, or it is released. */
static once_stream *at_turn(const once_machine *machine, uint32_t i)
{
    assert(i < machine->streams.n);
    once_stream *stream = machine->streams.at[(machine->acks.turn + i) % machine->streams.n];
    return stream && !stream->released ? stream : NULL;
}

bool once__machine_has_acks(const once_machine *machine)
{
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        const once_stream *stream = at_turn(machine, i);
        if (stream && !stream->let_go && once_stream_has_acks(stream)) return true;
    }
    return false;
}

static once_action *emit(once_machine *machine, once_action_kind kind, size_t n)
{
    assert(!machine->acks.out && n <= RECEIPTS_MAX);
    machine->acks.action = (once_action){.kind = kind, .receipts = machine->acks.list, .n = n};
    machine->acks.out = true;
    return &machine->acks.action;
}

static void add_receipt(once_machine *machine, size_t n, once_stream *stream, uint64_t tag)
{
    assert(n < RECEIPTS_MAX && !stream->let_go);
    machine->acks.list[n] = (once_receipt){.stream = stream->number, .delivery = once_stream_at(stream, tag)->delivery};
    machine->acks.asked[n].stream = stream;
    machine->acks.asked[n].tag = tag;
}

/* --- acks --- */

/* Whether acks wait for more that they can cover. They do not if nothing more would come, if somebody waits for them,
 * or if a stream would be paused because of deliveries that are not acked. */
static bool acks_wait(const once_machine *machine, int64_t now_ms)
{
    if (now_ms >= machine->acks.next_ms || machine->end.stopping) return false;
    if (machine->source.open == 0 || machine->streams.leaving) return false;
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        const once_stream *stream = at_turn(machine, i);
        if (stream && once_stream_outstanding(stream) >= OUTSTANDING / 2 * machine->batch_max) return false;
    }
    return true;
}

static once_action *ack(once_machine *machine, int64_t now_ms)
{
    size_t n = 0;
    if (acks_wait(machine, now_ms)) return NULL;
    for (uint32_t i = 0; i < machine->streams.n && n < RECEIPTS_MAX; i++) {
        once_stream *stream = at_turn(machine, i);
        if (!stream || stream->let_go) continue;
        for (uint64_t tag; n < RECEIPTS_MAX && (tag = once_stream_next_ack(stream)) != 0;) {
            if (ONCE_PLANTED(ack_goes_back) && machine->acks.tries && !stream->single) tag = stream->acked + 1;
            add_receipt(machine, n++, stream, tag);
            if (!stream->single) break;
        }
    }
    if (n == 0) return NULL;
    machine->acks.turn++;
    machine->acks.acks_next = false;
    machine->acks.next_ms = now_ms + machine->o.ack_pause_ms;
    return emit(machine, ONCE_ACT_ACK, n);
}

static void acked(once_machine *machine, const once_action *action)
{
    for (size_t i = 0; i < action->n; i++) {
        once_stream *stream = machine->acks.asked[i].stream;
        const uint64_t tag = machine->acks.asked[i].tag;
        const once_receipt_answer answer = action->receipts[i].answer;
        if (action->status != ONCE_OK && answer == ONCE_RECEIPT_OPEN) {
            once_stream_not_acked(stream, tag);
            continue;
        }
        const uint64_t from = stream->single ? tag : stream->acked + 1;
        if (answer == ONCE_RECEIPT_GONE) {
            machine->source.gone += tag + 1 - from;
        } else {
            once__machine_note_acked(machine, stream, from, tag);
            machine->counts.acked += tag + 1 - from;
        }
        once_stream_acked(stream, tag);
    }
}

/* --- deliveries that expire --- */

static bool can_extend(const once_stream *stream)
{
    return stream && !stream->let_go && stream->state != ONCE_STREAM_LOST && stream->expires_ms > 0;
}

/* The next deliveries of the stream's round, as many as there is room for. */
static once_action *extend_round(once_machine *machine, once_stream *stream)
{
    size_t n = 0;
    uint64_t tag = stream->extend_from;
    for (; tag != ONCE_ROUND_END && n < RECEIPTS_MAX; tag = once_stream_after(stream, tag)) {
        const once_delivery_state *t = once_stream_at(stream, tag);
        if (t->over || !t->item || t->last || t->round == stream->round) continue;
        add_receipt(machine, n++, stream, tag);
    }
    stream->extend_from = tag;
    if (n) return emit(machine, ONCE_ACT_EXTEND_DELIVERIES, n);
    stream->extend_from = 0;
    if (once_stream_all_over(stream)) stream->extend_at_ms = ONCE_NEVER;
    return NULL;
}

static once_action *extend_deliveries(once_machine *machine, int64_t now_ms)
{
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        once_stream *stream = at_turn(machine, i);
        if (!can_extend(stream) || ONCE_PLANTED(deliveries_not_extended)) continue;
        if (!stream->extend_from && now_ms >= stream->extend_at_ms) { /* a round begins */
            stream->extend_from = once_stream_first(stream);
            if (++stream->round == 0) stream->round = 1; /* 0 means: in no round */
            stream->extend_at_ms = now_ms + once_stream_extends_after_ms(stream);
        }
        if (!stream->extend_from) continue;
        once_action *action = extend_round(machine, stream);
        if (!action) continue;
        machine->acks.turn++;
        machine->acks.acks_next = true;
        return action;
    }
    return NULL;
}

/* The round should have begun a third of the time ago, or began that long ago and is not finished: deliveries that it
 * has not reached come near their end. */
static bool is_late(const once_stream *stream, int64_t now_ms)
{
    if (stream->extend_at_ms == ONCE_NEVER || stream->extend_from == ONCE_ROUND_END) return false;
    const int64_t more_ms = stream->extend_from ? 0 : once_stream_extends_after_ms(stream);
    return now_ms >= stream->extend_at_ms + more_ms;
}

static bool deliveries_expire(const once_machine *machine, int64_t now_ms)
{
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        const once_stream *stream = at_turn(machine, i);
        if (can_extend(stream) && is_late(stream, now_ms)) return true;
    }
    return false;
}

static void deliveries_extended(once_machine *machine, const once_action *action, int64_t now_ms)
{
    for (size_t i = action->n; i > 0;
         i--) { /* from the last on, so that items at the front of a queue keep their order */
        once_stream *stream = machine->acks.asked[i - 1].stream;
        const uint64_t tag = machine->acks.asked[i - 1].tag;
        const once_receipt_answer answer = action->receipts[i - 1].answer;
        if (action->status != ONCE_OK && answer == ONCE_RECEIPT_OPEN) {
            stream->extend_from = tag;
            continue;
        }
        if (stream->let_go) continue;
        once_delivery_state *t = once_stream_at(stream, tag); /* still there: no ack was out meanwhile */
        t->round = stream->round;
        t->last = answer == ONCE_RECEIPT_LAST;
        if (t->over || !t->item) continue; /* it ended meanwhile; its ack will be counted */
        machine->source.gone += answer == ONCE_RECEIPT_GONE;
        if (answer == ONCE_RECEIPT_GONE) once__machine_lose_delivery(machine, t->item, now_ms);
        else if (answer == ONCE_RECEIPT_LAST && !ONCE_PLANTED(last_ignored))
            once__machine_give_to_store(machine, t->item);
    }
}

/* --- streams --- */

static bool may_release(const once_machine *machine, const once_stream *stream, int64_t now_ms)
{
    if (machine->acks.release_all || stream->let_go) return true;
    if (stream->state == ONCE_STREAM_ASSIGNED) return false;
    if (now_ms >= stream->release_by_ms && !ONCE_PLANTED(deadline_ignored)) return true;
    const bool in_tx = stream->at[ONCE_AT_WORK] > 0 && !ONCE_PLANTED(released_early);
    return !in_tx && !once_stream_has_acks(stream);
}

static once_action *release(once_machine *machine, int64_t now_ms)
{
    for (uint32_t i = 0; (machine->streams.leaving || machine->acks.release_all) && i < machine->streams.n; i++) {
        once_stream *stream = at_turn(machine, i);
        if (!stream || now_ms < stream->release_at_ms || !may_release(machine, stream, now_ms)) continue;
        if (stream->state != ONCE_STREAM_ASSIGNED && !stream->let_go) once__machine_let_stream_go(machine, stream);
        machine->acks.releasing = stream;
        once_action *action = emit(machine, ONCE_ACT_RELEASE, 0);
        action->stream = stream->number;
        return action;
    }
    return NULL;
}

once_action *once__machine_ack_action(once_machine *machine, int64_t now_ms)
{
    if (machine->acks.out || machine->end.ended) return NULL;
    once_action *action = release(machine, now_ms);
    if (action || now_ms < machine->acks.at_ms) return action;
    /* In turn: during a round of many extensions, finished deliveries must not expire before their ack. */
    if (machine->acks.acks_next && !deliveries_expire(machine, now_ms)) action = ack(machine, now_ms);
    if (!action) action = extend_deliveries(machine, now_ms);
    return action ? action : ack(machine, now_ms);
}

/* When there may be something to do without an event; ONCE_NEVER: nothing. */
int64_t once__machine_ack_at_ms(const once_machine *machine, int64_t now_ms)
{
    int64_t release_ms = ONCE_NEVER, at_ms = ONCE_NEVER;
    for (uint32_t i = 0; !machine->acks.out && i < machine->streams.n; i++) {
        const once_stream *stream = at_turn(machine, i);
        if (!stream) continue;
        if (can_extend(stream) && stream->extend_at_ms < at_ms) at_ms = stream->extend_at_ms;
        const int64_t leave_ms = stream->let_go ? stream->release_at_ms : stream->release_by_ms;
        if (leave_ms < release_ms) release_ms = leave_ms;
    }
    if (!machine->acks.out && acks_wait(machine, now_ms) && machine->acks.next_ms < at_ms &&
        once__machine_has_acks(machine))
        at_ms = machine->acks.next_ms;
    if (machine->acks.at_ms > now_ms) at_ms = machine->acks.at_ms; /* it failed */
    return release_ms < at_ms ? release_ms : at_ms;
}

int64_t once_machine_acks_at_ms(const once_machine *machine, int64_t now_ms)
{
    if (machine->acks.out || machine->end.ended || !acks_wait(machine, now_ms)) return now_ms;
    for (uint32_t i = 0; i < machine->streams.n; i++)
        if (can_extend(at_turn(machine, i))) return now_ms;
    return once__machine_has_acks(machine) ? machine->acks.next_ms : ONCE_NEVER;
}

bool once_machine_wakes_acks(once_machine *machine)
{
    if (!machine->acks.release_all || machine->acks.woken) return false;
    machine->acks.woken = true;
    return true;
}

/* The longest pause after a failure. With one that is long against the time of a delivery, the delivery would be lost.
 * */
static int64_t longest_pause_ms(const once_machine *machine)
{
    int64_t longest_ms = ONCE_NEVER;
    for (uint32_t i = 0; i < machine->streams.n; i++) {
        const once_stream *stream = at_turn(machine, i);
        if (!can_extend(stream)) continue;
        const int64_t pause_ms = stream->expires_ms / ONCE_PAUSES_OF_LEASE + 1;
        if (pause_ms < longest_ms) longest_ms = pause_ms;
    }
    return longest_ms;
}

static void failed(once_machine *machine, const once_action *action, int64_t now_ms)
{
    machine_acks *acks = &machine->acks;
    const bool release = action->kind == ONCE_ACT_RELEASE;
    /* If the number was given to another stream, the release did happen. At the end of the run the source is closed. */
    if (release && (machine->end.stopping || machine->streams.at[action->stream] != acks->releasing)) {
        once__machine_stream_released(machine, acks->releasing);
        return;
    }
    if (acks->tries == 0) acks->failing_since_ms = now_ms;
    once__machine_worth_another_try(machine, action->status, &action->error, &acks->tries,
                                    release ? &acks->releasing->release_at_ms : &acks->at_ms, acks->failing_since_ms,
                                    now_ms, longest_pause_ms(machine));
}

void once__machine_acked(once_machine *machine, once_action *action, int64_t now_ms)
{
    if (action->kind == ONCE_ACT_ACK) acked(machine, action);
    if (action->kind == ONCE_ACT_EXTEND_DELIVERIES) deliveries_extended(machine, action, now_ms);
    if (action->status != ONCE_OK) {
        failed(machine, action, now_ms);
    } else {
        machine->acks.tries = 0;
        if (action->kind == ONCE_ACT_RELEASE) once__machine_stream_released(machine, machine->acks.releasing);
    }
    if (action->kind == ONCE_ACT_RELEASE) machine->acks.releasing = NULL;
}
