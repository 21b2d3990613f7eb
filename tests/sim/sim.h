/* The simulator: the real machine (core/pipeline), the real executor and the real stores in a world that is made up.
 *
 *   world.c   what one seed looks like: messages and their fates, the pipeline, which faults there are; the trace
 *   broker.c  delivers, duplicates, reorders, delivers again, remembers acks
 *   store.c   stands between an executor and a real store: failures, lost replies, crashes; notes what really happened
 *   worker.c  one process: machine, executor, effects; its births, deaths and pauses
 *   record.c  the world's own record of what happened, and the judgement on it
 *   seed.c    the loop: who acts next, how time passes, when it is over
 *   main.c    the command line and the tests
 *
 * Everything follows from the seed: one thread, one random generator for the world and one for each worker, no real clock.
 * The record is made of what goes over the wire (deliveries, acks, effects, requests and answers of the store) at the
 * moment when a real commit succeeded. The judgement reads the record and the script, never an entry or the machine. */
#ifndef ONCE_SIM_H
#define ONCE_SIM_H

#include <stdio.h>

#include "runtime/executor.h"
#include "testenv.h"

/* --- faults: each kind is counted when it fired --- */

#define SIM_FAULT_MAP(X)                                                                                              \
    X(crash_before, "a worker dies before an action")                                                                 \
    X(crash_after, "a worker dies after an action, before it knew the answer")                                       \
    X(crash_after_commit, "a worker dies right after a commit")                                                       \
    X(crash_in_effects, "a worker dies in the middle of its effects")                                                 \
    X(killer, "a message kills its worker")                                                                           \
    X(zombie, "a worker pauses past its lease and comes back")                                                        \
    X(pause, "a worker pauses for a moment")                                                                          \
    X(stop, "a worker is told to stop, and started again")                                                            \
    X(unclean, "a worker starts after an unclean end")                                                                \
    X(store_fails, "a call to the store fails, nothing happened")                                                     \
    X(store_reply_lost, "a call to the store happens, its reply is lost")                                             \
    X(commit_fails, "a commit fails, nothing happened")                                                               \
    X(commit_reply_lost, "a commit happens, its reply is lost")                                                       \
    X(store_crash, "the store crashes and comes back with what it acknowledged")                                      \
    X(store_busy, "another worker has the store")                                                                     \
    X(effects_fail, "the database of the effects fails")                                                              \
    X(fetch_fails, "fetching fails")                                                                                  \
    X(ack_fails, "an ack fails, nothing happened")                                                                    \
    X(ack_reply_lost, "an ack happens, its reply is lost")                                                            \
    X(invisible, "a message is delivered to another worker because the first one took too long")                     \
    X(redelivered, "a message is delivered again after its worker died")                                              \
    X(duplicate_now, "the broker delivers a message twice at once")                                                   \
    X(duplicate_late, "the broker delivers a message again after it was acked")                                       \
    X(duplicate_expired, "the same, after its entry has expired")                                                     \
    X(reordered, "the broker delivers out of order")                                                                  \
    X(skewed, "the wall clock of a worker is up to 10 minutes off")                                                   \
    X(year_forward, "a wall clock jumps a year forward")                                                              \
    X(hour_back, "a wall clock jumps an hour back")                                                                   \
    X(swept, "expired entries are swept")                                                                             \
    X(replayed, "an operator puts a dead letter back to work")                                                        \
    X(malformed, "a message is no JSON or lacks its key")                                                             \
    X(conflicting, "a message has the key of another and other content")                                              \
    X(resent, "a message is sent twice, under different coordinates")                                                 \
    X(business_twice, "a business operation comes under two keys")                                                    \
    X(too_old, "a message is older than what is remembered")                                                          \
    X(failing, "an effect fails and is worth another try")                                                            \
    X(poison, "an effect fails every time")                                                                           \
    X(gap, "a version of a lane never comes")                                                                         \
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
    FATE_KILLER
} sim_fate;

typedef struct sim_key {
    sim_fate fate;
    uint32_t fails;
    int lane; /* -1: none */
    int64_t version;
    int op; /* the business operation; two keys may share one */

    /* the record */
    bool final;
    once_outcome outcome; /* when final */
    uint32_t effects, failures, letters, kills;
    bool owned;      /* the store has its body */
    int winner;      /* the variant of the content that was let in; -1: none yet */
    uint64_t first;  /* serial of its first delivery */
    bool replayed;   /* came back from the dead */
    /* the last claim that the store granted */
    bool open, known; /* open: not settled; known: the worker got the answer */
    uint64_t holder;  /* incarnation */
    once_token token;
    int64_t granted_ms;
    bool excused;    /* the holder died or paused */
    uint32_t silent; /* claims that ended without a word, and rightly so */
} sim_key;

