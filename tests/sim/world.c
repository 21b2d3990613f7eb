/* The world of a seed: its traits, messages and fates, the pipeline, the faults, and the trace. */
#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "runtime/config.h"
#include "sim.h"

const char *const sim_fault_names[SIM_FAULTS] = {
#define NAME(name, text) #name,
    SIM_FAULT_MAP(NAME)
#undef NAME
};

const char *const sim_fault_texts[SIM_FAULTS] = {
#define TEXT(name, text) text,
    SIM_FAULT_MAP(TEXT)
#undef TEXT
};

uint64_t sim_random(sim_world *world, uint64_t below) { return below ? test_random(&world->random) % below : 0; }
bool sim_chance(sim_world *world, unsigned percent) { return sim_random(world, 100) < percent; }

void sim_fired(sim_world *world, sim_fault fault) { world->result->fired[fault]++; }

bool sim_fires(sim_world *world, sim_fault fault)
{
    if (world->phase != PHASE_FAULTS || world->rate[fault] == 0 || world->faults_left == 0) return false;
    if (sim_random(world, 10000) >= world->rate[fault]) return false;
    world->faults_left--;
    sim_fired(world, fault);
    return true;
}

/* --- the trace --- */

void sim_print_step(FILE *to, const sim_step *step)
{
    (void)fprintf(to, "%10.3f  ", (double)step->now_ms / 1000);
    if (step->worker >= 0) (void)fprintf(to, "worker %d  ", step->worker);
    else (void)fputs("world     ", to);
    (void)fprintf(to, "%s", step->what);
    if (step->detail) (void)fprintf(to, " %s", step->detail);
    if (step->a >= 0) (void)fprintf(to, " %lld", (long long)step->a);
    if (step->b >= 0) (void)fprintf(to, " %lld", (long long)step->b);
    if (step->status != ONCE_OK) (void)fprintf(to, "  -> %s", once_status_name(step->status));
    (void)fputc('\n', to);
}

static void mix(uint64_t *hash, uint64_t value)
{
    *hash = (*hash ^ value) * UINT64_C(0x9e3779b97f4a7c15) ^ (*hash >> 29);
}

static void mix_text(uint64_t *hash, const char *text)
{
    for (; text && *text; text++) mix(hash, (unsigned char)*text);
}

void sim_trace(sim_world *world, int worker, const char *what, const char *detail, int64_t a, int64_t b, int status)
{
    sim_result *r = world->result;
    const sim_step step = {world->now_ms - world->start_ms, what, detail, worker, status, a, b};
    r->last[r->steps % SIM_TRACE] = step;
    r->steps++;
    if (r->last_n < SIM_TRACE) r->last_n++;
    mix(&r->hash, (uint64_t)step.now_ms);
    mix(&r->hash, (uint64_t)worker);
    mix(&r->hash, (uint64_t)a);
    mix(&r->hash, (uint64_t)b);
    mix(&r->hash, (uint64_t)status);
    mix_text(&r->hash, what);
    mix_text(&r->hash, detail);
    if (world->print) sim_print_step(stdout, &step);
}

void sim_violation(sim_world *world, const char *format, ...)
{
    if (world->result->failed) return; /* the first one tells the story */
    world->result->failed = true;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(world->result->why, sizeof world->result->why, format, args);
    va_end(args);
}

/* --- names: how a key or a message on the wire is recognised --- */

static int number(once_bytes text, size_t from)
{
    int n = 0;
    if (text.len <= from) return -1;
    for (size_t i = from; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9' || n > 100000) return -1;
        n = n * 10 + (text.data[i] - '0');
    }
    return n;
}

int sim_key_of(const sim_world *world, const once_request *request)
{
    const int n = number(request->key, 1);
    assert(n >= 0 && request->scope);
    if (!world->tenants) return n;
    assert(request->scope->tenant.len == 1);
    return n * 2 + (request->scope->tenant.data[0] == 'b');
}

