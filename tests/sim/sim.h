/* The simulator: the real machine (core/machine.h), the real executor and the real stores in a simulated world.
 *
 *   world.c   the world of a seed: messages and their fates, the pipeline, the faults; the trace
 *   broker.c  delivers, duplicates, reorders, delivers again, remembers acks
 *   group.c   a broker with partitions that are shared out among the workers, as Kafka
 *   queue.c   a broker whose deliveries are acked one by one and run out, as SQS
 *   cursor.c  where a log goes on, kept in the store by its workers
 *   channel.c a broker with queues, channels that break, and tags that mean nothing after that, as RabbitMQ
 *   assignment.c    which streams a worker has: the news of them, their release, and the judgement on both
 *   handout.c what was handed out to whom: whether it may still be acked, extended, begun
 *   store.c   stands between an executor and a real store: failures, lost replies, crashes; notes what really happened
 *   worker.c  one process: machine, executors, atomic effects; its starts, deaths and pauses
 *   held.c    handlers that do not work for a while, and whether they are held up
 *   flight.c  external effects: they take time, end in every way, and may outlive the worker that started them
 *   operator.c  a person: resolves unknowns, replays and discards dead letters
 *   record.c  the world's own record of what happened, and the judgement on it
 *   judge_end.c   the judgement on what must be true at an ack, at the end of a worker and at the end of all
 *   seed.c    the loop: who acts next, how time passes, when it is over
 *   main.c    the command line and the tests
 *
 * Everything follows from the seed: one thread, one random generator for the world and one for each worker, no real
 * clock.
 * The record is made of what goes over the wire (deliveries, acks, effects, requests and answers of the store) at the
 * moment when a real commit succeeded. The judgement reads the record and the script, never an entry or the machine.
 *
 * Only the record has the moment at which an external effect really happened. */
#ifndef ONCE_SIM_H
#define ONCE_SIM_H

#include <stdio.h>

#include "runtime/executor.h"
#include "runtime/runtime.h"
#include "store/engine.h"
#include "testenv.h"

/* --- faults: each kind is counted when it fired --- */

