/* What a check of every key of a Redis store finds (look.h), how it is reported (verify.c), and what is repaired
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

/* A flaw, with everything that a repair of it needs. The bytes belong to the check, and end with its page. */
typedef struct once_redis_flaw {
    once_redis_flaw_kind kind;
    once_bytes key;      /* the key in Redis */
    once_hash id;        /* the entry */
    once_bytes in_words; /* for the report: the key of the message, or other details; may be empty */
    once_bytes stored;   /* the value of the entry, letter or field as it was read, or as many of its first bytes as
                            differ whenever the value does; empty: there is none */
    char index;
    once_bytes consumer;
    once_hash lane;
    once_redis_member member;
    once_bytes bytes; /* the member as it is stored; or the number that is stored instead of the letter's */
    once_bytes place; /* the key in Redis where it belongs; or a number for the report */
    once_bytes group; /* of claims */
    uint64_t number;  /* of a letter */
    once_hash unique;
    bool replaced; /* this repair writes another number for the unique of the letter */
    uint64_t name; /* the name that is missing ... */
    bool scope;    /* ... is one of a scope; otherwise of an origin */
} once_redis_flaw;

typedef struct once_redis_looking once_redis_looking;
typedef int once_redis_flaw_visit(once_redis_looking *l, const once_redis_flaw *flaw, once_error *err);

enum { ONCE_REDIS_LOOK_ENTRIES = 1, ONCE_REDIS_LOOK_OTHERS = 2 };

struct once_redis_looking {
    once_redis *r;
    once_redis_flaw_visit *found;
    void *user;
    unsigned what;                     /* which keys are checked: ONCE_REDIS_LOOK_... */
    unsigned connections;              /* the connection on which the check began */
    uint64_t keys;                     /* seen so far */
    uint64_t last_letter;              /* the highest number of a letter that was seen */
    size_t page, part;                 /* how many keys, and how many members of a list, are read next; 0: few */
    uint64_t bytes;                    /* of the values that were read */
    once_arena arena;                  /* of a page */
    ONCE_REDIS_LIST(once_hash) buried; /* entries whose letter was seen */
    ONCE_REDIS_LIST(once_hash) dead;   /* dead entries whose letter was not found at once */
};

/* Begins a check. Fails while keys are on two nodes: those on the other node would be reported as gone. */
int once__redis_look_begin(once_redis_looking *l, once_error *err);
/* Finds keys of a wrong type, and keys that are not of once. After one of a wrong type the check ends: what refers to
 * it cannot be asked. */
int once__redis_look_at_types(once_redis_looking *l, once_error *err);
/* Checks the next keys of the SCAN cursor, which is "0" at the beginning and at the end. */
int once__redis_look_at_some(once_redis_looking *l, char cursor[24], once_error *err);
int once__redis_look_end(once_redis_looking *l, once_error *err); /* checks what depends on all keys */
void once__redis_look_release(once_redis_looking *l);

/* Whether a repair can derive what belongs there. The report says so. */
bool once__redis_is_mended(once_redis_flaw_kind kind);

bool once__redis_is_own(const once_redis *r,
                        const once_entry *entry); /* stored under the id of its key, or it has no key to compare */
bool once__redis_member_is(once_redis_member member,
                           once_bytes bytes); /* the bytes are the member, as written now or by older programs */

/* What a repair writes instead of a lost name. */
extern const once_bytes once__redis_lost;
extern const once_scope once__redis_lost_scope;
void once__redis_lost_name(once_buf *to, bool scope);

int once__redis_verify(once_backend *store, void (*damage)(void *user, const char *text), void *user, once_error *err);
int once__redis_repair(once_backend *store, once_hash *after, uint64_t *repaired, bool *more, once_error *err);

#endif
