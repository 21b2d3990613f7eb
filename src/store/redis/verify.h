/* What a look at every key of a Redis store finds (look.h), how it is told (verify.c), and what of it is mended
 * (mend.c). */
#ifndef ONCE_STORE_REDIS_VERIFY_H
#define ONCE_STORE_REDIS_VERIFY_H

#include "store/redis/redis.h"

typedef enum once_redis_flaw_kind {
    /* of any key */
    FLAW_TYPE,
    FLAW_STRANGER,
    FLAW_EMPTY,
    FLAW_LIMITED,
    FLAW_UNREADABLE,
    FLAW_UNUSABLE,
    /* of an entry */
    FLAW_OTHER_KEY,
    FLAW_NO_INDEX,
    FLAW_OTHER_TIME,
    FLAW_NO_GROUP,
    FLAW_NO_CONSUMER,
    FLAW_NO_LANE,
    FLAW_NO_PLACE,
    FLAW_NOT_OCCUPIED,
    FLAW_NO_LETTER,
    FLAW_ENDS,
    FLAW_NO_NAME,
    /* of what names entries: an index, the set of a lane, a lane, groups of claims */
    FLAW_LISTED,
    FLAW_LISTED_GONE,
    FLAW_STANDS,
    FLAW_STANDS_GONE,
    FLAW_PLACE,
    FLAW_OCCUPIED,
    FLAW_OCCUPIED_GONE,
    FLAW_OCCUPIED_TWICE,
    FLAW_LANE_ENDS,
    FLAW_LANE_STAYS,
    FLAW_COUNT,
    FLAW_GROUP_ALONE,
    /* of letters */
    FLAW_LETTER_NOT_LISTED,
    FLAW_LETTER_NO_UNIQUE,
    FLAW_LETTER_OTHER_UNIQUE,
    FLAW_LETTER_GONE,
    FLAW_LETTER_OF_OTHER,
    FLAW_UNIQUE_GONE,
    FLAW_LAST_LETTER,
    /* of the head */
    FLAW_LETTERS_NUMBER,
    FLAW_HEAD_SECRET,
    FLAW_HEAD_COMMITS,
    FLAW_KINDS
} once_redis_flaw_kind;

/* What was found, with what whoever mends it needs. All bytes are the finder's. */
typedef struct once_redis_flaw {
    once_redis_flaw_kind kind;
    once_bytes key;      /* of the server */
    once_hash id;        /* the entry */
    once_bytes in_words; /* its key, or more about it; may be empty */
    once_bytes stored;   /* the value of the entry, of the letter or of the field as it was then, or as much of it as
                            changes whenever it does; empty: it is not there */
    char index;
    once_bytes consumer;
    once_hash lane;
    once_redis_member member;
    once_bytes bytes; /* the member as it is there; or the number where that of the letter belongs */
    once_bytes place; /* a key of the server, where it belongs; or a number that is told */
    once_bytes group; /* of claims */
    uint64_t number;  /* of a letter */
    once_hash unique;
    bool replaced; /* what makes a letter the same one gets another number in this repair */
    uint64_t name; /* that is not there */
    bool scope;    /* it is one; otherwise an origin */
} once_redis_flaw;

typedef struct once_redis_looking once_redis_looking;
typedef int once_redis_flaw_visit(once_redis_looking *l, const once_redis_flaw *flaw, once_error *err);

enum { ONCE_REDIS_LOOK_ENTRIES = 1, ONCE_REDIS_LOOK_OTHERS = 2 };

struct once_redis_looking {
    once_redis *r;
    once_redis_flaw_visit *found;
    void *user;
    unsigned what;                     /* keys that are looked at */
    unsigned connections;              /* on which it began */
    uint64_t keys;                     /* that were seen */
    uint64_t last_letter;              /* that was seen */
    size_t page, part;                 /* how many keys, and how many entries of a list, are read next; 0: few */
    uint64_t bytes;                    /* of the values that were read */
    once_arena arena;                  /* of a page */
    ONCE_REDIS_LIST(once_hash) buried; /* entries that have a letter */
    ONCE_REDIS_LIST(once_hash) dead;   /* and those that are dead, of which it was not found at once */
};

/* Nothing about a store whose keys are on two nodes can be told from this one. Notes where it looks. */
int once__redis_look_begin(once_redis_looking *l, once_error *err);
/* Keys of another type, or none of ours: whoever finds one does not look further, because what refers to it cannot be
 * asked. */
int once__redis_look_at_types(once_redis_looking *l, once_error *err);
/* Some keys behind the cursor, "0" at the beginning and at the end. */
int once__redis_look_at_some(once_redis_looking *l, char cursor[24], once_error *err);
int once__redis_look_end(once_redis_looking *l, once_error *err); /* what only all of them together tell */
void once__redis_look_release(once_redis_looking *l);

/* Whether a repair can derive what belongs there; whoever is told of it is told that. */
bool once__redis_is_mended(once_redis_flaw_kind kind);

bool once__redis_is_own(const once_redis *r,
                        const once_entry *entry); /* it stands under the id of its key, or does not know that */
bool once__redis_member_is(once_redis_member member,
                           once_bytes bytes); /* they are what is written for it, now or by an older once */

/* What is shown instead of a name that is lost. */
extern const once_bytes once__redis_lost;
extern const once_scope once__redis_lost_scope;
void once__redis_lost_name(once_buf *to, bool scope);

int once__redis_verify(once_backend *store, void (*damage)(void *user, const char *text), void *user, once_error *err);
int once__redis_repair(once_backend *store, once_hash *after, uint64_t *repaired, bool *more, once_error *err);

#endif
