/* Places in files: which file, and how far.
 *
 * A path may name one file after the other, when logs are rotated. The first file of a path has the number 1, the next
 * one 2, and so on. The numbers are kept in the store, so that a file has the same one on every reading. A file is
 * recognised by its device and inode and the hash of its first bytes; a place in it by the offset and the hash of the
 * bytes before it.
 *
 * As text, which the store keeps: "v2", then for each file the fields of once_place as hexadecimal numbers, oldest
 * file first. Until version 5 of the tables a cursor was "OFFSET LINE LENGTH HASH", of the message before it. */
#ifndef ONCE_SOURCE_PLACE_H
#define ONCE_SOURCE_PLACE_H

#include "base/arena.h"
#include "base/buf.h"
#include "core/item.h"
#include "once/types.h"

#define ONCE_FILES_MAX 16     /* of one path at a time */
#define ONCE_PLACES_TEXT 4096 /* bytes of their text at most */
#define ONCE_HEAD_BYTES 1024u /* a file is recognised by so many of its first bytes */
#define ONCE_TAIL_BYTES 256u  /* a place by so many before it */

typedef struct once_place {
    uint64_t number; /* of the file under its path: 1, 2, 3... */
    uint64_t device, inode;
    uint64_t head_len, head; /* the first bytes: how many, and their hash */
    uint64_t offset, line;   /* of the next line; lines before it */
    uint64_t tail_len, tail; /* the bytes before the offset */
    uint64_t part_len, part_kept,
        /* the line at the offset was delivered without its newline: its length, and the hash of its first part_kept
         * bytes, which is all that was kept of it; 0: it was not */
        part;
} once_place;

typedef struct once_places {
    once_place at[ONCE_FILES_MAX];
    size_t n;
} once_places;

/* Of a batch of messages, in its arena: where they come from. */
typedef struct once_origin {
    once_places places; /* when it was fetched */
    size_t index;       /* its file */
    uint64_t version;   /* changes with the files, not with the places in them */
} once_origin;

/* Of a message, in the arena of its batch (item->resume): where the source goes on behind it. */
typedef struct once_resume {
    const once_origin *origin;
    int64_t offset;
    uint64_t line;           /* lines before that */
    uint64_t tail_len, tail; /* of a message that is cut: the bytes before the offset, by their hash */
    bool part;               /* it came without its newline: the offset is its beginning, since it may go on */
} once_resume;

bool once_places_read(once_bytes text, once_places *out); /* false: that is none */
void once_places_write(const once_places *places, once_buf *out);

/* The place behind this message, and the places in the other files. */
void once_places_behind(const once_item *item, once_places *out);
/* Adds files of other numbers, as far as there is room: the newest of them. */
void once_places_add_known(once_places *to, const once_places *known);
bool once_places_same_files(const once_places *a, const once_places *b);
/* Whether two readers gave the same numbers to the same files. */
bool once_places_agree(const once_places *a, const once_places *b);

/* Whether an open file is the one of a place, by its first bytes and those around the offset. */
bool once_place_head_fits(int fd, const once_place *place);
bool once_place_fits(int fd, const once_place *place);
/* Device, inode and as much of the head as there is. */
bool once_place_look(int fd, once_place *place);
/* Reads a cursor as it was until version 5 of the tables; false: it is none, or not one of this file. */
bool once_place_read_old(int fd, once_bytes text, once_place *out);
void once_place_rewind(once_place *place); /* to the beginning of its file */
uint64_t once_place_hash(const void *data, size_t len);

#endif
