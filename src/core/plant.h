/* Planted bugs: protections that a test build can switch off one by one. The simulator must find each of them. In the
 * product ONCE_PLANTED is a constant 0 and costs nothing.
 *
 * Thread rule: once_planted is set before any thread starts, and never changes after. */
#ifndef ONCE_CORE_PLANT_H
#define ONCE_CORE_PLANT_H

#define ONCE_PLANT_MAP(X)                                                                                              \
    X(no_fence, "settle ignores the token")                                                                            \
    X(release_blames, "release counts as a failure")                                                                   \
    X(ack_first, "ack before the outcome is durable")                                                                  \
    X(seen_first, "claimed counts as seen: a delivery of a claimed key is acked as a duplicate")                       \
    X(orphan_lost, "an entry whose worker died is never taken again")                                                  \
    X(dead_runs, "a delivery of a dead message runs again")                                                            \
    X(split_forgets, "a rolled-back batch is acked as if it had been committed")                                       \
    X(no_budget, "retries never end")                                                                                  \
    X(lane_ignored, "followers overtake a failed message of their lane")                                               \
    X(ack_past_gap, "acks pass a message that is not settled")                                                         \
    X(commit_assumed, "a commit whose reply was lost counts as committed")                                             \
    X(new_tokens, "what is repeated after a lost reply is claimed with new tokens")                                    \
    X(take_forgotten, "a take whose reply was lost is not asked for again")                                            \
    X(no_lease, "take hands out entries without a lease")                                                              \
    X(unreported_free, "attempts that end without reporting an outcome are not counted")                               \
    X(no_caution, "messages are not claimed one by one after an unclean end")                                          \
    X(conflict_ignored, "the same key with other content is a duplicate")                                              \
    X(too_old_runs, "a message that is too old runs")                                                                  \
    X(stale_runs, "an older version runs after a newer one")                                                           \
    X(gap_ignored, "nobody waits for a missing version")                                                               \
    X(no_wake, "followers in a lane are never woken")                                                                  \
    X(wall_clock, "leases are measured by the wall clock of the worker")                                               \
    X(unknown_free, "an unknown that is tried again adds no failure")                                                  \
    X(release_at_once, "an effect that asks to be put back is asked again at once")                                    \
    X(release_forgets, "a claim that is put back forgets that an effect may have happened before")                     \
    X(natural_remembered, "success of a natural effect is remembered")                                                 \
    X(failure_dropped, "a natural effect that fails without a claim counts as done")                                   \
    X(absence_assumed, "a natural effect that fails is tried again by every delivery, also when it is dead")           \
    X(start_first, "an external effect starts although it is not known whether its claim was committed")               \
    X(unknown_done, "an effect that may have happened counts as done")                                                 \
    X(hold_ignored, "an unknown that should be held is tried again")                                                   \
    X(no_extension, "leases are not extended while effects run")                                                       \
    X(no_kill, "effects go on past the end of their lease")                                                            \
    X(overclaim, "messages are claimed before there is a slot for their effect")                                       \
    X(room_ignored, "take claims due entries of handlers that have no slot free")                                      \
    X(repeats_hidden, "effects that repeat another are not counted")                                                   \
    X(flight_forgotten, "a message does not wait for the effect of an equal one that is under way")                    \
    X(fenced_acked, "an effect whose settlement was fenced off is acked as if it had been settled")                    \
    X(presumption_kept, "a commit that failed because an effect had counts as committed")                              \
    X(sweep_rushes, "the pause that a store wants between the steps of a sweep is not made")                           \
    X(lost_unseen, "readers see an attempt whose lease is over as still running")                                      \
    X(all_blamed, "a rollback by the database counts against a message that was not alone in its transaction")         \
    X(nobody_blamed, "a message that makes the database roll back its batch is tried with it again and again")         \
    X(version_unjudged, "an equal version under another key is a duplicate whatever its content")                      \
    X(equals_by_hash, "of equal versions in a lane any one goes first")                                                \
    X(first_ignored, "a lane begins with the version that is seen first, although the file says where")                \
    X(gap_while_down, "the wait for a missing version goes on while nobody runs")                                      \
    X(gap_anew, "those behind a version that was given up wait for it anew")                                           \
    X(block_ignored, "a lane goes on past a dead message that should block it")                                        \
    X(maybe_replaced, "other content takes the place of one that may have had its effect")                             \
    X(takes_turns, "two contents of one key take each other's place again and again")                                  \
    X(replaced_lost, "a body whose place other content took is not kept")                                              \
    X(live_claims_ended, "a live worker counts as gone, and its claims are ended")                                     \
    X(children_ignored, "the claims of a worker that is gone are ended, although its commands may still run")          \
    X(resolve_spent, "an unknown that an operator retries dies of the failures it had before")                         \
    X(parked_kept, "a message that stood behind an effect still counts as parked when it goes on")                     \
    X(lookup_early, "the other side is asked about an effect that may still happen")                                   \
    X(lookup_guesses, "a lookup without an answer counts as absent")                                                   \
    X(absent_done, "an effect of which the other side has no record counts as done")                                   \
    X(lapsed_begins, "an attempt whose lease ran out begins after all, while a lookup asks about it")                  \
    X(stream_waits, "a stream that cannot go on holds up the others")                                                  \
    X(revoked_kept, "messages of a stream that was revoked are begun")                                                 \
    X(lost_acked, "deliveries of a stream that another consumer has are acked")                                        \
    X(deadline_ignored, "a stream that was revoked is not released when its time is over")                             \
    X(deliveries_not_extended, "deliveries that expire are not extended")                                              \
    X(gone_acked, "a delivery that another consumer has is acked")                                                     \
    X(last_ignored, "a message whose delivery cannot be extended again is not given to the store")                     \
    X(no_beat, "the source is not asked while nothing may be fetched")                                                 \
    X(then_unfenced, "what is written with an outcome is written without checking the claim first")                    \
    X(then_ignored, "a message whose `then` failed counts as done")                                                    \
    X(then_only_done, "an effect that had happened before is settled without its `then`")                              \
    X(then_repeats, "an effect that is done runs again because its `then` failed")                                     \
    X(then_unblamed, "a `then` that the database rolls back is tried again and again")                                 \
    X(seek_once, "a stream whose seek failed is not sought again")                                                     \
    X(seek_blocks, "a stream that cannot go to its place holds up the others")                                         \
    X(cursor_ahead, "the cursor passes messages that are not over")                                                    \
    X(bound_ignored, "messages are fetched although as much waits in the store as may")                                \
    X(hole_passed, "acks pass a message that is not settled when an offset behind it is missing")                      \
    X(ack_goes_back, "an ack that is repeated covers less than the one before, which may have happened")               \
    X(released_early, "a stream that was revoked is released while a transaction has messages of it")                  \
    X(old_assignment_acked, "a message of a stream that was lost counts as acked in a new one of that number")         \
    X(stale_place, "a stream that comes back goes on where its worker had read to, not behind its last ack")           \
    X(begins_at_end, "a stream of which nothing was acked begins behind the messages that are there")                  \
    X(pause_ignored, "a handler whose effects cannot work is not paused")                                              \
    X(pause_blames, "a message that meets a pause has failed")                                                         \
    X(many_probes, "a handler that is paused is tried with any number of messages")                                    \
    X(never_resumed, "a handler that is paused is never tried again")                                                  \
    X(held_taken, "take claims due entries of a handler that is paused")                                               \
    X(storm_buried, "any number of messages of a handler die for one reason")                                          \
    X(breaker_shut, "a handler is not paused, however many of its effects fail")                                       \
    X(then_unheld, "effects go on although what is written with their outcomes cannot be")

/* Zero, ONCE_PLANT_none: no bug is planted. */
typedef enum once_plant {
    ONCE_PLANT_none,
#define ONCE_PLANT_ENUM(name, text) ONCE_PLANT_##name,
    ONCE_PLANT_MAP(ONCE_PLANT_ENUM)
#undef ONCE_PLANT_ENUM
        ONCE_PLANTS
} once_plant;

#ifdef ONCE_TEST_BUILD
extern once_plant once_planted; /* one at a time; set by a test before any thread starts */
#define ONCE_PLANTED(name) (__builtin_expect(once_planted == ONCE_PLANT_##name, 0))
#else
#define ONCE_PLANTED(name) 0
#endif

#endif