int sim_message_of(const sim_world *world, const once_message *message)
{
    once_bytes point = message->at.point; /* what is behind the slash changes with each delivery */
    const char *slash = memchr(point.data, '/', point.len);
    if (slash) point.len = (size_t)(slash - point.data);
    const int n = number(point, 0);
    assert(n >= 0 && n < world->messages_n);
    return n;
}

/* --- messages --- */

static once_bytes text_of(sim_world *world, const once_buf *buf)
{
    once_bytes out = {0};
    const once_bytes from = once_buf_bytes(buf);
    if (!once_arena_copy(&world->arena, from, &out)) abort();
    return out;
}

static int message_add(sim_world *world, int key, int variant, bool too_old, bool other_spelling)
{
    const sim_key *k = &world->keys[key];
    const int64_t sent_ms = TEST_EPOCH_MS - (too_old ? INT64_C(3) * SIM_REMEMBER_MS : 0);
    once_buf body;
    once_buf_init(&body, 1000);
    once_buf_printf(&body, other_spelling ? "{ \"amount\" : %d.0, \"ts\":%lld" : "{\"amount\":%d,\"ts\":%lld",
                    10 + variant + k->shift, (long long)sent_ms);
    if (k->lane >= 0) once_buf_printf(&body, ",\"lane\":\"L%d\"", world->tenants ? k->lane / 2 : k->lane);
    if (world->versioned) once_buf_printf(&body, ",\"v\":%lld", (long long)k->version);
    if (world->handlers_n > 1) once_buf_printf(&body, ",\"type\":\"h%d\"", k->handler);
    if (world->tenants) once_buf_printf(&body, ",\"t\":\"%c\"", key % 2 ? 'b' : 'a');
    once_buf_printf(&body, ",\"id\":\"k%d\"}", world->tenants ? key / 2 : key);
    world->messages[world->messages_n] =
        (sim_message){.key = key, .variant = variant, .too_old = too_old, .body = text_of(world, &body)};
    once_buf_release(&body);
    return world->messages_n++;
}

static void malformed_add(sim_world *world)
{
    static const char *const bodies[] = {
        "{\"id\":", "[1,2", "", "{\"amount\":3}", "\xff\xfe", "{\"id\":{\"a\":1}}", "{\"id\":\"k1\",\"id\":\"k2\"}"};
    const char *body = bodies[sim_random(world, sizeof bodies / sizeof *bodies)];
    world->messages[world->messages_n++] = (sim_message){.key = -1, .body = {body, strlen(body)}};
    sim_fired(world, SIM_malformed);
}

static sim_fate choose_fate(sim_world *world)
{
    switch (sim_random(world, 40)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 5: return FATE_FAILS;
    case 6: return FATE_POISON;
    case 7: return FATE_REJECTED;
    case 8: return FATE_STALE;
    case 9: return FATE_DEAD;
    default: return FATE_FINE;
    }
}

/* The version of the key before, once more; what was counted for this one is a version that never comes. */
static void make_twin(sim_world *world, int key)
{
    sim_key *k = &world->keys[key], *other = &world->keys[key - 1];
    k->twin = key - 1;
    other->twin = key;
    k->lane = other->lane;
    k->version = other->version;
    k->handler = other->handler;
    k->shift = sim_chance(world, 50) ? 40 : 0;
    sim_fired(world, k->shift ? SIM_twin_differs : SIM_twin);
}

