#include "play.h"

#include <stdio.h>
#include <string.h>

enum { LEASE = 600000 };

play play_of(const once_env *env, bool (*lied)(void))
{
    static uint64_t number;
    play p = {.env = env,
              .lied = lied,
              .begun_ns = once_env_mono_ns(env),
              .scope = {{0}, ONCE_BYTES("c"), ONCE_BYTES("op")},
              .tokens = ++number << 32};
    for (int i = 0; i < PLAY_KEYS; i++)
        snprintf(p.keys[i], sizeof p.keys[i], "%c%llx", 'a' + i, (unsigned long long)number);
    return p;
}

bool play_is_late(const play *p) { return once_env_mono_ns(p->env) - p->begun_ns > INT64_C(1000000000); }

static once_request ask(play *p, int key)
{
    const once_bytes bytes = {p->keys[key], strlen(p->keys[key])};
    ++p->tokens;
    return (once_request){
        .scope = &p->scope,
        .key = bytes,
        .id = once_key_id(p->store->secret, &p->scope, bytes),
        .token = {p->tokens, ~p->tokens},
        .lane = {.id = key ? once_lane_id(p->store->secret, &p->scope, (once_bytes){p->keys[0], strlen(p->keys[0])})
                           : (once_hash){0},
                 .gap_ms = -1},
        .lease_ms = LEASE,
        .remember_ms = LEASE,
        .sent_ms = ONCE_NO_TIME,
        .at = {ONCE_BYTES("place"), ONCE_BYTES("1")},
    };
}

static const once_message message = {.body = ONCE_BYTES("{}"), .type = ONCE_BYTES("t"), .sent_ms = ONCE_NO_TIME};

bool play_note(play *p, int rc, once_error *err)
{
    if (rc == ONCE_OK) return true;
    CHECK(err->status == rc && err->text[0]);
    *err = (once_error){0};
    p->told = true;
    return false;
}

/* A second RUN without an error before it would be an effect that happens twice. */
static void claim(play *p, int key, once_request *r)
{
    const once_request *requests = r;
    once_decision d = {0};
    once_error err = {0};
    *r = ask(p, key);
    if (play_is_late(p)) return;
    if (!play_note(p, p->store->ops->claim(p->store, &requests, 1, &d, &p->arena, &err), &err) ||
        d.answer != ONCE_ANSWER_RUN)
        return;
    CHECK(!p->runs[key] || p->told || p->lied());
    p->runs[key] = true;
}

static void settle(play *p, int key, const once_request *r, once_outcome outcome)
{
    const once_settlement s = {.request = r, .outcome = outcome, .reason = ONCE_BYTES("because"), .message = &message};
    once_error err = {0};
    bool applied = false;
    if (play_is_late(p)) return;
    if (play_note(p, p->store->ops->settle(p->store, &s, 1, &applied, &err), &err) && applied)
        p->runs[key] = outcome == ONCE_DONE; /* done: never again */
}

static bool see_entry(void *user, const once_entry *entry)
{
    return ++*(int *)user, entry->state < ONCE_STATES && *(int *)user < 1000;
}
static bool see_letter(void *user, const once_letter *letter)
{
    return ++*(int *)user, letter->id > 0 && *(int *)user < 1000;
}
static bool see_audit(void *user, const once_audit *audit)
{
    return ++*(int *)user, audit->note.len < 100000 && *(int *)user < 1000;
}

static void look(play *p)
{
    const once_store_ops *ops = p->store->ops;
    once_taken taken[4];
    once_stats stats;
    once_sweep_result swept;
    once_bytes fact;
    once_error err = {0};
    size_t n = 0;
    int seen = 0;
    bool found;
    if (!play_is_late(p))
        (void)play_note(p,
                        ops->take(p->store, p->scope.consumer, (once_token){++p->tokens, 1}, false, LEASE, 4, NULL,
                                  taken, &n, &p->arena, &err),
                        &err);
    CHECK(n <= 4);
    if (!play_is_late(p)) (void)play_note(p, ops->stats(p->store, p->scope.consumer, &stats, &err), &err);
    for (int state = 1; state < ONCE_STATES && !play_is_late(p); state++)
        (void)play_note(p, ops->list(p->store, p->scope.consumer, (once_state)state, see_entry, &seen, &err), &err);
    if (!play_is_late(p))
        (void)play_note(p, ops->letters(p->store, p->scope.consumer, 0, see_letter, &seen, &err), &err);
    if (!play_is_late(p)) (void)play_note(p, ops->audits(p->store, p->scope.consumer, see_audit, &seen, &err), &err);
    if (!play_is_late(p)) (void)play_note(p, ops->fact_set(p->store, "f", ONCE_BYTES("1"), &err), &err);
    if (!play_is_late(p)) (void)play_note(p, ops->fact_get(p->store, "f", &fact, &p->arena, &err), &err);
    if (!play_is_late(p)) (void)play_note(p, ops->sweep(p->store, 10, &swept, &err), &err);
    if (!play_is_late(p)) (void)play_note(p, ops->replay_letter(p->store, 1, &found, &err), &err);
}

void play_store(play *p)
{
    once_request a, b, c, again;
    const once_message *messages = &message;
    once_decision d;
    once_error err = {0};
    claim(p, 0, &a);
    claim(p, 0, &again);
    if (p->runs[0]) settle(p, 0, &a, ONCE_DONE);
    claim(p, 0, &again);
    claim(p, 1, &b);
    c = ask(p, 2);
    const once_request *third = &c;
    if (!play_is_late(p))
        (void)play_note(p, p->store->ops->accept(p->store, &third, &messages, 1, &d, &p->arena, &err), &err);
    if (p->runs[1]) settle(p, 1, &b, ONCE_DEAD);
    look(p);
}