#define SIM_FAULT_MAP(X)                                                                                               \
    X(crash_before, "a worker dies before an action")                                                                  \
    X(crash_after, "a worker dies after an action, before it received the answer")                                     \
    X(crash_after_commit, "a worker dies right after a commit")                                                        \
    X(crash_in_effects, "a worker dies in the middle of its effects")                                                  \
    X(killer, "a message kills its worker")                                                                            \
    X(zombie, "a worker pauses past its lease and comes back")                                                         \
    X(pause, "a worker pauses for a moment")                                                                           \
    X(stop, "a worker is told to stop, and started again")                                                             \
    X(unclean, "a worker starts after an unclean end")                                                                 \
    X(store_fails, "a call to the store fails, nothing happened")                                                      \
    X(store_reply_lost, "a call to the store happens, its reply is lost")                                              \
    X(commit_fails, "a commit fails, nothing happened")                                                                \
    X(commit_reply_lost, "a commit happens, its reply is lost")                                                        \
    X(store_crash, "the store crashes and comes back with what it acknowledged")                                       \
    X(store_busy, "another worker has the store")                                                                      \
    X(effects_fail, "the database of the effects fails")                                                               \
    X(disproved, "an effect that was presumed done has failed: a later step, or the commit, reports it")               \
    X(fetch_fails, "fetching fails")                                                                                   \
    X(ack_fails, "an ack fails, nothing happened")                                                                     \
    X(ack_reply_lost, "an ack happens, its reply is lost")                                                             \
    X(acked_in_part, "an ack fails for some of its deliveries")                                                        \
    X(rebalanced, "a stream is revoked")                                                                               \
    X(stream_lost, "a worker loses a stream without being asked")                                                      \
    X(overdue, "a stream is not released in time, because its worker paused")                                          \
    X(beat_missed, "a worker that paused did not fetch often enough, and loses its streams")                           \
    X(release_fails, "a release fails, nothing happened")                                                              \
    X(seek_fails, "a worker cannot find out where a stream goes on, for a while")                                      \
    X(sought, "a stream goes on where the store says")                                                                 \
    X(full, "nothing is fetched because as much waits in the store as may")                                            \
    X(hole, "an offset that no message has")                                                                           \
    X(late_stream, "a stream comes later than the others, and has messages by then")                                   \
    X(came_back, "a worker is given a stream again that it had before")                                                \
    X(stuck, "a stream is paused for a while, and others go on")                                                       \
    X(extend_fails, "an extension of deliveries fails, for some or all of them")                                       \
    X(ran_out, "a delivery runs out, because its worker paused, died, or could not extend it")                         \
    X(last, "a delivery is extended for the last time")                                                                \
    X(cancelled, "a consumer is cancelled")                                                                            \
    X(reconnected, "a connection breaks: unacked deliveries come again, and old tags are invalid")                     \
    X(lost_late, "a stream is lost that was revoked before")                                                           \
    X(group_waits, "a message is not delivered, because one before it in its group is in flight")                      \
    X(gone, "a delivery is gone when it is to be acked or extended")                                                   \
    X(invisible, "a message is delivered to another worker because the first one took too long")                       \
    X(redelivered, "a message is delivered again after its worker died")                                               \
    X(duplicate_now, "the broker delivers a message twice at once")                                                    \
    X(duplicate_late, "the broker delivers a message again after it was acked")                                        \
    X(duplicate_expired, "the broker delivers a message again after its entry has expired")                            \
    X(reordered, "the broker delivers out of order")                                                                   \
    X(skewed, "the wall clock of a worker is up to 10 minutes off")                                                    \
    X(year_forward, "a wall clock jumps a year forward")                                                               \
    X(hour_back, "a wall clock jumps an hour back")                                                                    \
    X(swept, "expired entries are swept")                                                                              \
    X(replayed, "an operator replays a dead letter")                                                                   \
    X(discarded, "an operator discards a dead letter")                                                                 \
    X(resolved_done, "an operator resolves an unknown effect as done")                                                 \
    X(resolved_retry, "an operator has an unknown effect tried again")                                                 \
    X(resolved_dead, "an operator resolves an unknown effect as dead")                                                 \
    X(crash_in_flight, "a worker dies while external effects are under way")                                           \
    X(late_effect, "an external effect happens after its worker is gone")                                              \
    X(reply_lost, "an external effect ends without reporting whether it happened")                                     \
    X(handler_dies, "a process with several effects dies, and all of them end")                                        \
    X(outage, "an external effect begins, finds the other side away and asks to be put back")                          \
    X(no_start, "external effects cannot be started for a while")                                                      \
    X(no_use, "no effect of a handler works for a while: it must be paused")                                           \
    X(no_use_inside, "the same of a handler whose effects are atomic")                                                 \
    X(no_then, "what is written with the outcomes of a handler cannot be, for a while: it must be paused")             \
    X(outage_of_handler, "every effect of a handler fails for a while")                                                \
    X(storm, "every message of a handler would die for one reason, for a while")                                       \
    X(held_up, "a worker is told so much of that that it must hold its handler up")                                    \
    X(probed, "a handler that is held up is tried with one message")                                                   \
    X(unheld, "a handler that was held up works again")                                                                \
    X(long_effect, "an external effect lasts longer than its lease")                                                   \
    X(killed, "an external effect is told to end")                                                                     \
    X(held, "an unknown is held for a person")                                                                         \
    X(unknown_retried, "an unknown is tried again")                                                                    \
    X(asked_done, "the other side is asked about an unknown, and answers that it is done")                             \
    X(asked_absent, "the other side is asked about an unknown, and answers that it is absent")                         \
    X(asked_in_vain, "the other side is asked about an unknown, and does not know")                                    \
    X(then_written, "something is written in the transaction that settles an external effect")                         \
    X(then_fails, "what is to be written with the outcome of an external effect fails")                                \
    X(then_rolled_back, "the database rolls back what is to be written with the outcome of an external effect")        \
    X(repeated, "an external effect really happens twice")                                                             \
    X(rerun, "a natural effect runs again")                                                                            \
    X(unclaimed, "a natural effect runs without a claim")                                                              \
    X(unclaimed_failed, "a natural effect without a claim fails, and is claimed to record that")                       \
    X(malformed, "a message is no JSON or lacks its key")                                                              \
    X(conflicting, "a message has the key of another one and different content")                                       \
    X(replaced, "a message replaces one of the same key that had no effect yet")                                       \
    X(resent, "a message is sent twice, under different coordinates")                                                  \
    X(business_twice, "a business operation comes under two keys")                                                     \
    X(too_old, "a message is older than what is remembered")                                                           \
    X(failing, "an effect fails and is worth another try")                                                             \
    X(poison, "an effect fails every time")                                                                            \
    X(gap, "a version of a lane never comes")                                                                          \
    X(twin, "a version comes under a second key, with the same content")                                               \
    X(twin_differs, "a version comes under a second key, with other content")                                          \
    X(blocked, "a dead message blocks its lane")                                                                       \
    X(retry_for, "the time of retry.for is over")                                                                      \
    X(taken_over, "the claims of a worker that is known to be gone are ended")                                         \
    X(gap_over, "a missing version is given up")                                                                       \
    X(gave_up, "a worker ends because the store or the source failed too often")

typedef enum sim_fault {
#define SIM_FAULT_ENUM(name, text) SIM_##name,
    SIM_FAULT_MAP(SIM_FAULT_ENUM)
#undef SIM_FAULT_ENUM
        SIM_FAULTS
} sim_fault;

/* --- the script: what is sent, and what the business makes of it --- */

typedef enum sim_fate {
    FATE_FINE,
    FATE_FAILS, /* the first `fails` committed tries, then it works */
    FATE_POISON,
    FATE_REJECTED,
    FATE_STALE,
    FATE_DEAD,
    FATE_KILLER /* it kills its worker; when its effect is external, the process that runs it */
} sim_fate;