static void make_keys(sim_world *world)
{
    const int lanes = 1 + (int)sim_random(world, 3);
    int64_t versions[16] = {0};
    const bool killers = !world->mild && sim_chance(world, 8);
    for (int i = 0; i < world->keys_n; i++) {
        sim_key *k = &world->keys[i];
        *k = (sim_key){.lane = -1, .twin = -1, .op = i, .winner = -1, .flight = -1, .fate = choose_fate(world)};
        k->handler = (int)sim_random(world, (uint64_t)world->handlers_n);
        if (k->fate == FATE_FAILS && world->attempts < 2) k->fate = FATE_FINE;
        if (k->fate == FATE_FAILS) k->fails = 1 + (uint32_t)sim_random(world, world->attempts - 1);
        k->rolls_back = (k->fate == FATE_FAILS || k->fate == FATE_POISON) && sim_chance(world, 3);
        if (k->fate == FATE_POISON) sim_fired(world, SIM_poison);
        if (k->fate == FATE_FAILS) sim_fired(world, SIM_failing);
        if (killers && i == world->keys_n / 2) k->fate = FATE_KILLER;
        if (world->ordered) {
            k->lane = (int)sim_random(world, (uint64_t)lanes);
            if (world->tenants) k->lane = k->lane * 2 + i % 2;
            k->version = ++versions[k->lane];
            if (world->gap && k->version > 1 && sim_chance(world, 5)) {
                k->version = ++versions[k->lane];
                sim_fired(world, SIM_gap);
            }
        }
        if (i > 0 && world->twins && world->keys[i - 1].twin < 0 &&
            !world->handlers[world->keys[i - 1].handler].natural && sim_chance(world, 15))
            make_twin(world, i);
        if (i > 0 && !world->ordered && k->fate == FATE_FINE && world->keys[i - 1].fate == FATE_FINE &&
            k->handler == world->keys[i - 1].handler && !world->handlers[k->handler].natural && sim_chance(world, 5)) {
            k->op = world->keys[i - 1].op;
            sim_fired(world, SIM_business_twice);
        }
    }
}

static void make_messages(sim_world *world)
{
    const int64_t spread_ms = (int64_t)sim_random(world, 3) * 2000;
    int64_t at_ms = world->now_ms;
    for (int i = 0; i < world->keys_n; i++) {
        const int first = world->messages_n;
        const bool natural = world->handlers[world->keys[i].handler].natural; /* any content and any age will do */
        const bool too_old = world->timed && !natural && sim_chance(world, 6);
        message_add(world, i, 0, too_old, false);
        if (too_old) sim_fired(world, SIM_too_old);
        if (!too_old && sim_chance(world, 6)) {
            message_add(world, i, 0, false, true);
            sim_fired(world, SIM_resent);
        }
        const bool fails =
            world->keys[i].fate == FATE_FAILS || world->keys[i].fate == FATE_POISON; /* a correction may come in time */
        if (!too_old && !world->twins && !natural &&
            sim_chance(world, fails ? 30 : 5)) { /* contents of twins are their own story */
            message_add(world, i, 1, false, false);
            sim_fired(world, SIM_conflicting);
        }
        if (sim_chance(world, 4)) malformed_add(world);
        for (int m = first; m < world->messages_n; m++) {
            if (spread_ms) at_ms += (int64_t)sim_random(world, (uint64_t)(2 * spread_ms / world->keys_n + 1));
            sim_broker_add(world, m, at_ms);
        }
    }
}

/* --- the pipeline, as its user would write it --- */

