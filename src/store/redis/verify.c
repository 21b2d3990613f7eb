/* `once check --deep`: reads every key of a store and reports those that do not fit: a value that cannot be read, an
 * entry that is missing in its index, an index that names an entry which is gone. look.h has the check; this file its
 * texts. */
#include "store/redis/verify.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/banned.h"

static const struct {
    const char *text;
    bool mended;
} words[FLAW_KINDS] = {
    [FLAW_TYPE] = {"is of the type '%s', which once does not write there", false},
    [FLAW_STRANGER] = {"is no key of once: another program wrote it", false},
    [FLAW_EMPTY] = {"is empty", false},
    [FLAW_LIMITED] = {"has a time to live, and once never sets one there: its contents would be lost", true},
    [FLAW_UNREADABLE] = {"has a value that cannot be read", false},
    [FLAW_UNUSABLE] = {"cannot be used: %s", false},
    [FLAW_OTHER_KEY] = {"(key '%s') stands under another id than that of its key: somebody copied or renamed it. Stop "
                        "all workers; if there is no \"%.290s\", rename"
                        " it (RENAME) to that; delete it (DEL) only if that key exists and is not reported in this way "
                        "itself: then the two were swapped. Then check again",
                        false},
    [FLAW_NO_INDEX] = {"(key '%s') is not in the index of its state, so no worker finds it", true},
    [FLAW_OTHER_TIME] = {"(key '%s') is in the index of its state under another time", true},
    [FLAW_NO_GROUP] = {"(key '%s') is claimed, and in no group of claims, so no worker sees the end of its lease",
                       true},
    [FLAW_NO_CONSUMER] = {"(key '%s') waits for its message, and a sweep does not find its consumer", true},
    [FLAW_NO_LANE] = {"(key '%s') is in a lane that has no record", true},
    [FLAW_NO_PLACE] = {"(key '%s') has lost its place in its lane: entries behind it would pass it, or never run",
                       true},
    [FLAW_NOT_OCCUPIED] = {"(key '%s') is claimed or unknown, and its lane does not name it", true},
    [FLAW_NO_LETTER] = {"(key '%s') is dead, and its dead letter is gone", false},
    [FLAW_ENDS] = {"has another time to live than its value says: it would be forgotten too early, or never", true},
    [FLAW_NO_NAME] = {"refers to a name that is missing, or is another one", true},
    [FLAW_LISTED] = {"names the entry \"%s\", which belongs elsewhere", true},
    [FLAW_LISTED_GONE] = {"names the entry \"%s\", which is gone", false},
    [FLAW_STANDS] = {"names the entry \"%s\", which is not in that lane", true},
    [FLAW_STANDS_GONE] = {"names the entry \"%s\", which is gone", false},
    [FLAW_PLACE] =
        {"has a place of the entry \"%s\" that once does not write like this: the lane would stop, or lose its order",
         true},
    [FLAW_OCCUPIED] = {"is occupied by the entry \"%s\", which is not running there", true},
    [FLAW_OCCUPIED_GONE] = {"is occupied by the entry \"%s\", which is gone", false},
    [FLAW_OCCUPIED_TWICE] = {"is occupied by the entry \"%s\" twice: it would never be free", true},
    [FLAW_LANE_ENDS] = {"has another time to live than its lane: it would be forgotten too early, or never", true},
    [FLAW_LANE_STAYS] = {"is a lane that has entries, and the set of them is gone", true},
    [FLAW_COUNT] = {"has a group of claims with another number of claims than there are", true},
    [FLAW_GROUP_ALONE] = {"has a group of claims without a count", true},
    [FLAW_LETTER_NOT_LISTED] =
        {"(key '%s') is a dead letter that is missing in the list of its consumer, or at another place in it", true},
    [FLAW_LETTER_NO_UNIQUE] = {"(key '%s') is a dead letter whose next delivery would not be recognised", true},
    [FLAW_LETTER_OTHER_UNIQUE] =
        {"(key '%s') is a dead letter, and the letter %s counts as the same one: replay or discard "
         "that one ('once replay', 'once discard'), and then let"
         " 'once check --repair' register this one",
         false},
    [FLAW_LETTER_GONE] = {"names the letter %s, which is gone", false},
    [FLAW_LETTER_OF_OTHER] = {"names the letter %s, which is of another consumer", true},
    [FLAW_UNIQUE_GONE] = {"names the letter %s, which is gone or another: an equal one could not be written", true},
    [FLAW_LAST_LETTER] = {"has a lower number of the last letter than there is: the next one could not be written",
                          true},
    [FLAW_LETTERS_NUMBER] =
        {"has no number of the last letter in its field 'letters': stop all workers, and run 'HSET %s letters %s'",
         false},
    [FLAW_HEAD_SECRET] =
        {"has lost its field 'secret', or has another one: programs of an older format would write there", true},
    [FLAW_HEAD_COMMITS] = {"has lost its field 'commits', by which workers notice lost commits", true},
};