typedef struct sim_message {
    int key; /* -1: it has none that can be read */
    int variant;
    bool too_old;
    once_bytes body;
    uint32_t letters, acks;
} sim_message;

typedef struct sim_lane {
    bool has_top;
    int64_t top;        /* highest version that ended done, already or rejected */
    uint64_t last_first; /* `first` of the key whose effect came last */
} sim_lane;

/* One delivery that the broker owes. It goes on until it is acked. */
typedef struct sim_delivery {
    enum { PENDING, IN_FLIGHT, ACKED } state;
    int message;
    int64_t at_ms;   /* pending: not before; in flight: when it becomes visible again */
    uint64_t holder; /* incarnation */
} sim_delivery;

/* --- a worker --- */

typedef struct sim_world sim_world;
typedef struct sim_worker sim_worker;

typedef struct sim_store {
    once_store store;
    sim_worker *worker;
} sim_store;

typedef struct sim_source {
    once_source source;
    sim_worker *worker;
} sim_source;

/* What happened inside a transaction; becomes record when it is really committed. */
typedef struct sim_note {
    enum { NOTE_GRANT, NOTE_EFFECT, NOTE_OUTCOME, NOTE_OWNED, NOTE_LETTER } what;
    int key, message;
    once_outcome outcome;
    once_answer answer;
    once_token token;
    bool known;
} sim_note;

typedef enum sim_state { DOWN, UP, PAUSED } sim_state;

struct sim_worker {
    sim_world *world;
    int index;
    sim_state state;
    int64_t until_ms; /* down, paused */
    uint64_t incarnation;
    bool unclean;
    bool stopping;
    bool killed; /* its effects killed it */
    int64_t wall_off_ms;
    test_env env;
    once_store *real;
    sim_store store;
    sim_source source;
    once_pipe *pipe;
    once_executor executor;
    once_action *store_action, *source_action;
    int64_t fetch_until_ms;
    bool store_done, source_done; /* carried out, but the machine does not know */
    bool in_tx, tx_lost;
    bool holds; /* it was granted a claim and has not come to use it */
    sim_note *notes;
    size_t notes_n, notes_size;
    uint32_t *delivered; /* by ticket - 1 */
    size_t delivered_n, delivered_size;
    uint64_t acked;
};

/* --- the world --- */

#define SIM_WORKERS 4
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
    uint32_t attempts;
    int64_t lease_ms, gap_ms, visible_ms;
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
    sim_delivery *deliveries;
    size_t deliveries_n, deliveries_size;
    uint64_t delivered;

    sim_worker workers[SIM_WORKERS];
    int workers_n;
    uint64_t incarnations;
    uint32_t clean_starts;
    sim_worker *tx_owner;
    int64_t store_down_until_ms;
    once_store *memory;
    test_env memory_env;
    char folder[64], url[96];

    bool counts_known; /* nobody died, so the summaries add up to the record */
    uint64_t counted_done, counted_dead;
    uint64_t letters;
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
bool sim_broker_has(sim_world *world);           /* something can be delivered now */
bool sim_broker_empty(const sim_world *world);   /* everything is acked */
int64_t sim_broker_next_ms(const sim_world *world);
void sim_broker_tick(sim_world *world);          /* what took too long becomes visible again */
void sim_broker_died(sim_worker *worker);        /* its messages go to others */
void sim_source_init(sim_worker *worker);

/* store.c */
void sim_store_init(sim_worker *worker);
int sim_store_open(sim_worker *worker);
void sim_store_close(sim_worker *worker); /* as the end of the process: what is open is rolled back */
void sim_store_crash(sim_world *world);
void sim_store_replay(sim_worker *worker); /* any one dead letter */

/* record.c */
void sim_note_add(sim_worker *worker, sim_note note);
void sim_notes_drop(sim_worker *worker);
void sim_notes_commit(sim_worker *worker);
void sim_record_ack(sim_world *world, sim_worker *worker, int message);
void sim_record_replay(sim_world *world, int key);
void sim_record_excuse(sim_worker *worker); /* its open claims may end without a word */
void sim_record_end(sim_worker *worker, const once_counts *counts);
bool sim_record_over(sim_world *world, char *why, size_t size); /* every message is through */
void sim_record_final(sim_world *world);

/* worker.c */
void sim_worker_start(sim_worker *worker);
void sim_worker_die(sim_worker *worker);
bool sim_worker_act(sim_worker *worker, bool store_side); /* false: nothing to do now */
void sim_worker_free(sim_worker *worker);

/* seed.c */
void sim_run(uint64_t seed, bool print, sim_result *result);

#endif