/* The effects of the simulator are its own; the file only says how many handlers there are. */
static void make_handlers(sim_world *world)
{
    once_handler_spec *handlers = once_arena_alloc(&world->arena, world->spec->n_handlers * sizeof *handlers);
    if (!handlers) abort();
    assert(world->spec->n_handlers == (size_t)world->handlers_n);
    for (int i = 0; i < world->handlers_n; i++) {
        const sim_handler *h = &world->handlers[i];
        handlers[i] = world->spec->handlers[i];
        if (h->external) handlers[i].bits |= ONCE_EFFECT_OUTSIDE;
        handlers[i].slots = h->slots;
        handlers[i].hold = h->hold;
        if (h->killable) handlers[i].bits |= ONCE_EFFECT_OUTLIVES; /* a command */
        if (h->asks) handlers[i].bits |= ONCE_EFFECT_ASKS;
        if (h->then) handlers[i].bits |= ONCE_EFFECT_THEN;
        /* What is under way when nobody waits for it any more has happened by then, or never will. */
        handlers[i].lookup = (once_lookup){.after_ms = 5000 + 4 * world->lease_ms, .for_ms = 60000};
        handlers[i].natural = h->natural;
        handlers[i].gate = (once_gate_spec){.dead_share = SIM_HELD_AFTER * 100 / ONCE_DEAD_OUTCOMES};
        if (h->external) handlers[i].gate.breaker = (once_breaker){100, SIM_HELD_AFTER, SIM_HELD_WITHIN_MS};
    }
    world->spec->handlers = handlers;
    if (world->cursor) world->spec->source.bits |= ONCE_SOURCE_CURSOR;
    world->spec->drain_ms = (int64_t)sim_random(world, 4000);
    /* In every fourth world little may wait in the store; the draws are left as they are. */
    world->spec->waiting_max = (once_waiting_size){world->result->seed % 4 ? 0 : 1 + world->result->seed / 4 % 8, 0};
}

static bool make_spec(sim_world *world)
{
    once_buf text;
    once_buf_init(&text, 10000);
    once_buf_puts(&text, "consumer: sim\nstore: \"memory:\"\nsource: {file: {path: sim.ndjson}}\nkey: \"${/id}\"\n");
    if (world->handlers_n == 1) once_buf_puts(&text, "handler: {sql: [SELECT 1]}\n");
    else once_buf_puts(&text, "type: \"${/type}\"\nhandlers:\n");
    for (int i = 0; world->handlers_n > 1 && i < world->handlers_n; i++)
        once_buf_printf(&text, "  h%d: {sql: [SELECT 1]}\n", i);
    if (sim_chance(world, 25)) once_buf_puts(&text, "ack: after_accept\n");
    if (world->tenants) once_buf_puts(&text, "tenant: \"${/t}\"\n");
    if (world->ordered) once_buf_puts(&text, "order: \"${/lane}\"\n");
    if (world->versioned)
        once_buf_puts(&text, world->first ? "version: {from: \"${/v}\", first: 1}\n" : "version: \"${/v}\"\n");
    if (world->block) once_buf_puts(&text, "on_dead: block\n");
    if (world->twins) once_buf_puts(&text, "fingerprint: [/amount]\n");
    if (world->gap)
        once_buf_printf(&text, "gap: {wait: %lldms, then: %s}\n", (long long)world->gap_ms,
                        world->gap_dead ? "dead" : "run");
    if (world->timed) once_buf_printf(&text, "time: \"${/ts}\"\nremember: %dms\n", SIM_REMEMBER_MS);
    else once_buf_puts(&text, sim_chance(world, 50) ? "remember: 7d\n" : "remember: forever\n");
    once_buf_printf(&text, "lease: %lldms\nretry: {attempts: %u, backoff: 50ms..%ums", (long long)world->lease_ms,
                    world->attempts, 100u + (unsigned)sim_random(world, 2000));
    if (world->retry_for_ms) once_buf_printf(&text, ", for: %lldms", (long long)world->retry_for_ms);
    once_buf_puts(&text, "}\n");
    static const unsigned batches[] = {1, 2, 3, 5, 8, 16};
    once_buf_printf(&text, "batch: {max: %u}\n", batches[sim_random(world, 6)]);
    once_error err = {0};
    const int rc = once_config_parse("sim.yaml", once_buf_bytes(&text), &world->arena, NULL, NULL, &world->spec, &err);
    once_buf_release(&text);
    if (rc != ONCE_OK) sim_violation(world, "the pipeline of the simulator was refused: %s", err.text);
    else make_handlers(world);
    return rc == ONCE_OK;
}

/* --- which faults there are --- */

