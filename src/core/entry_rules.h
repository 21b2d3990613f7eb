/* What the files with the rules of an entry share (entry*.c, lane*.c). Other files use core/entry.h.
 *
 * A function that changes something returns a set of once_change, as the rules do. */
#ifndef ONCE_CORE_ENTRY_RULES_H
#define ONCE_CORE_ENTRY_RULES_H

#include <assert.h>

#include "core/entry.h"

/* A time `delay_ms` from now; ONCE_NEVER where that is beyond all times, as for a delay of ONCE_FOREVER. */
static inline int64_t once__later_than(int64_t now_ms, int64_t delay_ms)
{
    int64_t sum;
    assert(delay_ms >= 0);
    return __builtin_add_overflow(now_ms, delay_ms, &sum) ? ONCE_NEVER : sum;
}

/* How long it is until a due time; 0: it has passed. */
static inline int64_t once__until(int64_t due_ms, int64_t now_ms)
{
    if (due_ms == ONCE_NEVER) return ONCE_NEVER;
    return due_ms > now_ms ? due_ms - now_ms : 0;
}

static inline int64_t once__one_more(int64_t n) { return n < INT64_MAX ? n + 1 : INT64_MAX; }

/* entry.c: states, and the life of an entry */
void once__entry_move(once_entry *entry, once_state to, int64_t due_ms, int64_t now_ms);
bool once__entry_is_absent(const once_entry *entry, int64_t now_ms);
int64_t once__entry_failing_for(const once_entry *entry, int64_t now_ms);
void once__entry_begin(once_entry *entry, const once_lane *lane, const once_request *r, int64_t now_ms);
void once__entry_unexpire(once_entry *entry);
void once__entry_attach(once_entry *entry, const once_message *message);
void once__entry_detach(once_entry *entry);
void once__entry_note_sent(once_entry *entry, const once_request *r, int64_t now_ms);
void once__entry_finish(once_entry *entry, once_state state, int64_t remember_ms, int64_t sent_ms, int64_t now_ms);
void once__entry_count_failure(once_entry *entry, int64_t now_ms);
void once__entry_reset_failures(once_entry *entry);
void once__entry_start(once_entry *entry, once_token token, int64_t lease_ms, bool orphan, int64_t now_ms);
bool once__entry_may_be_asked(const once_entry *entry);
int once__entry_frees_lane(const once_entry *entry);
int once__entry_become_unknown(once_entry *entry, int64_t now_ms, once_decision *out);
int once__entry_leave(once_entry *entry, once_lane *lane, bool natural);

/* lane.c: versions, order, blocking */
bool once__lane_is_same_operation(const once_lane *lane, const once_scope *scope);
int64_t once__lane_end(const once_lane *lane);
bool once__lane_next(const once_lane *lane, int64_t *next);
bool once__lane_blocks(const once_lane *lane, int64_t order);
bool once__lane_is_passed(const once_lane *lane, int64_t order);
bool once__lane_was_waited_for(const once_lane *lane, const once_entry *entry);
bool once__lane_waits_for_missing(const once_lane *lane, const once_entry *entry);
once_answer once__lane_answer(const once_lane *lane, bool is_new, bool natural, bool versioned, int64_t order,
                              int64_t gap_ms);
once_answer once__lane_judge_equal(const once_lane *lane, once_hash id, const once_scope *scope, once_hash fingerprint);
int64_t once__entry_gap_of(const once_entry *entry);
once_answer once__lane_answer_to_known(const once_lane *lane, const once_entry *entry);
void once__lane_begin(once_lane *lane, const once_request *r);
void once__lane_promise(once_lane *lane, int64_t until_ms);
int once__lane_advance(const once_entry *entry, once_lane *lane);
unsigned once__lane_find_blocker(const once_lane *lane, once_hash id);
int once__lane_unblock(const once_entry *entry, once_lane *lane);
int once__lane_after_death(const once_entry *entry, once_lane *lane, int64_t now_ms);

/* lane_gap.c: waiting for missing versions */
void once__lane_stop_waiting(once_lane *lane);
void once__lane_go_back(once_lane *lane, int64_t order);
void once__lane_wait_for_missing(once_entry *entry, once_lane *lane, int64_t now_ms);
once_answer once__lane_wait_or_give_up(once_entry *entry, once_lane *lane, int64_t now_ms);

/* lane_text.c: reasons, in words */
once_bytes once__lane_say_settled(once_lane *lane, const char *more);
once_bytes once__lane_say_conflict(once_lane *lane, const once_scope *scope);
once_bytes once__lane_say_stale(once_lane *lane, int64_t order);
once_bytes once__lane_say_gap_over(once_lane *lane, const once_entry *entry);
once_bytes once__lane_say_gap_death(once_lane *lane, const once_entry *entry, once_bytes reason);

/* entry_answer.c: what a delivery is answered */
once_answer once__entry_answer_to_new(once_lane *lane, const once_request *r, int64_t now_ms);
bool once__entry_has_same_place(const once_entry *entry, const once_request *r);
bool once__entry_gives_way(const once_entry *entry, const once_lane *lane, const once_request *r, int64_t now_ms);
once_answer once__entry_answer_to_known(const once_entry *entry, const once_lane *lane, const once_request *r,
                                        int64_t now_ms, bool *by_lane);
void once__entry_describe(const once_entry *entry, once_answer answer, int64_t now_ms, once_decision *out);
int once__entry_become_stale(once_entry *entry, once_lane *lane, once_token token, bool natural, int64_t remember_ms,
                             int64_t sent_ms, int64_t now_ms, once_decision *out);
int once__entry_begin_stale(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms,
                            once_decision *out);
int once__entry_become_already(once_entry *entry, once_lane *lane, int64_t remember_ms, int64_t sent_ms, int64_t now_ms,
                               once_decision *out);
int once__entry_begin_already(once_entry *entry, once_lane *lane, const once_request *r, int64_t now_ms,
                              once_decision *out);
void once__entry_refuse_by_lane(once_lane *lane, const once_scope *scope, once_decision *out);

#endif