/* As the pipeline has them, and what else there is to know about their effects. */
typedef struct sim_handler {
    bool external, hold, natural;
    bool asks;     /* the other side can be asked what became of an unknown, and is honest */
    bool then;     /* when it is done, something is written in the transaction that settles it */
    bool killable; /* a command; otherwise a function that returns when it likes */
    uint32_t slots;
    uint32_t processes; /* 0: each effect has its own */
    int trouble;        /* what all of its effects meet until then: a fault of SIM_no_use, outage_of_handler, storm */
    int64_t trouble_until_ms;
    int64_t no_then_until_ms;
} sim_handler;

typedef struct sim_key {
    sim_fate fate;
    uint32_t fails;
    bool rolls_back; /* when it fails, it takes its transaction with it, until somebody asks whose fault it is */
    int lane;        /* -1: none */
    int64_t version;
    int twin;  /* another key with the same version; -1: none */
    int shift; /* of what its content says; twins may differ */
    int op;    /* the business operation; two keys may share one */
    int handler;

    /* the record */
    bool final;
    once_outcome outcome; /* when final */
    uint32_t effects, failures, letters, kills;
    uint32_t thens;         /* how often `then` was written */
    uint64_t came;          /* number of its arrival in the store: its first claim, or its body; 0: neither yet */
    bool owned;             /* the store has its body */
    int64_t owned_alive_ms; /* world.alive_ms, world.downs at that moment */
    uint32_t owned_downs;
    bool judged;   /* its lane ended it: its twin was first */
    int winner;    /* the variant of the content that was let in; -1: none yet. Another one may take its place, once */
    bool replaced; /* one has */
    bool ever_maybe;     /* some attempt may have had its effect, whatever came of later ones */
    uint64_t first;      /* serial of its first delivery */
    bool replayed;       /* came back from the dead */
    bool unknown;        /* settled so, and nobody has resolved it */
    int64_t unknown_ms;  /* since then, or later */
    bool given_up;       /* nobody asks about it any more */
    int64_t resolved_ms; /* when a person decided; whoever was about to ask cannot know that; 0: nobody has */
    bool maybe_done;     /* external: the last attempt may have had its effect */
    uint32_t told;       /* external: claims that were told so, but for those that were put back before they began */
    bool told_now;       /* the last claim was */
    uint32_t pardons;    /* hold: how often a person had it run again after it may have had its effect */
    /* the last claim that the store granted */
    bool open, known; /* open: not settled; known: the worker got the answer */
    bool asking;      /* that of whoever asks about it, while it is unknown */
    uint64_t holder;  /* incarnation */
    once_token token;
    once_outcome settled;           /* when not open: how that claim was settled */
    int64_t granted_ms;             /* or extended */
    bool lapsed;                    /* ended by somebody else, because its worker is gone */
    int64_t paused_ms;              /* worker.paused_ms at that moment */
    bool excused;                   /* the holder died or paused */
    bool dropped;                   /* the holder was told that it is not his any more */
    bool taken;                     /* granted by take, not to a message from the source */
    int64_t failing_ms;             /* when the first of its failures was counted; 0: it has none */
    int64_t asked_ms;               /* when its last claim was answered */
    uint64_t missing, told_missing; /* versions that were given up for it; nobody has settled it since, or the last one
                                       who did was told so */
    bool behind_gap; /* an earlier version was missing when it was granted; whoever stopped waiting does not wait again
                      */
    bool orphaned;   /* a claim on it ended without an outcome */
    bool starved;    /* dead, because an earlier version was missing; it never ran */
    bool granted,
        let_in; /* ever; and so before this claim, without a gap: it does not wait for missing versions any more */
    uint32_t persons;    /* of its lane, when it was granted */
    int flight;          /* of this claim; -1: it has not started */
    uint32_t unreported; /* claims that ended without an outcome, and rightly so */
} sim_key;

typedef struct sim_message {
    int key; /* -1: it has none that can be read */
    int variant;
    bool too_old;
    once_bytes body;
    uint32_t letters, acks;
    bool conflict, other_letter; /* which letters: that of a conflict is of all messages with this key and content,
                                    others are its own */
    uint64_t in_doubt;           /* incarnation of the worker that does not know whether its letter was written; or 0 */
    uint64_t buried_again;       /* number of the transaction that last asked for its letter */
} sim_message;

typedef struct sim_lane {
    int by; /* the key that settled the top */
    bool has_top;
    int64_t top; /* highest version that ended done, already or rejected */
    bool has_reach;
    int64_t reach;       /* no version up to it is waited for: it ended, died, or was given up */
    int64_t lost;        /* highest version that was given up; 0: none */
    uint64_t last_first; /* `first` of the key whose effect came last */
    uint32_t persons;    /* how often somebody moved the top by hand, whoever was on the way */
} sim_lane;

/* One message that the broker delivers to a consumer, again and again until it is acked. */
typedef struct sim_delivery {
    enum { PENDING, IN_FLIGHT, ACKED } state;
    int message;
    int64_t at_ms;   /* pending: not before; in flight: when it becomes visible again */
    uint64_t holder; /* incarnation */
    int stream;      /* LOG, CHANNEL: which one; QUEUE: its group */
    uint64_t offset; /* LOG: where in it */
    size_t handout;  /* the last one of it, but PLAIN */
} sim_delivery;