static const struct {
    sim_fault fault;
    uint32_t rate; /* at most, per 10,000 chances */
    bool mild;     /* also in a seed where every message must keep its budget */
} rates[] = {
    {SIM_crash_before, 100, false},
    {SIM_crash_after, 100, false},
    {SIM_crash_after_commit, 1000, false},
    {SIM_crash_in_effects, 300, false},
    {SIM_crash_in_flight, 300, false},
    {SIM_reply_lost, 1500, true},
    {SIM_handler_dies, 800, true},
    {SIM_no_start, 500, true},
    {SIM_outage, 1500, true},
    {SIM_zombie, 100, false},
    {SIM_pause, 100, true},
    {SIM_stop, 100, true},
    {SIM_store_fails, 200, true},
    {SIM_store_reply_lost, 200, true},
    {SIM_commit_fails, 500, true},
    {SIM_commit_reply_lost, 800, true},
    {SIM_store_crash, 50, false},
    {SIM_replayed, 300, true},
    {SIM_effects_fail, 300, true},
    {SIM_fetch_fails, 300, true},
    {SIM_ack_fails, 500, true},
    {SIM_ack_reply_lost, 500, true},
    {SIM_acked_in_part, 1000, true},
    {SIM_rebalanced, 60, true},
    {SIM_stream_lost, 60, true},
    {SIM_cancelled, 60, true},
    {SIM_reconnected, 60, true},
    {SIM_release_fails, 2000, true},
    {SIM_extend_fails, 300, true},
    {SIM_invisible, 10000, true},
    {SIM_duplicate_now, 800, true},
    {SIM_duplicate_late, 500, true},
    {SIM_reordered, 3000, true},
    {SIM_year_forward, 30, true},
    {SIM_hour_back, 30, true},
};

static void choose_faults(sim_world *world)
{
    if (sim_chance(world, 3)) return; /* a world where all goes well */
    world->rate[SIM_seek_fails] = world->cursor ? 2000 : 0;
    world->rate[SIM_then_fails] = world->result->seed % 5 ? 1500 : 0;
    world->rate[SIM_no_use] = world->rate[SIM_outage_of_handler] = world->rate[SIM_storm] = world->rate[SIM_no_then] =
        world->result->seed % 3 ? 0 : 300;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        if (world->mild && !rates[i].mild) continue;
        if (sim_chance(world, 50)) world->rate[rates[i].fault] = 1 + (uint32_t)sim_random(world, rates[i].rate);
    }
    if (world->fifo) world->rate[SIM_reordered] = 0;
    if (world->finite) world->rate[SIM_replayed] = world->rate[SIM_invisible] = world->rate[SIM_duplicate_late] = 0;
    world->faults_left = 5 + (uint32_t)sim_random(world, 40);
    world->faults_until_ms = world->now_ms + 2000 + (int64_t)sim_random(world, 60000);
}

static sim_handler choose_handler(sim_world *world)
{
    sim_handler h = {.natural = sim_chance(world, 20), .external = sim_chance(world, 75)};
    if (!h.external) return h;
    h.hold = !h.natural && sim_chance(world, 50);
    h.asks = !h.natural && world->result->seed % 2; /* the draws are left as they are */
    h.then = !h.natural && world->result->seed / 2 % 3 == 0;
    h.killable = sim_chance(world, 75);
    h.processes = h.killable && sim_chance(world, 40) ? 1 + (uint32_t)sim_random(world, 2) : 0;
    h.slots = h.processes ? h.processes * (1 + (uint32_t)sim_random(world, 3)) : 1 + (uint32_t)sim_random(world, 4);
    return h;
}

