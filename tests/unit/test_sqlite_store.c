/* What is particular to the sqlite store: what it writes and what it does not, and what it forgets and must not
 * remember. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/failpoint.h"
#include "sqlite_fixture.h"

static long wal_bytes(fixture *f)
{
    char path[300];
    struct stat info;
    snprintf(path, sizeof path, "%s-wal", f->path);
    return stat(path, &info) == 0 ? (long)info.st_size : -1;
}

static void test_an_entry_is_written_once(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    fill(f, 0, 1, 1000); /* names are written now */
    const int64_t before = sqlite3_total_changes64(handle(f));
    fill(f, 100, 500, 1000);
    assert_int_equal(sqlite3_total_changes64(handle(f)) - before, 2); /* one row of records, and the head */
}

static int64_t count(fixture *f, const char *sql)
{
    int64_t n;
    if (once__sqlite_integer(((once_sqlite *)f->store)->db, sql, -1, &n, &f->err) != ONCE_OK)
        fail_msg("%s", f->err.text);
    return n;
}

/* A batch of natural messages, each in its lane, or in none; every message in it twice, as two rounds. */
static void fill_natural(fixture *f, uint64_t n, int64_t version)
{
    begin(f);
    for (uint64_t i = 0; i < 2 * n; i++) {
        once_request r = ask(f, i % n, 1000);
        r.natural = true;
        if (version >= 0)
            r.lane =
                (once_lane_request){.id = id_of(5000 + i % n), .versioned = true, .version = version, .gap_ms = -1};
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
        settle(f, &r, ONCE_DONE);
    }
    commit(f);
}

static void test_natural_ones_write_lane_versions_and_nothing_else(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    fill(f, 9000, 1, 1000);
    int64_t before = sqlite3_total_changes64(handle(f));
    const long wal = wal_bytes(f);
    fill_natural(f, 500, -1);
    assert_int_equal(sqlite3_total_changes64(handle(f)), before);
    assert_int_equal(wal_bytes(f), wal); /* no commit either */

    fill_natural(f, 500, 7);
    assert_int_equal(sqlite3_total_changes64(handle(f)) - before, 501); /* a row for each lane, and the head */
    assert_int_equal(count(f, "SELECT count(*) FROM once_lane WHERE version = 7"), 500);
    before = sqlite3_total_changes64(handle(f));
    fill_natural(f, 500, 7); /* equal versions run again, and nothing is new */
    assert_int_equal(sqlite3_total_changes64(handle(f)), before);
    assert_int_equal(count(f, "SELECT count(*) FROM once_entry"), 0);
    assert_int_equal(count(f, "SELECT count(*) FROM once_recent"), 1); /* of the one that is not natural */
}

/* A key that is natural since its record expired needs no tombstone for that; one that was forgotten does. */
static void test_natural_ones_over_older_records(void **state)
{
    fixture *f = *state;
    bool found;
    open_store(f, NULL);
    fill(f, 0, 10, 1000);
    test_env_pass(&f->world, 1000);
    const int64_t before = sqlite3_total_changes64(handle(f));
    fill_natural(f, 10, -1);
    assert_int_equal(sqlite3_total_changes64(handle(f)), before);

    fill(f, 0, 10, 1000000);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(f->store->ops->forget(f->store, id_of(i), &found, &f->err), ONCE_OK);
    fill_natural(f, 10, -1);
    once__store_close(f->store);
    open_store(f, NULL);
    for (uint64_t i = 0; i < 10; i++) assert_int_equal(state_of(f, i), ONCE_STATE_ABSENT);
}

static unsigned mode_of(const fixture *f, const char *suffix)
{
    char path[300];
    struct stat info;
    snprintf(path, sizeof path, "%s%s", f->path, suffix);
    if (stat(path, &info) != 0) fail_msg("there is no file '%s'", path);
    return info.st_mode & 07777;
}

/* Bodies are in it, so it is its owner's alone; one that was there before keeps the mode it has. */
static void test_a_new_file_is_private(void **state)
{
    fixture *f = *state;
    const mode_t mask = umask(0);
    open_store(f, NULL);
    fill(f, 0, 1, 1000);
    assert_int_equal(mode_of(f, ""), 0600);
    assert_int_equal(mode_of(f, "-wal"), 0600);
    assert_int_equal(mode_of(f, "-shm"), 0600);
    once__store_close(f->store);
    assert_int_equal(chmod(f->path, 0640), 0);
    open_store(f, NULL);
    fill(f, 1, 1, 1000);
    assert_int_equal(mode_of(f, ""), 0640);
    assert_int_equal(mode_of(f, "-wal"), 0640);
    umask(mask);
}

