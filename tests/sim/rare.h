/* Planted bugs that few seeds find, and one seed that did. The test of a bug tries it first, and then all from 1 on: a
 * seed that finds it no more costs time, and nothing else. `once-sim` prints the seed that has found it instead. */
#ifndef ONCE_SIM_RARE_H
#define ONCE_SIM_RARE_H

#define SIM_RARE_MAP(X)                                                                                                \
    X(deadline_ignored, 1573)                                                                                          \
    X(old_assignment_acked, 868)                                                                                       \
    X(then_unheld, 750)                                                                                                \
    X(all_blamed, 611)                                                                                                 \
    X(last_ignored, 473)                                                                                               \
    X(fenced_acked, 293)                                                                                               \
    X(gap_while_down, 283)                                                                                             \
    X(released_early, 266)                                                                                             \
    X(first_ignored, 264)                                                                                              \
    X(unknown_free, 201)                                                                                               \
    X(maybe_replaced, 198)                                                                                             \
    X(resolve_spent, 169)                                                                                              \
    X(version_unjudged, 157)                                                                                           \
    X(failure_dropped, 147)                                                                                            \
    X(no_beat, 127)                                                                                                    \
    X(no_kill, 112)                                                                                                    \
    X(takes_turns, 105)                                                                                                \
    X(unreported_free, 90)                                                                                             \
    X(no_caution, 90)                                                                                                  \
    X(lost_unseen, 84)                                                                                                 \
    X(breaker_shut, 78)                                                                                                \
    X(cursor_ahead, 74)                                                                                                \
    X(ack_goes_back, 74)                                                                                               \
    X(then_only_done, 73)                                                                                              \
    X(storm_buried, 72)                                                                                                \
    X(gone_acked, 68)                                                                                                  \
    X(no_fence, 67)                                                                                                    \
    X(lapsed_begins, 67)                                                                                               \
    X(absent_done, 67)                                                                                                 \
    X(take_forgotten, 60)                                                                                              \
    X(equals_by_hash, 53)                                                                                              \
    X(block_ignored, 53)                                                                                               \
    X(stale_place, 49)                                                                                                 \
    X(revoked_kept, 49)                                                                                                \
    X(lost_acked, 46)                                                                                                  \
    X(live_claims_ended, 46)                                                                                           \
    X(stream_waits, 35)                                                                                                \
    X(flight_forgotten, 35)                                                                                            \
    X(overclaim, 28)                                                                                                   \
    X(hole_passed, 27)

#endif