static void choose_handlers(sim_world *world)
{
    world->handlers_n = 1;
    /* In a stream may stand still what needs a slot, and in another one may be what does not. */
    if (world->kind == BROKER_LOG && world->streams_n > 1 && sim_chance(world, 50)) {
        world->handlers_n = 2;
        world->streams_n = SIM_STREAMS;
        while (!world->handlers[0].external) world->handlers[0] = choose_handler(world);
        if (!world->handlers[0].processes) world->handlers[0].slots = 1;
        world->result->external = true;
        if (world->handlers[0].natural) world->counts_known = false;
        return;
    }
    if (sim_chance(world, 40)) return; /* one that is atomic */
    if (sim_chance(world, 40)) world->handlers_n += (int)sim_random(world, SIM_HANDLERS);
    for (int i = 0; i < world->handlers_n; i++) {
        world->handlers[i] = choose_handler(world);
        if (world->handlers[i].external) world->result->external = true;
        if (world->handlers[i].natural) world->counts_known = false; /* a lost reply: run twice, counted once */
    }
}

static bool is_contained(const sim_world *world)
{
    for (int i = 0; i < world->handlers_n; i++)
        if (world->handlers[i].external && world->handlers[i].killable) return false; /* a command */
    return true;
}

static void choose_broker(sim_world *world)
{
    static const sim_kind kinds[] = {BROKER_PLAIN, BROKER_PLAIN, BROKER_PLAIN, BROKER_LOG,
                                     BROKER_LOG,   BROKER_QUEUE, BROKER_QUEUE, BROKER_CHANNEL};
    const sim_kind kind = kinds[sim_random(world, sizeof kinds / sizeof *kinds)];
    world->kind = world->finite ? BROKER_PLAIN : kind;
    world->cursor = world->kind == BROKER_LOG && world->result->seed / 2 % 2; /* the draws are left as they are */
    const bool shared = world->kind == BROKER_LOG || world->kind == BROKER_CHANNEL;
    world->groups = world->kind == BROKER_QUEUE && sim_chance(world, 40);
    world->expires = world->kind == BROKER_QUEUE || (world->kind == BROKER_CHANNEL && sim_chance(world, 40));
    /* What comes again comes behind others. */
    if (world->kind == BROKER_CHANNEL || (world->kind == BROKER_QUEUE && !world->groups)) world->fifo = false;
    world->streams_n = world->groups ? 16 : 1 + (int)sim_random(world, SIM_STREAMS);
    world->prefetch = 1 + sim_random(world, 20);
    world->within_ms = 20 + (int64_t)sim_random(world, sim_chance(world, 50) ? 400 : 4000);
    world->beat_ms = world->kind == BROKER_LOG && sim_chance(world, 50) ? 2000 + (int64_t)sim_random(world, 8000) : 0;
    world->held_max_ms =
        world->expires && sim_chance(world, 50) ? world->visible_ms * (2 + (int64_t)sim_random(world, 4)) : 0;
    for (int i = 0; shared && i < SIM_STREAMS; i++) world->streams[i].next_offset = 1000 * (uint64_t)i;
    /* In half of these worlds the last stream comes later; the draws are left as they are. */
    const uint64_t seed = world->result->seed;
    if (world->kind == BROKER_LOG && seed / 4 % 2)
        world->streams[world->streams_n - 1].appears_ms = world->now_ms + 500 + (int64_t)(seed / 8 % 16) * 500;
    if (world->kind == BROKER_LOG && seed / 128 % 2) world->ack_pause_ms = 50;
}