static void test_what_cannot_be_opened_leaves_no_file(void **state)
{
    fixture *f = *state;
    once_store_options options = {.size = sizeof options, .env = &f->world.env};
    assert_int_not_equal(once__sqlite_store_open(f->path, &options, NULL, &f->store, &f->err),
                         ONCE_OK); /* not asked to make it */
    options.create = options.readonly = true;
    assert_int_not_equal(once__sqlite_store_open(f->path, &options, NULL, &f->store, &f->err), ONCE_OK);
    assert_int_equal(access(f->path, F_OK), -1);
    options.readonly = false;
    assert_int_equal(chdir(f->folder), 0);
    assert_int_not_equal(once__sqlite_store_open(":memory:", &options, NULL, &f->store, &f->err), ONCE_OK);
    assert_int_equal(access(":memory:", F_OK), -1);
    assert_int_equal(chdir("/"), 0);
}

/* A question in the middle writes the claim as a row; the entry still becomes one record. */
static void test_asked_in_the_middle_it_is_still_one_record(void **state)
{
    fixture *f = *state;
    once_stats stats;
    once_settled_shape shape;
    open_store(f, NULL);
    const once_request r = ask(f, 1, 1000);
    begin(f);
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    assert_int_equal(f->store->ops->stats(f->store, scope.consumer, &stats, &f->err), ONCE_OK);
    assert_int_equal(stats.claimed, 1);
    settle(f, &r, ONCE_DONE);
    commit(f);
    once__settled_shape(((once_sqlite *)f->store)->settled, &shape);
    assert_int_equal(shape.recent, 1);
    assert_int_equal(state_of(f, 1), ONCE_STATE_DONE);
}

static void test_reading_writes_nothing(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    fill(f, 0, 10, 1000);
    const int64_t before = sqlite3_total_changes64(handle(f));
    const long wal = wal_bytes(f);
    assert_true(wal > 0);
    const once_request again = ask(f, 3, 1000);
    assert_int_equal(claim(f, &again), ONCE_ANSWER_DUPLICATE); /* a write transaction that changes nothing */
    assert_int_equal(state_of(f, 4), ONCE_STATE_DONE);
    once_stats stats;
    once_sweep_result swept;
    assert_int_equal(f->store->ops->stats(f->store, scope.consumer, &stats, &f->err), ONCE_OK);
    assert_int_equal(f->store->ops->sweep(f->store, 100, &swept, &f->err), ONCE_OK);
    begin(f);
    assert_int_equal(claim(f, &again), ONCE_ANSWER_DUPLICATE);
    commit(f);
    assert_int_equal(sqlite3_total_changes64(handle(f)), before);
    assert_int_equal(wal_bytes(f), wal);
}

static void test_rollback_leaves_nothing(void **state)
{
    fixture *f = *state;
    open_store(f, &tiny);
    for (int round = 0; round < 3; round++) {
        begin(f);
        for (uint64_t i = 0; i < 30; i++) {
            const once_request r = ask(f, i, 1000);
            assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
            if (i % 2) settle(f, &r, ONCE_DONE);
        }
        f->store->ops->rollback(f->store);
        for (uint64_t i = 0; i < 30; i++) assert_int_equal(state_of(f, i), ONCE_STATE_ABSENT);
    }
    fill(f, 0, 30, 1000);
    for (uint64_t i = 0; i < 30; i++) assert_int_equal(state_of(f, i), ONCE_STATE_DONE);
}

/* Row 74 and 12: a forgotten entry does not come back when its successor, which is remembered for less time, has
 * expired and been dropped by a merge or a sweep before it. */
