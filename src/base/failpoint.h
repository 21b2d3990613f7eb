/* Failpoints mark every step between receive and ack, so that a test can stop the process exactly there.
 *
 *   ONCE_FAILPOINT=NAME:ACTION[:N][,NAME:ACTION...]     the Nth time (default 1) that NAME is reached, do ACTION once
 *   ONCE_FAILPOINT=NAME:ACTION:P%[SEED][,...]           each time, by a chance of P percent, in one way for a seed
 *   actions: kill (SIGKILL to ourselves), abort, stop (SIGSTOP), exit, error (the caller sees a failure)
 *
 * At the log level `debug` there is a line each time that a point with a rule is reached, so that a test can count.
 *
 * `once version --json` lists the names. The crash matrix must reach every one of them. A new failpoint is one line of
 * the table below.
 *
 * Thread rule: arm before any thread starts; hit from every thread. */
#ifndef ONCE_BASE_FAILPOINT_H
#define ONCE_BASE_FAILPOINT_H

#include <stdbool.h>

/*    name                where */
#define ONCE_FAILPOINT_MAP(X)                                                                                          \
    X(fetch_after, "messages were read, nothing was decided")                                                          \
    X(claim_before, "a batch is about to be claimed")                                                                  \
    X(claim_after, "a batch was claimed")                                                                              \
    X(effect_before, "an effect is about to run")                                                                      \
    X(effect_between, "between two statements of one effect")                                                          \
    X(effect_after, "an effect ran, its outcome is not written")                                                       \
    X(http_before, "a request is about to be sent")                                                                    \
    X(http_after, "a request was answered, nothing is known of it here")                                               \
    X(then_before, "an external effect is done, its `then` is about to run")                                           \
    X(then_between, "between two statements of one `then`")                                                            \
    X(then_after, "a `then` ran, the outcome is not written")                                                          \
    X(settle_before, "outcomes are about to be written")                                                               \
    X(settle_after, "outcomes are written, not committed")                                                             \
    X(commit_before, "about to commit")                                                                                \
    X(commit_after, "committed, nothing was acked")                                                                    \
    X(accept_before, "bodies are about to be given to the store")                                                      \
    X(accept_after, "bodies are in the store, nothing was acked")                                                      \
    X(take_before, "due entries are about to be taken")                                                                \
    X(take_after, "due entries were taken")                                                                            \
    X(bury_before, "a dead letter is about to be written")                                                             \
    X(bury_after, "a dead letter is durable, nothing was acked")                                                       \
    X(ack_before, "about to ack")                                                                                      \
    X(ack_after, "acked")                                                                                              \
    X(open_before, "the store is about to be opened")                                                                  \
    X(open_after, "the store is open, nothing was fetched")                                                            \
    X(migrate_between, "in the middle of a schema migration")                                                          \
    X(sweep_between, "in the middle of dropping expired entries")                                                      \
    X(merge_between, "in the middle of merging settled entries")                                                       \
    X(replay_before, "dead letters are about to go back to work")                                                      \
    X(replay_between, "a dead letter went back to work, nothing is committed")                                         \
    X(drain_before, "told to stop, work is still in flight")                                                           \
    X(close_before, "everything settled, the store is about to be closed")

typedef enum once_failpoint {
#define ONCE_FAILPOINT_ENUM(name, where) ONCE_FP_##name,
    ONCE_FAILPOINT_MAP(ONCE_FAILPOINT_ENUM)
#undef ONCE_FAILPOINT_ENUM
        ONCE_FAILPOINTS
} once_failpoint;

extern bool once_failpoints_armed; /* normally false: a failpoint then costs one load and one branch */

/* Reads the value of ONCE_FAILPOINT. False: it is not valid; `why` gets a line that says so. */
bool once_failpoints_arm(const char *spec, char *why, unsigned long why_len);
const char *once_failpoint_name(once_failpoint point);
const char *once_failpoint_where(once_failpoint point);

/* True: the caller must behave as if the step had failed. */
bool once_failpoint_hit(once_failpoint point);

#define ONCE_FAIL_AT(name) (__builtin_expect(once_failpoints_armed, 0) && once_failpoint_hit(ONCE_FP_##name))

#endif