static void choose(sim_world *world)
{
    world->mild = sim_chance(world, 35);
    world->sqlite = sim_chance(world, 10);
    world->workers_n = 1 + (int)sim_random(world, SIM_WORKERS);
    world->fifo = sim_chance(world, 40);
    world->finite = world->workers_n == 1 && sim_chance(world, 30);
    world->tenants = sim_chance(world, 15);
    world->ordered = sim_chance(world, 50);
    world->versioned = world->ordered && sim_chance(world, 50);
    world->gap = world->versioned && sim_chance(world, 60);
    world->gap_dead = sim_chance(world, 50);
    world->first = world->gap && sim_chance(world, 50);
    world->block = world->ordered && sim_chance(world, 30);
    world->twins = world->versioned && !world->tenants && sim_chance(world, 50);
    for (size_t i = 0; world->first && i < sizeof world->lanes / sizeof *world->lanes; i++)
        world->lanes[i].has_reach = true;
    world->timed = sim_chance(world, 25);
    world->attempts = 1 + (uint32_t)sim_random(world, 5);
    if (sim_chance(world, 25)) { /* a budget by time, which is mostly spent first */
        world->retry_for_ms = 1 + (int64_t)sim_random(world, 4000);
        world->attempts += 5;
    }
    world->lease_ms = (world->mild ? 30000 : 2000) + (int64_t)sim_random(world, 4000); /* mild: it never runs out */
    world->gap_ms = 200 + (int64_t)sim_random(world, 8000);
    world->visible_ms = 1000 + (int64_t)sim_random(world, 10000);
    choose_broker(world);
    choose_handlers(world);
    world->resolves = world->ordered || sim_chance(world, 70);
    world->presumes = sim_chance(world, 50);
    world->gone_known = sim_chance(world, 60);
    world->contained = is_contained(world);
    world->keys_n = 2 + (int)sim_random(world, world->kind == BROKER_PLAIN ? 24 : 14);
    if (world->tenants) world->keys_n += world->keys_n % 2;
}

/* The store is made by somebody whose clock is not far off. */
static bool open_first(sim_world *world, const char *url, once_backend **out)
{
    once_error err = {0};
    test_env_init(&world->memory_env, world->random);
    world->memory_env.boot_ms = world->now_ms;
    world->memory_env.wall_ms += (int64_t)sim_random(world, 1200000) - 600000;
    const once_store_options options = {.size = sizeof options, .env = &world->memory_env.env, .create = true};
    int rc = once__store_open(url, &options, out, &err);
    if (rc == ONCE_OK) rc = (*out)->ops->begin(*out, &err);
    if (rc == ONCE_OK) rc = (*out)->ops->fact_set(*out, "sim", ONCE_BYTES("made"), &err);
    if (rc == ONCE_OK) rc = (*out)->ops->commit(*out, &err);
    if (rc != ONCE_OK) sim_violation(world, "the store could not be made: %s", err.text);
    return rc == ONCE_OK;
}

static bool make_store(sim_world *world)
{
    if (!world->sqlite) return open_first(world, "memory:", &world->memory);
    /* In memory if possible: syncs cost nothing there. */
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(world->folder, sizeof world->folder, "%s/once-sim-XXXXXX", base);
    if (!mkdtemp(world->folder)) {
        world->folder[0] = 0;
        sim_violation(world, "no temporary folder in %s", base);
        return false;
    }
    (void)snprintf(world->url, sizeof world->url, "sqlite:%s/sim.db", world->folder);
    once_backend *first = NULL;
    const bool made = open_first(world, world->url, &first);
    once__store_close(first);
    return made;
}