/* One handing out of a delivery, as the worker knows it. */
typedef struct sim_handout {
    size_t delivery;
    uint64_t holder;     /* incarnation */
    uint32_t stream;     /* its number there, and ... */
    uint64_t assignment; /* ... what that was then; QUEUE: 0 */
    uint64_t number;     /* what acks and extensions name */
    int64_t out_ms, extended_ms;
    bool heard;         /* its machine has it ... */
    bool dropped;       /* ... or would not have it, because it had been told to stop meanwhile */
    bool in_tx;         /* it is part of the transaction that its worker began last */
    bool last;          /* it was extended for the last time */
    bool told_gone;     /* its worker was told that it is somebody else's ... */
    bool heard_gone;    /* ... and its machine knows ... */
    bool safe;          /* ... and then the message was finished, or the store had it */
    uint64_t gone_turn; /* ... when that was */
} sim_handout;

/* How the broker delivers. */
typedef enum sim_kind {
    BROKER_PLAIN,  /* one stream; an ack is of everything that a worker was given, up to one */
    BROKER_LOG,    /* streams that are shared out among the workers; an ack is of everything up to one, in its stream */
    BROKER_QUEUE,  /* one stream for all workers; each delivery is acked for itself, and runs out */
    BROKER_CHANNEL /* streams that all workers have; each delivery is acked for itself; channels break, consumers are
                      cancelled; a message has other coordinates each time */
} sim_kind;

#define SIM_STREAMS 4
#define SIM_PAUSES_MS 10000 /* so long a worker may wait for a store that was away */

/* A stream of the broker. */
typedef struct sim_stream {
    struct sim_worker *owner; /* LOG; or NULL */
    uint64_t next_offset;     /* LOG */
    int64_t appears_ms;       /* LOG: nobody is given it before */
    bool has_place;           /* LOG: somebody has acked something of it, and ... */
    uint64_t place;           /* ... who is given it goes on at this offset; otherwise with its first message */
    size_t first;             /* LOG: the first handout of it that is not acked, plus 1, and ... */
    int64_t first_ms;         /* ... since when it is that */
    int64_t waits_since_ms;   /* LOG: something is there for its owner, which has nothing of it; 0: that is not so */
} sim_stream;

/* What a worker has behind a number. */
typedef struct sim_assignment {
    enum { FREE, NEW, OURS, ASKED, LEAVING, TAKEN, GONE } state; /* ASKED, TAKEN: to leave, lost, and was not told */
    int stream;
    uint64_t assignment; /* counts on, over all */
    int64_t until_ms;    /* ASKED, LEAVING: it must be released until then */
    int64_t within_ms;   /* the same, as it was told */
    bool tried;          /* a release was asked for, whether it worked or not */
    uint64_t next;       /* LOG: the offset from which the next message is read */
    uint64_t acked;      /* LOG: the offset behind the last ack */
    bool sought;         /* with a cursor: the worker has found out where it goes on; nothing of it comes before */
    int64_t seek_ms;     /* when it last tried to */
    int64_t no_seek_until_ms;
    struct {
        bool told;     /* in an answer to a fetch, which may have been lost ... */
        uint64_t turn; /* ... its machine knows since then; 0: it does not */
        int64_t ms;
    } news[3]; /* by once_stream_change */
} sim_assignment;

/* --- a worker --- */

typedef struct sim_world sim_world;
typedef struct sim_worker sim_worker;

typedef struct sim_store {
    once_backend store;
    sim_worker *worker;
} sim_store;

typedef struct sim_source {
    once_source source;
    sim_worker *worker;
} sim_source;

/* What happened inside a transaction; becomes record when it is really committed. */
typedef struct sim_note {
    enum {
        NOTE_GRANT,
        NOTE_ASKED,
        NOTE_EXTENDED,
        NOTE_EFFECT,
        NOTE_THEN,
        NOTE_OUTCOME,
        NOTE_OWNED,
        NOTE_LETTER,
        NOTE_JUDGED,
        NOTE_REPLACED
    } what;
    int key, message;
    once_outcome outcome;
    once_answer answer;
    once_token token;
    bool known, taken, unreported, maybe_done, fresh;
    bool hung_up; /* the store failed while its effect ran alone */
    int64_t at_ms, paused_ms, delay_ms;
} sim_note;

/* One external effect: an attempt that was started. */
typedef struct sim_flight {
    int key, message, worker;
    uint64_t incarnation;
    once_item *item; /* NULL: nobody waits for it any more */
    once_token token;
    uint32_t process;
    int64_t started_ms;                    /* it was asked for */
    int64_t began_ms, happens_ms, ends_ms; /* happens: ONCE_NEVER: it does not, or it has */
    once_outcome said;                     /* what it says when it ends */
    bool air;                              /* its worker has not heard of its end */
    bool excused;  /* its worker died or paused past the lease, or its effect comes late: it may overlap with others */
    bool told;     /* to end, whether it can be or not */
    bool kill;     /* told so, and it ends */
    bool away;     /* it began, found the other side away, and says release */
    bool no_use;   /* no effect of its handler works */
    bool storm;    /* it dies of what all messages of its handler die of ... */
    bool spared;   /* ... and must not, because its handler is held up for that */
    bool question; /* it only asks about another one, and `said` tells whether it began */
    once_outcome answer;  /* of the other side: RETRY, it knows nothing of it */
    bool then_fails;      /* when its `then` is written */
    bool then_waits;      /* it could not be written for now, by nobody's fault */
    bool then_rolls_back; /* the same: the database rolls back the whole transaction, each time */
    unsigned rolled_back; /* how often that was */
    bool unclaimed;       /* it has no claim */
    bool unwritten;       /* it was done, but its `then` failed, or its claim was lost before: now it is unknown */
} sim_flight;