static void f12_forgotten_stays_forgotten(void **state)
{
    fixture *f = *state;
    open_store(f, &tiny);
    fill(f, 0, 20, 1000000); /* these are to be forgotten ... */
    for (uint64_t round = 0; round < 30; round++)
        fill(f, 100 + round * 20, 20, 1000000); /* ... when they are in an old run */
    for (uint64_t i = 0; i < 20; i++) {
        bool found;
        assert_int_equal(f->store->ops->forget(f->store, id_of(i), &found, &f->err), ONCE_OK);
        assert_true(found);
        assert_int_equal(state_of(f, i), ONCE_STATE_ABSENT);
    }
    fill(f, 0, 10, 100);                 /* half of them begin anew, for a short time, in one transaction */
    for (uint64_t i = 10; i < 20; i++) { /* and half of them in two, as rows in between */
        const once_request r = ask(f, i, 100);
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
        settle(f, &r, ONCE_DONE);
    }
    test_env_pass(&f->world, 200); /* the successors expire, the forgotten ones would not have */
    for (uint64_t round = 0; round < 60; round++) {
        fill(f, 1000 + round * 20, 20, 1000000);
        once_sweep_result swept;
        assert_int_equal(f->store->ops->sweep(f->store, 50, &swept, &f->err), ONCE_OK);
        for (uint64_t i = 0; i < 20; i++) assert_int_equal(state_of(f, i), ONCE_STATE_ABSENT);
    }
    once_settled_shape shape;
    once__settled_shape(((once_sqlite *)f->store)->settled, &shape);
    assert_true(shape.levels >= 2);
    for (uint64_t i = 0; i < 60 * 20; i++) assert_int_equal(state_of(f, 1000 + i), ONCE_STATE_DONE);
    const once_request r = ask(f, 5, 100);
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
}

enum { LONG = 100 };

/* Fills until it is told to stop, or the failpoint ends it; every second round is short-lived and swept away. */
static void fill_and_sweep(fixture *f, int acks)
{
    for (unsigned char round = 0; round < LONG; round++) {
        fill(f, 10000 + (uint64_t)round * 20, 20, round % 2 ? 1000000 : 50);
        test_env_pass(&f->world, 10);
        once_sweep_result swept = {.more = true};
        while (round % 5 == 4 && swept.more)
            assert_int_equal(f->store->ops->sweep(f->store, 40, &swept, &f->err), ONCE_OK);
        if (write(acks, &round, 1) != 1) _exit(9); /* the parent knows that this round was acknowledged */
    }
}

/* Row 12: killed in the middle of a merge or a sweep, at different moments; what was acknowledged and lives is there.
 */
static void f12_killed_between_steps(void **state)
{
    fixture *f = *state;
    static const char *const points[] = {"merge_between:kill:1", "merge_between:kill:30", "merge_between:kill:70",
                                         "sweep_between:kill:1", "sweep_between:kill:60", "sweep_between:kill:200"};
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        int acks[2], status;
        unsigned char round;
        size_t acked = 0;
        assert_int_equal(pipe(acks), 0);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char why[100];
            close(acks[0]);
            if (!once_failpoints_arm(points[p], why, sizeof why)) _exit(9);
            open_store(f, &tiny);
            fill_and_sweep(f, acks[1]);
            _exit(0);
        }
        close(acks[1]);
        while (read(acks[0], &round, 1) == 1) acked++;
        close(acks[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* the point was reached */
        assert_true(acked < LONG);
        open_store(f, &tiny);
        for (size_t i = 1; i < acked; i += 2)
            for (uint64_t k = 0; k < 20; k++) assert_int_equal(state_of(f, 10000 + i * 20 + k), ONCE_STATE_DONE);
        once__store_close(f->store);
        f->store = NULL;
        char command[700];
        snprintf(command, sizeof command, "rm -f '%s' '%s-wal' '%s-shm'", f->path, f->path, f->path);
        assert_int_equal(system(command), 0);
    }
}

/* Time that was seen is not taken back, also by another process. */
static void f19_the_clock_is_kept(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    fill(f, 0, 1, 5000);
    once__store_close(f->store);
    test_env_reboot(&f->world, 1000);
    test_env_jump(&f->world, -3600000); /* the machine comes up with a clock that is an hour behind */
    open_store(f, NULL);
    assert_int_equal(state_of(f, 0), ONCE_STATE_DONE);
    test_env_pass(&f->world, 4500);
    assert_int_equal(state_of(f, 0), ONCE_STATE_DONE);
    test_env_pass(&f->world, 1500); /* at 0.9 of real speed, until the clocks agree */
    assert_int_equal(state_of(f, 0), ONCE_STATE_ABSENT);
}

#define DAY_MS (INT64_C(24) * 3600 * 1000)

