/* Between the file source (file.c, with file_impl.h behind it), its part of the pipeline file (file_config.c), what the
 * store keeps of it (file_keep.c) and reading again (file_again.c). */
#ifndef ONCE_SOURCE_FILE_H
#define ONCE_SOURCE_FILE_H

#include "source/place.h"
#include "source/source.h"

typedef struct once_file_spec {
    once_bytes path; /* "-": stdin */
    bool follow;
    bool cursor;          /* go on where the last run had got to */
    once_pointer headers; /* text empty: none */
} once_file_spec;

static inline const once_file_spec *once_file_of(const once_source_spec *source) { return source->own; }

/* What the store keeps of its files (source/place.h), as text; empty: nothing yet. */
typedef struct once_kept_places {
    once_bytes files;      /* which files it has had */
    once_bytes cursor;     /* where to go on; empty: at the beginning */
    const once_hash *lock; /* with a cursor: what stands for it, since each consumer has its own; NULL: without */
} once_kept_places;

/* What this run has kept. @locality: the store's thread, after the start */
typedef struct once_file_keeping {
    uint64_t version; /* of the set of files that the store has */
    uint64_t set;     /* the version that we wrote last ... */
    uint64_t set_in;  /* ... in this transaction, which may still be rolled back */
    once_hash seen;   /* of their text when it was written or read last */
} once_file_keeping;

/* Reads what was kept, and begins there. With a lock, this source becomes the one that moves the cursor;
 * ONCE_E_BUSY: another process does. May be repeated. */
int once__file_start(once_source *source, const once_kept_places *kept, once_error *err);
bool once__file_has_places(const once_source *source);               /* it is no pipe */
void once__file_places(const once_source *source, once_places *out); /* where it begins after that */
once_file_keeping *once__file_keeping(once_source *source);

extern const once_source_ops once__file_ops;
extern const once_config_section once__file_section;

void once__file_conclude(once_source_spec *source);
void once__file_check(once_config *config, const once_node *map, const once_source_spec *source);
void once__file_doubts(const once_source_spec *source, bool shared, once_source_warning *warn, void *user);
bool once__file_has(const once_source_spec *source, once_bytes place);
int once__file_look(once_source *source, once_coordinates at, const once_facts *facts, once_error *err);
void once__file_looks(once_source *source); /* for one message: where there is nothing more, it is at its end */
int once__file_seek(once_source *source, uint32_t stream, const once_facts *facts, once_error *err);
int once__file_keep(once_source *source, const once_facts *facts, once_item *const *items, size_t n,
                    const once_item *const *last, size_t n_last, once_error *err);

#endif