bool once__redis_is_mended(once_redis_flaw_kind kind)
{
    assert(kind < FLAW_KINDS);
    return words[kind].mended;
}

enum { SAID_MAX = 20, TEXTS_MAX = 2 * FLAW_KINDS * SAID_MAX };

/* SCAN may return a key twice; it is reported once. */
typedef struct telling {
    void (*damage)(void *user, const char *text);
    void *user;
    size_t n[FLAW_KINDS];
    uint64_t told[TEXTS_MAX];
    size_t n_told;
} telling;

static bool is_new(telling *t, const char *text, once_secret secret)
{
    const uint64_t hash = once_siphash128(secret, text, strlen(text)).a;
    for (size_t i = 0; i < t->n_told; i++)
        if (t->told[i] == hash) return false;
    if (t->n_told < TEXTS_MAX) t->told[t->n_told++] = hash;
    return true;
}

static int tell(once_redis_looking *l, const once_redis_flaw *flaw, once_error *err)
{
    assert(flaw->kind < FLAW_KINDS && words[flaw->kind].text);
    telling *t = l->user;
    char key[ONCE_REDIS_QUOTED], about[ONCE_REDIS_QUOTED], place[ONCE_REDIS_QUOTED], shown_key[ONCE_SHOWN_KEY],
        said[900], text[1400];
    const bool in_words = strncmp(words[flaw->kind].text, "(key", 4) == 0;
    (void)err;
    if (t->n[flaw->kind] >= SAID_MAX) return ONCE_OK;
    const char *what = in_words ? once__shown_key(flaw->in_words, shown_key) : once__redis_quote(flaw->in_words, about);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(said, sizeof said, words[flaw->kind].text, what, once__redis_quote(flaw->place, place));
#pragma GCC diagnostic pop
    (void)snprintf(text, sizeof text, "\"%.290s\" %s%s", once__redis_quote(flaw->key, key), said,
                   words[flaw->kind].mended ? "; 'once check --repair' repairs that" : "");
    if (!is_new(t, text, l->r->storage.store.secret)) return ONCE_OK;
    t->n[flaw->kind]++;
    t->damage(t->user, text);
    return ONCE_OK;
}

int once__redis_verify(once_backend *store, void (*damage)(void *user, const char *text), void *user, once_error *err)
{
    telling told = {.damage = damage, .user = user};
    once_redis_looking l = {.r = (once_redis *)store,
                            .found = tell,
                            .user = &told,
                            .what = ONCE_REDIS_LOOK_ENTRIES | ONCE_REDIS_LOOK_OTHERS};
    char cursor[24] = "0";
    int rc = once__redis_look_begin(&l, err);
    if (rc == ONCE_OK) rc = once__redis_look_at_types(&l, err);
    const bool typed = told.n[FLAW_TYPE] == 0; /* otherwise commands on such a key would fail */
    do {
        if (rc != ONCE_OK || !typed) break;
        rc = once__redis_look_at_some(&l, cursor, err);
        if (rc == ONCE_OK && store->progress) store->progress(store->progress_user, l.keys);
    } while (strcmp(cursor, "0") != 0);
    if (rc == ONCE_OK && typed) rc = once__redis_look_end(&l, err);
    once__redis_look_release(&l);
    return rc;
}