static once_store_time time_of(fixture *f)
{
    once_store_time time;
    if (f->store->ops->time(f->store, &time, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    return time;
}

static void confirm(fixture *f)
{
    begin(f);
    assert_int_equal(f->store->ops->confirm_time(f->store, &f->err), ONCE_OK);
    commit(f);
}

/* The doubt is kept with the store, whoever opens it; a reader sees it and writes nothing. */
static void f85_a_reboot_years_ahead_expires_nothing_until_confirmed(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    fill(f, 0, 3, 7 * DAY_MS);
    const int64_t before_ms = time_of(f).now_ms;
    once__store_close(f->store);
    test_env_reboot(&f->world, 1000);
    test_env_jump(&f->world, 3650 * DAY_MS);
    open_store(f, NULL);
    const int64_t written = sqlite3_total_changes64(handle(f));
    assert_true(time_of(f).doubted);
    assert_int_equal(sqlite3_total_changes64(handle(f)), written);
    assert_int_equal(state_of(f, 0), ONCE_STATE_DONE);
    fill(f, 10, 1, 7 * DAY_MS);
    once__store_close(f->store);
    test_env_pass(&f->world, 5000);
    open_store(f, NULL); /* the same boot, another process */
    assert_true(time_of(f).doubted);
    assert_int_equal(time_of(f).now_ms, before_ms + 5000);
    assert_int_equal(state_of(f, 10), ONCE_STATE_DONE);
    confirm(f);
    assert_false(time_of(f).doubted);
    assert_int_equal(time_of(f).now_ms, f->world.wall_ms);
    assert_int_equal(state_of(f, 0), ONCE_STATE_ABSENT);
    once__store_close(f->store);
    open_store(f, NULL);
    assert_int_equal(time_of(f).now_ms, f->world.wall_ms);
}

/* Made under a clock that was years ahead. Set back, a claim ends as it would have, and what is done stays done. */
static void f85_set_back_leases_keep_their_length(void **state)
{
    fixture *f = *state;
    once_taken taken[2];
    size_t n = 9;
    const once_message message = {.body = {"{}", 2}, .sent_ms = ONCE_NO_TIME, .at = {{"p", 1}, {"q", 1}}};
    const int64_t right_ms = f->world.wall_ms;
    test_env_jump(&f->world, 3650 * DAY_MS);
    open_store(f, NULL);
    fill(f, 0, 1, 7 * DAY_MS);
    const once_request claimed = ask(f, 1, 7 * DAY_MS), waits = ask(f, 2, 7 * DAY_MS), *two[] = {&claimed, &waits};
    const once_message *bodies[] = {&message};
    once_decision decision;
    assert_int_equal(claim(f, two[0]), ONCE_ANSWER_RUN);
    assert_int_equal(claim(f, two[1]), ONCE_ANSWER_RUN);
    const once_settlement retry = {.request = two[1], .outcome = ONCE_RETRY, .delay_ms = 60000, .message = bodies[0]};
    bool applied;
    assert_int_equal(f->store->ops->settle(f->store, &retry, 1, &applied, &f->err), ONCE_OK);
    assert_true(applied);

    f->world.wall_ms = right_ms;
    confirm(f);
    assert_int_equal(time_of(f).now_ms, right_ms);
    assert_int_equal(state_of(f, 0), ONCE_STATE_DONE);
    const once_request again = ask(f, 1, 7 * DAY_MS), *one = &again;
    assert_int_equal(f->store->ops->claim(f->store, &one, 1, &decision, &f->arena, &f->err), ONCE_OK);
    assert_int_equal(decision.answer, ONCE_ANSWER_BUSY);
    assert_in_range(decision.wait_ms, 1, 1000);
    test_env_pass(&f->world, 1001);
    assert_int_equal(claim(f, one), ONCE_ANSWER_RUN);
    assert_int_equal(f->store->ops->take(f->store, scope.consumer, (once_token){7, 7}, false, 1000, 2, NULL, taken, &n,
                                         &f->arena, &f->err),
                     ONCE_OK);
    assert_int_equal(n, 0);
    test_env_pass(&f->world, 60000);
    assert_int_equal(f->store->ops->take(f->store, scope.consumer, (once_token){8, 8}, false, 1000, 2, NULL, taken, &n,
                                         &f->arena, &f->err),
                     ONCE_OK);
    assert_int_equal(n, 1);
}

/* Results of all sizes come back, from memory and from a run. */
static void test_results_of_all_sizes(void **state)
{
    fixture *f = *state;
    static char big[70000];
    static const size_t sizes[] = {0, 1, 61, 62, 63, 64, 65, 127, 128, 4000, 65536, 70000};
    open_store(f, &tiny);
    memset(big, 'r', sizeof big);
    for (uint64_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const once_request r = ask(f, i, 1000000);
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
        const once_settlement s = {
            .request = &r, .outcome = ONCE_REJECTED, .result = {big, sizes[i]}, .reason = {big, i}};
        bool applied;
        assert_int_equal(f->store->ops->settle(f->store, &s, 1, &applied, &f->err), ONCE_OK);
    }
    for (uint64_t round = 0; round < 20; round++) {
        for (uint64_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            once_entry entry;
            assert_int_equal(f->store->ops->get(f->store, id_of(i), &entry, &f->arena, &f->err), ONCE_OK);
            assert_int_equal(entry.state, ONCE_STATE_REJECTED);
            assert_int_equal(entry.result.len, sizes[i]);
            assert_int_equal(entry.reason.len, i);
            if (sizes[i]) assert_memory_equal(entry.result.data, big, sizes[i]);
        }
        fill(f, 5000 + 30 * round, 30, 1000000);
    }
}

/* It is written again in the transaction that ends it, as far as anybody can tell. */
static void test_no_message_stays_behind_its_entry(void **state)
{
    static const char *const bodies[] = {"", "{}"};
    fixture *f = *state;
    open_store(f, NULL);
    for (uint64_t i = 0; i < 2; i++) {
        const once_request first = ask(f, i, 1000), again = ask(f, i, 1000), *r = &first;
        const once_message message = {.headers = {"{\"h\":1}", 7},
                                      .body = {bodies[i], strlen(bodies[i])},
                                      .sent_ms = ONCE_NO_TIME},
                           *m = &message;
        once_decision d;
        assert_int_equal(f->store->ops->accept(f->store, &r, &m, 1, &d, &f->arena, &f->err), ONCE_OK);
        assert_int_equal(count(f, "SELECT count(*) FROM once_body"), 1);
        begin(f);
        assert_int_equal(claim(f, &again), ONCE_ANSWER_RUN);
        settle(f, &again, ONCE_DONE);
        commit(f);
        assert_int_equal(state_of(f, i), ONCE_STATE_DONE);
        assert_int_equal(count(f, "SELECT count(*) FROM once_body"), 0);
    }
}

static bool count_letter(void *user, const once_letter *letter)
{
    assert_int_equal(letter->key.len, 4);
    ++*(size_t *)user;
    return true;
}

static size_t letters_of(fixture *f, once_bytes key)
{
    size_t n = 0;
    if (f->store->ops->letters_of_key(f->store, scope.consumer, key, count_letter, &n, &f->err) != ONCE_OK)
        fail_msg("%s", f->err.text);
    return n;
}

/* Rows that it went through without an index. */
static int rows_scanned(fixture *f)
{
    return sqlite3_stmt_status(((once_sqlite *)f->store)->sql[SQL_LETTERS_OF_KEY], SQLITE_STMTSTATUS_FULLSCAN_STEP, 1);
}

/* Also in a store of before: whoever may write to it makes the index, and whoever may not does without. */
static void test_letters_of_a_key_are_found_without_reading_all(void **state)
{
    enum { LETTERS = 500 };
    static once_letter letters[LETTERS];
    static char keys[LETTERS][5];
    static bool fresh[LETTERS];
    const once_store_options reading = {.size = sizeof reading};
    fixture *f = *state;
    open_store(f, NULL);
    for (size_t i = 0; i < LETTERS; i++) {
        snprintf(keys[i], sizeof keys[i], "k%03zu", i / 2);
        letters[i] = (once_letter){.scope = scope,
                                   .key = {keys[i], 4},
                                   .kind = ONCE_ANSWER_CONFLICT,
                                   .fingerprint = id_of(i),
                                   .message.sent_ms = ONCE_NO_TIME};
    }
    assert_int_equal(f->store->ops->bury(f->store, letters, LETTERS, fresh, &f->err), ONCE_OK);
    assert_int_equal(letters_of(f, (once_bytes){"k123", 4}), 2);
    assert_int_equal(letters_of(f, (once_bytes){"none", 4}), 0);
    assert_int_equal(rows_scanned(f), 0);
    if (once__sqlite_store_edit(f->store, "DROP INDEX once_letter_key", &f->err) != ONCE_OK)
        fail_msg("%s", f->err.text);
    once__store_close(f->store);
    if (once__sqlite_store_open(f->path, &reading, NULL, &f->store, &f->err) != ONCE_OK) fail_msg("%s", f->err.text);
    assert_int_equal(letters_of(f, (once_bytes){"k123", 4}), 2);
    assert_true(rows_scanned(f) > 0);
    once__store_close(f->store);
    open_store(f, NULL);
    assert_int_equal(letters_of(f, (once_bytes){"k123", 4}), 2);
    assert_int_equal(rows_scanned(f), 0);
}

static bool count_id(void *user, const once_letter *letter)
{
    assert_true(letter->id > 0);
    ++*(size_t *)user;
    return true;
}

static int pages_read(fixture *f)
{
    int now = 0, most = 0;
    assert_int_equal(
        sqlite3_db_status(((once_sqlite *)f->store)->db->handle, SQLITE_DBSTATUS_CACHE_MISS, &now, &most, 1),
        SQLITE_OK);
    return now;
}

/* A replay and a discard of all read each letter when they move it. */
static void test_the_ids_of_letters_are_found_without_reading_them(void **state)
{
    enum { LETTERS = 20, BYTES = 100000, PAGES = LETTERS * (BYTES / 4096) };
    static char body[BYTES];
    fixture *f = *state;
    size_t ids = 0, whole = 0;
    memset(body, 'x', sizeof body);
    open_store(f, NULL);
    for (uint64_t i = 0; i < LETTERS; i++) {
        bool fresh;
        const once_letter letter = {.scope = scope,
                                    .key = {"k", 1},
                                    .kind = ONCE_ANSWER_CONFLICT,
                                    .fingerprint = id_of(i),
                                    .message = {.body = {body, sizeof body}, .sent_ms = ONCE_NO_TIME}};
        assert_int_equal(f->store->ops->bury(f->store, &letter, 1, &fresh, &f->err), ONCE_OK);
    }
    once__store_close(f->store);
    open_store(f, NULL);
    (void)pages_read(f);
    assert_int_equal(f->store->ops->letter_heads(f->store, scope.consumer, 0, true, count_id, &ids, &f->err), ONCE_OK);
    assert_int_equal(ids, LETTERS);
    assert_in_range(pages_read(f), 0, PAGES / 5);
    assert_int_equal(f->store->ops->letters(f->store, scope.consumer, 0, count_id, &whole, &f->err), ONCE_OK);
    assert_int_equal(whole, LETTERS);
    assert_true(pages_read(f) >= PAGES);
}

#define EACH(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

/* ---- claims that are kept in memory until they are settled ---- */

static int entries_read(fixture *f)
{
    return sqlite3_stmt_status(((once_sqlite *)f->store)->sql[SQL_ENTRY_GET], SQLITE_STMTSTATUS_RUN, 0);
}

/* A claim in a lane of its own, which is a row. */
static once_request ask_row(fixture *f, uint64_t i, int64_t remember_ms)
{
    once_request r = ask(f, i, remember_ms);
    r.lane = (once_lane_request){.id = {i + 1, 77}, .gap_ms = -1};
    return r;
}

static void test_a_settlement_does_not_read_its_claim_again(void **state)
{
    fixture *f = *state;
    enum { N = 50 };
    once_request asked[N];
    open_store(f, NULL);
    begin(f);
    for (uint64_t i = 0; i < N; i++) {
        asked[i] = ask_row(f, i, 1000);
        assert_int_equal(claim(f, &asked[i]), ONCE_ANSWER_RUN);
    }
    commit(f);
    assert_int_equal(count(f, "SELECT count(*) FROM once_entry"), N);
    begin(f);
    for (uint64_t i = 0; i < N; i++) settle(f, &asked[i], ONCE_DONE);
    commit(f);
    assert_int_equal(count(f, "SELECT count(*) FROM once_entry"), 0);
    assert_int_equal(entries_read(f), 0);
    for (uint64_t i = 0; i < N; i++) assert_int_equal(state_of(f, i), ONCE_STATE_DONE);
}

/* Their memory is used again: by shorter keys and by longer ones. */
static void test_kept_claims_have_keys_of_any_length(void **state)
{
    enum { N = 3, ROUNDS = 4 };
    static const size_t lengths[ROUNDS][N] = {{1, 128, 300}, {300, 1, 128}, {129, 300, 1}, {1, 1, 1}};
    fixture *f = *state;
    char letters[300];
    open_store(f, NULL);
    memset(letters, 'k', sizeof letters);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        once_request asked[N];
        begin(f);
        for (uint64_t i = 0; i < N; i++) {
            asked[i] = ask_row(f, 10 * round + i, 1000);
            asked[i].key = (once_bytes){letters, lengths[round][i]};
            assert_int_equal(claim(f, &asked[i]), ONCE_ANSWER_RUN);
        }
        commit(f);
        begin(f);
        for (uint64_t i = 0; i < N; i++) settle(f, &asked[i], round % 2 ? ONCE_DONE : ONCE_UNKNOWN);
        commit(f);
    }
    assert_int_equal(entries_read(f), 0);
    assert_int_equal(count(f, "SELECT count(*) FROM once_entry"), 2 * N);
    assert_int_equal(count(f, "SELECT sum(length(key)) FROM once_entry"), 1 + 128 + 300 + 129 + 300 + 1);
    assert_int_equal(count(f, "SELECT count(*) FROM once_entry WHERE replace(CAST(key AS TEXT), 'k', '') = ''"), 2 * N);
}

/* Its settlement is rolled back, and comes again. */
static void test_a_kept_claim_after_a_rollback(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    const once_request r = ask_row(f, 1, 1000);
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    begin(f);
    settle(f, &r, ONCE_DONE);
    f->store->ops->rollback(f->store);
    assert_int_equal(state_of(f, 1), ONCE_STATE_CLAIMED);
    settle(f, &r, ONCE_DONE);
    assert_int_equal(state_of(f, 1), ONCE_STATE_DONE);
    assert_int_equal(count(f, "SELECT count(*) FROM once_entry"), 0);
}

static void f05_a_kept_claim_that_another_process_has_taken_over(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    once_backend *mine = f->store;
    const once_request r = ask_row(f, 1, 1000), end = {.scope = r.scope, .id = r.id, .token = r.token}, *ends = &end;
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    open_store(f, NULL); /* the other one */
    bool done;
    assert_int_equal(f->store->ops->extend(f->store, &ends, 1, &done, &f->err), ONCE_OK);
    assert_true(done);
    const once_request other = ask_row(f, 1, 1000);
    assert_int_equal(claim(f, &other), ONCE_ANSWER_RUN);
    const once_settlement late = {.request = &r, .outcome = ONCE_DONE};
    assert_int_equal(mine->ops->settle(mine, &late, 1, &done, &f->err), ONCE_OK);
    assert_false(done);
    settle(f, &other, ONCE_DONE);
    once__store_close(mine);
}

static void test_a_kept_claim_whose_row_is_gone(void **state)
{
    fixture *f = *state;
    bool applied;
    open_store(f, NULL);
    for (uint64_t i = 0; i < 2; i++) {
        const once_request r = ask_row(f, i, 1000), *asked = &r;
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
        assert_int_equal(sqlite3_exec(handle(f), "DELETE FROM once_entry", NULL, NULL, NULL), SQLITE_OK);
        const once_settlement late = {.request = &r, .outcome = ONCE_DONE};
        const int rc = i ? f->store->ops->extend(f->store, &asked, 1, &applied, &f->err)
                         : f->store->ops->settle(f->store, &late, 1, &applied, &f->err);
        assert_int_equal(rc, ONCE_E_CORRUPT);
    }
}

/* Another row has its number. */
static void test_a_kept_claim_whose_row_is_that_of_another(void **state)
{
    fixture *f = *state;
    bool applied;
    open_store(f, NULL);
    for (int i = 0; i < 3; i++) {
        const once_request r = ask_row(f, (uint64_t)i, 1000), two = ask_row(f, 100 + (uint64_t)i, 1000), *asked = &r;
        begin(f);
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
        assert_int_equal(claim(f, &two), ONCE_ANSWER_RUN);
        commit(f);
        assert_int_equal(sqlite3_exec(handle(f), "UPDATE once_entry SET id = randomblob(16)", NULL, NULL, NULL),
                         SQLITE_OK);
        const once_settlement late[] = {{.request = &r, .outcome = ONCE_DONE}, {.request = &two, .outcome = ONCE_DONE}};
        bool both[2];
        const int rc = i == 0   ? f->store->ops->extend(f->store, &asked, 1, &applied, &f->err)
                       : i == 1 ? f->store->ops->settle(f->store, late, 1, &applied, &f->err)
                                : f->store->ops->settle(f->store, late, 2, both, &f->err);
        assert_int_equal(rc, ONCE_E_CORRUPT);
        assert_int_equal(sqlite3_exec(handle(f), "DELETE FROM once_entry", NULL, NULL, NULL), SQLITE_OK);
    }
}

static void test_rows_get_numbers_from_one_on(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    const once_request first = ask_row(f, 1, 1000), second = ask_row(f, 2, 1000);
    assert_int_equal(claim(f, &first), ONCE_ANSWER_RUN);
    assert_int_equal(sqlite3_exec(handle(f), "UPDATE once_entry SET n = -1", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(claim(f, &second), ONCE_ANSWER_RUN);
    settle(f, &second, ONCE_DONE);
    assert_int_equal(count(f, "SELECT count(*) FROM once_entry"), 1);
}

/* Whoever counts our rows may have a trigger that ignores conflicts. */
static void test_a_trigger_keeps_its_own_way_with_conflicts(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    assert_int_equal(sqlite3_exec(handle(f),
                                  "CREATE TABLE noted(n PRIMARY KEY); CREATE TRIGGER t AFTER INSERT ON once_entry BEGIN"
                                  " INSERT OR IGNORE INTO noted VALUES (1); END;"
                                  "CREATE TRIGGER u AFTER UPDATE ON once_entry BEGIN"
                                  " INSERT OR IGNORE INTO noted VALUES (1); END",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    for (uint64_t i = 0; i < 3; i++) {
        const once_request r = ask_row(f, i, 1000), *asked = &r;
        bool ours;
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
        assert_int_equal(f->store->ops->extend(f->store, &asked, 1, &ours, &f->err), ONCE_OK);
        settle(f, &r, ONCE_DONE);
    }
}

static int filters_built(fixture *f)
{
    return sqlite3_stmt_status(((once_sqlite *)f->store)->sql[SQL_ENTRY_IDS], SQLITE_STMTSTATUS_RUN, 0);
}

/* A table that has more rows than the filter holds is not looked through by each transaction. */
static void test_many_rows_cost_a_settlement_nothing(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    begin(f);
    for (uint64_t i = 0; i < 6000; i++) {
        const once_request r = ask(f, i, 1000);
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    }
    commit(f);
    const int before = filters_built(f);
    for (uint64_t i = 0; i < 50; i++) {
        const once_request r = ask(f, 10000 + i, 1000);
        assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
        settle(f, &r, ONCE_DONE);
    }
    assert_in_range(filters_built(f) - before, 0, 1);
}

/* Names are dropped from time to time; a kept claim points to some. */
static void test_a_kept_claim_outlives_the_names(void **state)
{
    fixture *f = *state;
    open_store(f, NULL);
    const once_request r = ask_row(f, 1, 1000);
    assert_int_equal(claim(f, &r), ONCE_ANSWER_RUN);
    char place[20];
    begin(f);
    for (uint64_t i = 0; i < ONCE_NAMES_KEPT + 10; i++) {
        once_request other = ask(f, 2 + i, 1000);
        other.at.place = (once_bytes){place, (size_t)snprintf(place, sizeof place, "place %u", (unsigned)i)};
        assert_int_equal(claim(f, &other), ONCE_ANSWER_RUN);
        settle(f, &other, ONCE_DONE);
    }
    commit(f);
    settle(f, &r, ONCE_DONE);
    once_entry entry;
    assert_int_equal(f->store->ops->get(f->store, r.id, &entry, &f->arena, &f->err), ONCE_OK);
    assert_int_equal(entry.state, ONCE_STATE_DONE);
    assert_memory_equal(entry.at.place.data, "p", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(test_an_entry_is_written_once),
        EACH(test_natural_ones_write_lane_versions_and_nothing_else),
        EACH(test_natural_ones_over_older_records),
        EACH(test_a_new_file_is_private),
        EACH(test_what_cannot_be_opened_leaves_no_file),
        EACH(test_asked_in_the_middle_it_is_still_one_record),
        EACH(test_reading_writes_nothing),
        EACH(test_rollback_leaves_nothing),
        EACH(f12_forgotten_stays_forgotten),
        EACH(f12_killed_between_steps),
        EACH(f19_the_clock_is_kept),
        EACH(f85_a_reboot_years_ahead_expires_nothing_until_confirmed),
        EACH(f85_set_back_leases_keep_their_length),
        EACH(test_results_of_all_sizes),
        EACH(test_no_message_stays_behind_its_entry),
        EACH(test_letters_of_a_key_are_found_without_reading_all),
        EACH(test_the_ids_of_letters_are_found_without_reading_them),
        EACH(test_a_settlement_does_not_read_its_claim_again),
        EACH(test_kept_claims_have_keys_of_any_length),
        EACH(test_a_kept_claim_after_a_rollback),
        EACH(f05_a_kept_claim_that_another_process_has_taken_over),
        EACH(test_a_kept_claim_whose_row_is_gone),
        EACH(test_a_kept_claim_whose_row_is_that_of_another),
        EACH(test_rows_get_numbers_from_one_on),
        EACH(test_a_trigger_keeps_its_own_way_with_conflicts),
        EACH(test_many_rows_cost_a_settlement_nothing),
        EACH(test_a_kept_claim_outlives_the_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