typedef enum sim_state { DOWN, UP, PAUSED } sim_state;

enum { SIM_HELD_WITHIN_MS = 10000 };
enum { SIM_HELD_AFTER = 6 }; /* so many failures, or letters with one reason, in a row hold a handler up */

/* What a machine was told about a handler: whether it must hold it up. */
typedef struct sim_told {
    bool held;
    int64_t held_ms;              /* since then, or when it was told last that it must be, for any reason */
    int64_t answered_ms;          /* when an effect of it last did not fail */
    uint32_t failures, letters;   /* in a row */
    int64_t when[SIM_HELD_AFTER]; /* of the last failures */
} sim_told;

struct sim_worker {
    sim_world *world;
    int index;
    sim_state state;
    int64_t until_ms; /* down, paused */
    uint64_t incarnation;
    bool unclean;
    bool stopping;
    int64_t stop_ms; /* when it was told to */
    bool failing;    /* it has given up and only waits for effects that it cannot end */
    bool killed;     /* its effects killed it */
    int64_t wall_off_ms;
    test_env env;
    once_backend *real;
    sim_store store;
    sim_source source;
    once_machine *machine;
    once_executor executor;
    once_worker record; /* its own, which it renews */
    once_store_facts facts;
    bool counted; /* it has asked how much waits in the store, and since then nobody else changed that */
    once_action *store_action, *source_action, *ack_action, *effect_action;
    int64_t fetch_until_ms;
    bool store_done, source_done, ack_done, effect_done; /* carried out, but the machine does not know */
    int64_t tx_ms, tx_paused_ms;                         /* the time in a transaction is that of its beginning */
    int64_t paused_ms;                                   /* all its pauses together */
    int64_t paused_until_ms;                             /* the last one */
    int64_t sweep_not_before_ms;                         /* as the store said */
    int64_t trouble_ms;                                  /* when it last paused, or a call to the store failed */
    int64_t no_start_until_ms;
    sim_told heard[4]; /* by handler */
    bool in_tx, tx_lost;
    uint64_t transactions; /* so many it has begun, over all its incarnations */
    bool disproved;        /* something that was presumed in the transaction is not so */
    bool holds;            /* it was granted a claim and has not come to use it */
    sim_note *notes;
    size_t notes_n, notes_size;
    uint32_t *delivered; /* PLAIN: by the number of the delivery, less one */
    size_t delivered_n, delivered_size;
    uint64_t acked;
    sim_assignment assignments[SIM_STREAMS]; /* LOG, CHANNEL */
    bool member;                             /* LOG: it takes part */
    int64_t fetched_ms;                      /* LOG: when it last fetched */
    uint64_t read[SIM_STREAMS];              /* LOG: the offset up to which it has read each stream; 0: it had it not */
    bool left[SIM_STREAMS];                  /* told to stop, it has asked for a release of that number */
    bool told;                               /* QUEUE: how long a delivery is its own */
    uint64_t tags;                           /* CHANNEL: deliveries of this connection */
    uint64_t asked_turn;                     /* when the action of its ack side was asked for */
    int64_t source_failing_ms;               /* when the broker last failed it */
};

/* --- the world --- */

#define SIM_WORKERS 4
#define SIM_HANDLERS 3
#define SIM_REMEMBER_MS (2 * 3600 * 1000) /* in seeds whose messages have times */
#define SIM_TRACE 40

typedef struct sim_step {
    int64_t now_ms;
    const char *what, *detail;
    int worker, status;
    int64_t a, b;
} sim_step;

typedef struct sim_result {
    bool failed;
    bool external; /* there are external effects */
    uint64_t seed, hash, steps;
    uint64_t fired[SIM_FAULTS];
    uint64_t effects, messages;
    char why[600];
    sim_step last[SIM_TRACE];
    size_t last_n;
} sim_result;

enum sim_phase { PHASE_FAULTS, PHASE_CALM, PHASE_LATE, PHASE_STOP };

struct sim_world {
    sim_result *result;
    bool print;
    uint64_t random;
    int64_t start_ms, now_ms, deadline_ms;
    int64_t over_ms; /* when everything was through, as far as the record says */
    uint64_t step_limit;
    enum sim_phase phase;