static void print_script(const sim_world *world)
{
    static const char *const fates[] = {"fine", "fails", "poison", "rejected", "stale", "dead", "killer"};
    const struct {
        bool yes;
        const char *text;
    } traits[] = {
        {world->mild, "mild"},
        {!world->mild, "rough"},
        {world->fifo, "in order"},
        {world->finite, "finite"},
        {world->kind == BROKER_LOG, "a log with streams"},
        {world->kind == BROKER_QUEUE, "a queue"},
        {world->kind == BROKER_CHANNEL, "queues with tags"},
        {world->cursor, "a cursor in the store"},
        {world->groups, "groups"},
        {world->expires, "deliveries run out"},
        {world->tenants, "tenants"},
        {world->ordered, "lanes"},
        {world->versioned, "versions"},
        {world->gap && world->gap_dead, "gap: dead"},
        {world->gap && !world->gap_dead, "gap: run"},
        {world->timed, "times"},
        {world->presumes, "presumes"},
        {world->first, "first: 1"},
        {world->block, "on_dead: block"},
        {world->twins, "versions under two keys"},
        {world->gone_known, "who is gone is known"},
    };
    for (size_t i = 0; i < sizeof traits / sizeof *traits; i++)
        if (traits[i].yes) printf("%s, ", traits[i].text);
    if (world->retry_for_ms) printf("retry for %lld ms, ", (long long)world->retry_for_ms);
    printf("attempts %u, lease %lld ms, gap %lld ms\n", world->attempts, (long long)world->lease_ms,
           (long long)world->gap_ms);
    for (int i = 0; i < world->handlers_n; i++) {
        const sim_handler *h = &world->handlers[i];
        const char *mode = h->asks   ? "fenced, the other side is asked about unknowns"
                           : h->hold ? "fenced, unknowns are held"
                                     : "fenced, unknowns are tried again";
        printf("handler %d: %s%s", i, h->natural ? "natural, " : "", h->external ? mode : "atomic");
        if (h->external) printf(", %u slots%s", h->slots, h->killable ? "" : ", cannot be killed");
        if (h->processes) printf(", %u processes", h->processes);
        if (h->then) printf(", then");
        putchar('\n');
    }
    for (int i = 0; i < SIM_FAULTS; i++)
        if (world->rate[i]) printf("%s%s %u", i ? "  " : "", sim_fault_names[i], world->rate[i]);
    putchar('\n');
    for (int i = 0; i < world->keys_n; i++) {
        const sim_key *k = &world->keys[i];
        printf("key %d: handler %d, %s %u, operation %d, lane %d, version %lld; messages", i, k->handler,
               fates[k->fate], k->fails, k->op, k->lane, (long long)k->version);
        for (int m = 0; m < world->messages_n; m++)
            if (world->messages[m].key == i)
                printf(" %d%s%s", m, world->messages[m].variant ? " (conflicting)" : "",
                       world->messages[m].too_old ? " (too old)" : "");
        putchar('\n');
    }
}

bool sim_world_make(sim_world *world, uint64_t seed, sim_result *result, bool print)
{
    *world = (sim_world){
        .result = result, .print = print, .random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1, .counts_known = true};
    *result = (sim_result){.seed = seed, .hash = seed};
    world->start_ms = world->now_ms = 60000;
    world->step_limit = 400000;
    (void)test_random(&world->random);
    choose(world);
    choose_faults(world);
    world->keys = once_arena_new(&world->arena, sim_key, world->keys_n);
    world->messages = once_arena_new(&world->arena, sim_message, 4 * world->keys_n);
    world->ops = once_arena_new(&world->arena, uint32_t, world->keys_n);
    world->op_keys = once_arena_new(&world->arena, int, world->keys_n);
    if (!world->keys || !world->messages || !world->ops || !world->op_keys) abort();
    make_keys(world);
    make_messages(world);
    result->messages = (uint64_t)world->messages_n;
    sim_trace(world, -1, "a world with",
              world->sqlite ? "a file, workers and messages:" : "a memory store, workers and messages:",
              world->workers_n, world->messages_n, ONCE_OK);
    if (print) print_script(world);
    return make_spec(world) && make_store(world);
}

void sim_world_end(sim_world *world)
{
    for (int i = 0; i < world->workers_n; i++) sim_worker_free(&world->workers[i]);
    once__store_close(world->memory);
    if (world->folder[0]) {
        static const char *const files[] = {"", "-wal", "-shm", "-journal"};
        char path[128];
        for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
            (void)snprintf(path, sizeof path, "%s/sim.db%s", world->folder, files[i]);
            (void)unlink(path);
        }
        if (rmdir(world->folder) != 0) sim_violation(world, "the store left files behind in %s", world->folder);
    }
    free(world->deliveries);
    free(world->handouts);
    free(world->flights);
    once_arena_release(&world->arena);
}
