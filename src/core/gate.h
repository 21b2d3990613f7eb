/* The gate of a handler: how many of its messages may begin now. All, as many as its `rate` allows, one (a probe), or
 * none.
 *
 * A gate is open, or held. While it is held nothing begins, except one probe at a time, in intervals that double from
 * ONCE_GATE_FIRST_MS to ONCE_GATE_LONGEST_MS. A probe that succeeds opens the gate. It is held for one of these
 * reasons:
 *
 *   PAUSED   the effect cannot work until somebody acts: the command or the table is missing, permission is denied
 *   UNABLE   the effect cannot be started for now: no process, no descriptor, no memory
 *   BREAKER  too many of the last outcomes were failures that may pass: the other side is away
 *   DEAD     too many of the last outcomes were dead letters for one reason: the handler is at fault, not the messages
 *
 * Messages of a held handler wait, and no failure is counted for them. What would have become a dead letter for the
 * reason that holds the gate (DEAD) waits, too (once_gate_spares).
 *
 *   reason       opened by a probe that
 *   PAUSED       came to any outcome but release
 *   UNABLE       was started
 *   BREAKER      came to an answer: neither retry nor unknown nor release
 *   DEAD         came to an answer that is no dead letter
 *
 * A probe of the breaker that ends unknown, and is held for an operator, costs somebody's time. So there the intervals
 * grow up to ONCE_GATE_COSTLY_LONGEST_MS.
 *
 * A question about an effect before (`lookup`) that is answered says nothing about the next effect: it neither opens
 * the gate nor counts, except for UNABLE. One that is not answered is a failure like others.
 *
 * A transaction may be rolled back and made again. So what begins inside of one, and what would die in it, counts only
 * when it is committed: from once_gate_begin_pass to once_gate_end_pass.
 *
 * Reasons of dead letters are compared without what differs from message to message: words with a digit in them, and
 * what is quoted.
 *
 * Invariants: a probe is out only while the gate is held. The gate has no clock and no random numbers of its own; both
 * are arguments.
 *
 * Thread rule: the machine's (core/machine.h). */
#ifndef ONCE_CORE_GATE_H
#define ONCE_CORE_GATE_H

#include "base/env.h"
#include "core/entry.h"
#include "core/spec.h"

enum { ONCE_GATE_FIRST_MS = 1000, ONCE_GATE_LONGEST_MS = 60000 };
enum { ONCE_GATE_COSTLY_LONGEST_MS = 15 * 60000 };
enum { ONCE_GATE_UNABLE_FIRST_MS = 100, ONCE_GATE_UNABLE_LONGEST_MS = 10000 };
enum { ONCE_GATE_REASON = 300 };
enum { ONCE_GATE_PAUSERS = 256 };

typedef enum once_gate_hold {
    ONCE_GATE_OPEN,
    ONCE_GATE_PAUSED,
    ONCE_GATE_UNABLE,
    ONCE_GATE_BREAKER,
    ONCE_GATE_DEAD
} once_gate_hold;

/* The last outcomes: of each the hash of the reason of its dead letter, or 0. */
typedef struct once_dead_window {
    uint32_t reasons[ONCE_DEAD_OUTCOMES];
    uint32_t at;
} once_dead_window;

typedef struct once_gate {
    const once_gate_spec *spec;
    once_gate_hold hold;
    int status; /* held: what is wrong, of class PAUSE or RETRY, or ONCE_E_MESSAGE */
    char reason[ONCE_GATE_REASON];
    int64_t since_ms;    /* held: since then */
    int64_t at_ms;       /* held: no probe before */
    int64_t interval_ms; /* held: the one before at_ms */
    uint32_t probes;     /* held: how many have ended */
    const void *probe;   /* held: whose effect is the probe; NULL: none is out */
    int64_t looked_ms;   /* when the store was last asked for its messages, among all that is due (machine_due.c) */
    int64_t due_ms;      /* of the messages that this run left in the store: the last is due then (machine_gate.c) */
    uint32_t storm;      /* DEAD: the hash of the reason */
    bool costly;         /* BREAKER: the last failure is held for an operator */
    /* Messages that paused it because they were refused. `cleared`: another one was answered since. */
    struct once_pauser {
        uint64_t id;
        bool cleared;
    } pausers[ONCE_GATE_PAUSERS];
    uint32_t n_pausers, n_uncleared;
    once_dead_window dead, trial; /* trial: with the outcomes of the transaction that is made */
    bool tried;                   /* trial is in use */
    uint32_t in_pass;             /* messages that began in the transaction that is made */
    /* of the breaker: the last spec->breaker.of outcomes */
    int64_t ended_ms[ONCE_BREAKER_MOST];
    bool failed[ONCE_BREAKER_MOST];
    uint32_t ended, failures; /* how many there are, up to `of`; how many of these failed */
    uint32_t next;
    int64_t recent_ms; /* when the second of these two periods begins */
    struct once_recent {
        uint64_t ended, failed;
    } recent[2];
    /* of the rate: one message costs spec->rate.per_ms, and a millisecond brings spec->rate.n */
    int64_t credit, credit_ms; /* as of this time; ONCE_NO_TIME: nothing has begun yet */
} once_gate;