    /* the seed's choices */
    bool sqlite, fifo, finite, mild, tenants, ordered, versioned, gap, gap_dead, timed;
    bool first, block, twins; /* lanes begin with version 1; wait behind a dead one; have versions under two keys */
    bool resolves;            /* in the end a person looks at every unknown */
    bool gone_known;          /* whoever is gone is known to be */
    bool contained;           /* and so is what it had begun */
    bool presumes;            /* effects of an optimistic pass are taken for done */
    sim_handler handlers[SIM_HANDLERS];
    int handlers_n;
    uint32_t attempts;
    int64_t retry_for_ms; /* 0: attempts alone are the budget */
    int64_t lease_ms, gap_ms, visible_ms;
    sim_kind kind;
    sim_stream streams[SIM_STREAMS]; /* LOG, CHANNEL */
    int streams_n;
    uint64_t assignments, turns;
    sim_handout *handouts;
    size_t handouts_n, handouts_size;
    bool cursor;                   /* LOG: the store keeps where a stream goes on */
    bool groups;                   /* QUEUE: while some of a group is out, nothing else of it is delivered */
    size_t fetch_from;             /* QUEUE: the first handout of the fetch that is answered */
    bool expires;                  /* QUEUE, some CHANNEL: deliveries run out */
    uint64_t prefetch;             /* CHANNEL: so many may be out to one consumer */
    int64_t within_ms, beat_ms;    /* LOG, CHANNEL; beat_ms 0: it does not matter */
    int64_t ack_pause_ms;          /* LOG; 0: none */
    int64_t held_max_ms;           /* a delivery cannot be held for longer; 0: it can */
    int64_t alive_ms, alive_at_ms; /* how long anybody was up, as of then */
    bool was_alive;
    uint32_t downs;            /* how often nobody was */
    uint32_t rate[SIM_FAULTS]; /* per 10,000 chances */
    uint32_t faults_left;
    int64_t faults_until_ms;

    once_arena arena;
    once_spec *spec;
    sim_key *keys;
    int keys_n;
    sim_message *messages;
    int messages_n;
    sim_lane lanes[16];
    uint32_t *ops; /* effects of each business operation */
    int *op_keys;  /* whose effect the last one was */
    sim_flight *flights;
    size_t flights_n, flights_size, flights_from; /* all before `from` are over */
    sim_delivery *deliveries;
    size_t deliveries_n, deliveries_size;
    uint64_t delivered;
    uint64_t arrivals; /* keys that the store has heard of */
    /* versions that are not waited for any more; of these: perhaps not counted, and counted perhaps twice */
    uint64_t given_up, given_up_hidden, given_up_twice;

    sim_worker workers[SIM_WORKERS];
    int workers_n;
    uint64_t incarnations;
    uint32_t clean_starts;
    sim_worker *tx_owner;
    int64_t store_down_until_ms;
    once_backend *memory;
    test_env memory_env;
    char folder[64], url[96];

    bool counts_known; /* nobody died, so the summaries add up to the record */
    uint64_t counted_done, counted_dead, counted_repeats;
    uint64_t done, letters;
    uint64_t unheard; /* letters of a take or claim whose reply was lost: the worker counts those messages as waiting */
    uint64_t told, repeats; /* external: claims told of a possible effect before; effects that really were repeated */
    uint64_t counted_twice; /* of the claims so told, those in a commit whose fate its worker did not know */
};

