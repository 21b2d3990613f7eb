/* A source that is opened to be asked, or to read one message again, takes nothing from those that work. */
#include "source_conform.h"

static bool has_all(const source_fixture *f)
{
    unsigned n = 0;
    for (int i = 0; i < SRC_STREAMS; i++) n += f->seats[0][i].state == SRC_OURS;
    return n == src_streams(f);
}

/* It has all streams and some messages, and keeps them: nothing is revoked, and nothing goes to anybody else. */
static void begin(source_fixture *f)
{
    for (unsigned s = 0; s < src_streams(f); s++) src_put(f, s, 5);
    src_open(f, 0);
    src_wait_for(f, 0, has_all);
    src_fetch_until(f, 0, 2);
}

static void expect_all(source_fixture *f)
{
    src_fetch_until(f, 0, 5 * (size_t)src_streams(f));
    for (unsigned s = 0; s < src_streams(f); s++) src_expect(f, s, 0, 4);
    assert_true(has_all(f));
}

static void count(void *user, const once_source_finding *finding)
{
    assert_true(finding->limit == ONCE_LIMIT_NONE ? finding->text != NULL : finding->of && finding->setting);
    ++*(int *)user;
}

static void to_be_asked_it_takes_nothing(source_fixture *f)
{
    once_source *asked;
    int n = 0;
    begin(f);
    src_ok(f, f->driver->open(f->world, ONCE_OPEN_CHECK, &asked, &f->err));
    assert_int_equal(asked->ops->bits(asked) & ONCE_SOURCE_REDELIVERS, f->driver->bits & ONCE_SOURCE_REDELIVERS);
    if (asked->ops->ask) src_ok(f, asked->ops->ask(asked, &f->facts.base, count, &n, &f->err));
    (void)src_fetch(f, 0, 0);
    expect_all(f);
    asked->ops->close(asked);
    (void)src_fetch(f, 0, 0);
    assert_true(has_all(f));
}

/* Again, beside those that work. */
static void a_message_can_be_read_again(source_fixture *f)
{
    once_source *reader;
    begin(f);
    expect_all(f);
    const src_got *wanted = src_find(f, src_streams(f) - 1, 3);
    src_ok(f, f->driver->open(f->world, ONCE_OPEN_LOOK, &reader, &f->err));
    if (reader->ops->look) {
        bool found = false, at_end = false;
        src_ok(f, reader->ops->look(reader, wanted->message.at, &f->facts.base, &f->err));
        while (!found && !at_end) {
            once_fetch fetch = {.max = 2, .batch = src_batch(f)};
            src_ok(f, reader->ops->fetch(reader, &fetch, &f->err));
            at_end = fetch.at_end;
            for (size_t i = 0; i < fetch.batch->n; i++) {
                const once_message *m = &fetch.batch->items[i].message;
                if (!once_bytes_equal(m->at.place, wanted->message.at.place) ||
                    !once_bytes_equal(m->at.point, wanted->message.at.point))
                    continue;
                found = true;
                assert_true(once_bytes_equal(m->body, wanted->message.body));
            }
        }
        assert_true(found);
    }
    reader->ops->close(reader);
    (void)src_fetch(f, 0, 0);
    assert_true(has_all(f));
}

/* Behind the last one there is nothing, also of a source without an end. */
static void what_is_not_there_is_not_waited_for(source_fixture *f)
{
    once_source *reader;
    begin(f);
    src_ok(f, f->driver->open(f->world, ONCE_OPEN_LOOK, &reader, &f->err));
    const once_coordinates at = {.place = f->got[0].message.at.place, .point = ONCE_BYTES("99999999")};
    if (reader->ops->look) src_ok(f, reader->ops->look(reader, at, &f->facts.base, &f->err));
    for (bool at_end = !reader->ops->look; !at_end;) {
        once_fetch fetch = {.max = 100, .batch = src_batch(f)};
        src_ok(f, reader->ops->fetch(reader, &fetch, &f->err));
        for (size_t i = 0; i < fetch.batch->n; i++)
            assert_false(once_bytes_equal(fetch.batch->items[i].message.at.point, at.point));
        at_end = fetch.at_end;
    }
    reader->ops->close(reader);
}

/* Standard input is one for all who open it. */
const source_test source_looks[] = {
    SRC_TEST(to_be_asked_it_takes_nothing, ONCE_SOURCE_REDELIVERS),
    SRC_TEST(a_message_can_be_read_again, ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE),
    SRC_TEST(what_is_not_there_is_not_waited_for, ONCE_SOURCE_REDELIVERS | ONCE_SOURCE_STABLE),
    {0},
};