void once_gate_init(once_gate *gate, const once_gate_spec *spec);

static inline bool once_gate_is_held(const once_gate *gate) { return gate->hold != ONCE_GATE_OPEN; }
/* Neither held nor bounded by a rate. */
static inline bool once_gate_is_wide(const once_gate *gate)
{
    return !once_gate_is_held(gate) && gate->spec->rate.n == 0;
}

/* How many messages may begin now; SIZE_MAX: any number. */
size_t once_gate_room(const once_gate *gate, int64_t now_ms);
/* When there will be room, if there is none now and no probe is out; otherwise ONCE_NEVER. */
int64_t once_gate_at_ms(const once_gate *gate, int64_t now_ms);

/* A message begins, `who`: any pointer that names it until it ends. Without room it begins all the same (a claim whose
 * reply was lost is repeated in full), and the rate makes up for it later. */
void once_gate_begin(once_gate *gate, const void *who, int64_t now_ms);
/* While the gate is held: it has ended and is tried again at that time, and nothing else may begin before that ends. */
void once_gate_keep_probe(once_gate *gate, const void *who, int64_t at_ms);
/* Nobody will tell how it ended. */
void once_gate_forget(once_gate *gate, const void *who);
/* It did not begin after all. */
void once_gate_undo(once_gate *gate, const void *who);

/* How an attempt ended. */
typedef struct once_ended {
    const void *who;
    uint64_t id; /* of its message: the same in each attempt */
    /* ONCE_OK, or why no effect of this handler will work for now: a status of class PAUSE or RETRY. */
    int status;
    once_outcome outcome; /* what the effect came to */
    bool asked;           /* it was a question: RETRY and UNKNOWN say that there was no answer */
    bool dead;            /* the message is a dead letter now, or would be one if it were not spared */
    bool held;            /* UNKNOWN: an operator must decide about it */
    bool unjudged;        /* whether it is one is not known yet: once_gate_judged tells that */
    once_bytes reason;
} once_ended;
void once_gate_ended(once_gate *gate, const once_ended *how, int64_t now_ms, const once_env *env);
/* What became of an attempt that was told as `unjudged`: only `dead` and `reason` count. */
void once_gate_judged(once_gate *gate, const once_ended *how, int64_t now_ms, const once_env *env);
/* This message is refused (ONCE_E_DENIED). True: it was before, and another one was answered since, so the fault is its
 * own: it has failed (ONCE_RETRY), and no pause is needed. */
bool once_gate_blames(const once_gate *gate, uint64_t id);
/* The gate is held because of letters with this reason: the message waits, and is no dead letter. */
bool once_gate_spares(const once_gate *gate, once_bytes reason);

/* --- effects inside of a transaction --- */

/* A transaction begins, or was rolled back: what began in it has not. */
void once_gate_begin_pass(once_gate *gate);
/* The same as once_gate_begin, in the transaction that is made. */
void once_gate_begin_inside(once_gate *gate, const void *who, int64_t now_ms);
/* An outcome of this transaction; an empty reason: no dead letter. True: so many would die of this reason that this one
 * is spared. */
bool once_gate_try(once_gate *gate, once_bytes reason);
/* The transaction is committed, and each of its outcomes was told by once_gate_ended. */
void once_gate_end_pass(once_gate *gate);

/* --- in words --- */

/* "paused: permission denied", "paused by its breaker: ...". */
const char *once_gate_hold_name(once_gate_hold hold);
/* The hash by which reasons are compared; never 0. */
uint32_t once_gate_fold(once_bytes reason);

/* --- of all handlers --- */

typedef struct once_gates {
    const once_spec *spec;
    once_gate *at;  /* by handler */
    bool has_rates; /* some handler has a rate */
} once_gates;

bool once_gates_init(once_gates *gates, const once_spec *spec); /* false: out of memory */
void once_gates_release(once_gates *gates);
static inline once_gate *once_gate_of(const once_gates *gates, const once_handler_spec *handler)
{
    return &gates->at[handler - gates->spec->handlers];
}
bool once_gates_are_wide(const once_gates *gates); /* all of them */
int64_t once_gates_at_ms(const once_gates *gates, int64_t now_ms);
void once_gates_begin_pass(once_gates *gates);
void once_gates_end_pass(once_gates *gates);

#endif