/* world.c */
extern const char *const sim_fault_names[SIM_FAULTS];
extern const char *const sim_fault_texts[SIM_FAULTS];
uint64_t sim_random(sim_world *world, uint64_t below);
bool sim_chance(sim_world *world, unsigned percent);
bool sim_fires(sim_world *world, sim_fault fault); /* rolls the dice, counts */
void sim_fired(sim_world *world, sim_fault fault);
void sim_trace(sim_world *world, int worker, const char *what, const char *detail, int64_t a, int64_t b, int status);
void sim_print_step(FILE *to, const sim_step *step);
void sim_violation(sim_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool sim_world_make(sim_world *world, uint64_t seed, sim_result *result, bool print);
void sim_world_end(sim_world *world);
int sim_key_of(const sim_world *world, const once_request *request);
int sim_message_of(const sim_world *world, const once_message *message);

/* broker.c */
void sim_broker_add(sim_world *world, int message, int64_t at_ms);
bool sim_broker_has(const sim_worker *worker, const once_action *fetch); /* this fetch would bring something, now */
bool sim_broker_empty(const sim_world *world);                           /* everything is acked */
int64_t sim_broker_next_ms(const sim_world *world);
void sim_broker_tick(sim_world *world);   /* what took too long becomes visible again */
void sim_broker_died(sim_worker *worker); /* its messages go to others */
void sim_source_init(sim_worker *worker);
unsigned sim_source_bits(const sim_world *world);
void sim_source_asked(sim_worker *worker);                        /* an action for the ack side was handed out */
void sim_source_stepped(sim_worker *worker);                      /* the machine knows what the last fetch brought */
void sim_source_answered(sim_worker *worker);                     /* the same of the ack side */
bool sim_source_calm(const sim_worker *worker, int64_t since_ms); /* nothing kept it from talking to the broker */
bool sim_delivery_can_go(const sim_world *world, const sim_delivery *d);
void sim_delivery_acked(sim_worker *worker, sim_delivery *d);
void sim_delivery_back(sim_world *world, sim_delivery *d);

/* handout.c */
void sim_handout_add(sim_worker *worker, sim_delivery *d, const once_item *item, uint64_t assignment);
/* The last one that the worker knows by these; NULL: it never got it. */
sim_handout *sim_handout_find(const sim_worker *worker, uint32_t stream, uint64_t number);
sim_delivery *sim_handout_delivery(const sim_world *world, const sim_handout *h); /* NULL: it is out no more */
void sim_handout_gone(sim_worker *worker, sim_handout *h, once_receipt *receipt);
void sim_handouts_ack(sim_worker *worker, once_receipt *receipt); /* a single one */
void sim_handouts_extend(sim_worker *worker, once_receipt *receipt);
bool sim_handouts_last(const sim_worker *worker, int key); /* one of this key was extended for the last time */
void sim_handouts_tick(sim_world *world);                  /* some run out */
void sim_handouts_come(sim_worker *worker);                /* the machine has them */
void sim_handouts_heard(sim_worker *worker);               /* the machine knows which are gone */
void sim_handouts_unheard(sim_worker *worker);             /* the answer that said so was lost */
void sim_handouts_begin(sim_worker *worker, const once_action *act); /* a transaction: what may be in it? */

/* assignment.c */
sim_assignment *sim_assignment_of(sim_worker *worker,
                                  int stream);                 /* as the broker sees it; NULL: it does not have it */
bool sim_assignment_is_ours(const sim_assignment *assignment); /* what is over may be acked */
bool sim_assignment_is_left(
    const sim_assignment *assignment); /* the machine knows that it is to leave it, or has lost it */
sim_assignment *sim_assignments_give(sim_worker *worker, int stream); /* NULL: no number is free */
void sim_assignment_ask(sim_worker *worker, sim_assignment *assignment);
void sim_assignment_take(sim_worker *worker, sim_assignment *assignment); /* what was not acked comes again */
bool sim_assignments_have_news(const sim_worker *worker);
void sim_assignments_tell(sim_worker *worker, once_fetch *fetch);
void sim_assignments_heard(sim_worker *worker);
void sim_assignments_release(sim_worker *worker, uint32_t number);
sim_assignment *sim_assignments_ack(sim_worker *worker, once_receipt *receipt); /* NULL: it may not, and is told so */
void sim_assignments_tick(sim_world *world);
void sim_assignments_ended(sim_worker *worker); /* it has ended well */
int64_t sim_assignments_next_ms(const sim_world *world);

/* group.c */
bool sim_group_has(const sim_worker *worker, const once_action *fetch);
void sim_group_tell(sim_worker *worker, once_fetch *fetch);
sim_delivery *sim_group_next(const sim_worker *worker, const uint32_t *paused, size_t n_paused, uint32_t *number);
void sim_group_read(sim_worker *worker, uint32_t number, const sim_delivery *d); /* it is handed over */
void sim_group_release(sim_worker *worker, uint32_t number);                     /* it is asked for: may it? */
void sim_group_ack(sim_worker *worker, once_receipt *receipt);
void sim_group_released(sim_worker *worker);
void sim_group_tick(sim_world *world);
void sim_group_left(sim_worker *worker); /* it is gone */
void sim_group_shaken(sim_world *world);

/* cursor.c */
int sim_cursor_seek(once_source *source, uint32_t stream, const once_facts *facts, once_error *err);
int sim_cursor_keep(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                    const once_item *const *last, size_t n_last, once_error *err);
void sim_cursor_note(const sim_delivery *d, once_item *item); /* what `keep` needs to know of a message */
void sim_cursor_tick(sim_world *world);                       /* streams that nobody looks for the place of */

/* queue.c */
void sim_queue_tell(sim_worker *worker, once_fetch *fetch);
bool sim_queue_has(const sim_world *world);
sim_delivery *sim_queue_next(sim_world *world);

/* channel.c */
bool sim_channel_has(const sim_worker *worker, const once_action *fetch);
void sim_channel_tell(sim_worker *worker, once_fetch *fetch);
sim_delivery *sim_channel_next(const sim_worker *worker, const uint32_t *paused, size_t n_paused, uint32_t *number);
void sim_channel_tick(sim_world *world);
void sim_channel_left(sim_worker *worker);

/* store.c */
void sim_store_init(sim_worker *worker);
int sim_store_open(sim_worker *worker);
void sim_store_close(sim_worker *worker); /* as the end of the process: what is open is rolled back */
void sim_store_crash(sim_world *world);

/* operator.c */
void sim_operator_act(sim_world *world);     /* any one thing */
void sim_operator_look(sim_world *world);    /* what is shown fits together */
bool sim_operator_resolve(sim_world *world); /* any one unknown; false: there is none, or the store cannot be reached */
bool sim_operator_discard(sim_world *world); /* any one letter with an entry; false: as above */
void sim_operator_conflicts(sim_world *world); /* every letter of a conflict is in the store */
void sim_operator_counters(sim_world *world, uint64_t *repeats,
                           uint64_t *given_up); /* as the store keeps them for ever */

/* record.c */
void sim_note_add(sim_worker *worker, sim_note note);
void sim_notes_drop(sim_worker *worker);
void sim_notes_commit(sim_worker *worker);
void sim_record_replay(sim_world *world, int key);
void sim_record_discard(sim_world *world, int key);
void sim_record_resolve(sim_world *world, int key, once_outcome outcome);
void sim_record_excuse(sim_worker *worker);                             /* its open claims may end without an outcome */
void sim_record_ended(sim_worker *worker, const once_request *request); /* somebody else's claim was */
void sim_record_lapsed(sim_worker *worker, const once_request *request); /* a claim that is held was found to be over */
void sim_record_dropped(sim_worker *worker, const once_request *request); /* it was told that its claim is gone */
void sim_record_start(sim_world *world, sim_flight *flight);
void sim_record_start_unclaimed(sim_world *world, const sim_flight *flight);
void sim_record_passed(sim_world *world, const sim_flight *flight);
void sim_record_ask(sim_world *world, sim_flight *flight);
bool sim_record_is_left(const sim_world *world, const sim_key *key); /* an unknown, and only a person can decide */
void sim_record_effect(sim_world *world, sim_flight *flight);        /* it happens, really */
void sim_record_then(sim_worker *worker, int key, bool written);     /* its `then` runs, and is written or fails */
size_t sim_record_claimed(const sim_worker *worker, int handler,
                          int but);                     /* claims not yet started, but for one key's */
void sim_record_commit_failed(sim_worker *worker);      /* its worker does not know whether it happened */
bool sim_record_own(const sim_worker *worker, int key); /* the worker has the claim, knows it and has not lost it */
bool sim_record_held(const sim_world *world);           /* an unknown waits for a person */
bool sim_record_busy(const sim_world *world); /* somebody has a claim and is not excused from coming back to it */
bool sim_record_is_held(const sim_world *world, const sim_key *key);
bool sim_record_differs(const sim_world *world,
                        const sim_key *key); /* its version was settled by its twin, with other content */
bool sim_record_blocks(const sim_world *world, const sim_key *key); /* it is dead, and its lane waits for a person */
bool sim_record_superseded(const sim_world *world,
                           const sim_key *key);      /* a later version came first, or it was given up */
uint64_t sim_record_waiting(const sim_world *world); /* messages that wait in the store, and nobody has claimed */
void sim_record_moved(sim_world *world, const sim_worker *by); /* whose count of those is old now; NULL: everybody's */
void sim_record_fetch(sim_worker *worker, const once_action *fetch);           /* may it? */
bool sim_record_conflicts(const sim_world *world, const sim_message *message); /* other content was let in */
bool sim_record_same_conflict(const sim_message *m,
                              const sim_message *other); /* its letter is of a conflict, and stands for m too */

/* judge_end.c */
bool sim_judge_safe(const sim_world *world, int message); /* the broker may forget it */
void sim_judge_ack(sim_world *world, sim_worker *worker, int message);
void sim_judge_end(sim_worker *worker, const once_counts *counts);
bool sim_judge_over(sim_world *world, char *why, size_t size); /* every message is through */
void sim_judge_close(sim_world *world);

/* worker.c */
void sim_worker_start(sim_worker *worker);
void sim_worker_die(sim_worker *worker);
void sim_worker_stop(sim_worker *worker); /* tells it to */
enum sim_side { SIDE_STORE, SIDE_SOURCE, SIDE_ACKS, SIDE_EFFECTS, SIDES };
bool sim_worker_act(sim_worker *worker, enum sim_side side); /* false: nothing to do now */
bool sim_worker_misfortune(sim_worker *worker); /* what can happen at any moment. True: it cannot act now */
void sim_worker_watch(sim_worker *worker);      /* whether it has given up or ended */
void sim_worker_step(sim_worker *worker, once_action *action);
bool sim_worker_carried_out(sim_worker *worker, const once_action *action); /* true: it died before it knew */
void sim_worker_free(sim_worker *worker);
bool sim_worker_gone(const sim_world *world, uint64_t incarnation); /* it is not there any more */
void sim_worker_init(sim_worker *worker, sim_world *world, int index);

/* held.c */
const char *sim_reason_of(int key);                /* of a failure: no two keys share it */
int sim_trouble_of(sim_world *world, int handler); /* what its effects meet now; 0: nothing */
bool sim_no_then(sim_world *world, int handler);   /* its `then` cannot be written now */
void sim_held_told(sim_worker *worker, sim_flight *f, const once_item *item); /* the machine is about to be */
void sim_held_spared(sim_worker *worker, int handler); /* a message was, which says that its handler is held up */
void sim_held_start(sim_worker *worker, int key);      /* may it? */

/* flight.c */
bool sim_flights_act(sim_worker *worker);
void sim_flights_tick(sim_world *world); /* what happens by now, happens */
int64_t sim_flights_next_ms(const sim_world *world);
/* The attempt without a claim that has ended and is settled with this token; -1: there is none. */
int sim_flights_landed(const sim_world *world, once_token token);
size_t sim_flights_air(const sim_worker *worker, int handler); /* -1: of all handlers */
void sim_flights_paused(sim_worker *worker, int64_t ms);
void sim_flights_excuse(sim_worker *worker); /* they may lose their leases */
void sim_flights_finish(sim_world *world);   /* whatever still comes, comes now */
void sim_flights_gone(sim_worker *worker);   /* their worker is */

/* seed.c */
void sim_run(uint64_t seed, bool print, sim_result *result);

#endif
