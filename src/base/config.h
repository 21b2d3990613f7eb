/* Configuration files, read by tables.
 *
 * A section is a map in the file (the pipeline, a handler, `retry`) and a const table that describes it: each field
 * with its type, place in a struct, range, default and description. Reading, checking, help text and the reference page
 * all come from the tables, so they cannot disagree.
 *
 *     once_config config;
 *     once_config_init(&config, arena, "payments.yaml");
 *     const once_node *root = once_config_yaml(&config, text);
 *     if (root) once_config_read(&config, &section, root, &my_struct);
 *     rc = once_config_finish(&config, report, user, err);
 *
 * Every mistake is a line "file:line: what is wrong; what to do". Reading goes on after a mistake, so that a user sees
 * up to ONCE_CONFIG_MISTAKES of them at once, in the order of the file.
 *
 * Only a plain subset of YAML is accepted: maps, lists and scalars. Anchors, aliases, tags, directives, merge keys,
 * several documents and nesting deeper than ONCE_CONFIG_DEPTH are refused by name.
 *
 * Everything read lives in the arena. Thread rule: one thread at a time; tables are const and may be shared. */
#ifndef ONCE_BASE_CONFIG_H
#define ONCE_BASE_CONFIG_H

#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "once/types.h"

#define ONCE_CONFIG_MISTAKES 10
#define ONCE_CONFIG_DEPTH 32
#define ONCE_CONFIG_MAX ((size_t)1 << 20)                  /* bytes of a file */
#define ONCE_CONFIG_LONGEST_MS (INT64_C(36500) * 86400000) /* the longest duration that is not forever: 100 years */

typedef struct once_node once_node;
typedef struct once_config once_config;
typedef struct once_config_field once_config_field;
typedef struct once_config_section once_config_section;

/* --- the content of the file -------------------------------------------------------------------------------------- */

typedef enum once_node_kind { ONCE_NODE_SCALAR, ONCE_NODE_LIST, ONCE_NODE_MAP } once_node_kind;

struct once_node {
    once_node_kind kind;
    int line;        /* 1.. */
    bool none;       /* a scalar without a value: nothing, ~ or null, without quotes */
    bool quoted;     /* a scalar in quotes or a block: it is a text, whatever it looks like */
    once_bytes text; /* of a scalar; has no NUL inside, and one behind it */
    once_bytes name; /* in a map: the name of the field whose value this is */
    int name_line;
    const once_node *first, *next; /* children of a list or a map; names in a map are unique */
    size_t count;
};

const once_node *once_node_member(const once_node *map, const char *name); /* NULL if there is none */
const char *once_node_kind_text(const once_node *node);                    /* "a list", "a map", "nothing", "a value" */

/* --- tables ------------------------------------------------------------------------------------------------------- */

typedef enum once_config_type {
    ONCE_CONFIG_STRING,   /* once_bytes; min and max are its length */
    ONCE_CONFIG_BOOL,     /* bool */
    ONCE_CONFIG_INTEGER,  /* integer of any width; min..max */
    ONCE_CONFIG_DURATION, /* int64_t in ms; min..max; max ONCE_FOREVER allows the word forever */
    ONCE_CONFIG_RANGE,    /* int64_t[2]: "200ms..1m"; min..max for both ends */
    ONCE_CONFIG_SIZE,     /* integer of any width, in bytes: "64KiB"; min..max */
    ONCE_CONFIG_WORD,     /* int: the position in `words` */
    ONCE_CONFIG_POINTER,  /* once_pointer */
    ONCE_CONFIG_STRINGS, /* const once_bytes * at `offset`, size_t at `count`: a list, or one value for a list of one */
    ONCE_CONFIG_SECTION, /* a map with a table of its own; offsets of its fields count from this field's place */
    ONCE_CONFIG_CUSTOM,  /* `read` reads it */
    ONCE_CONFIG_LATER    /* known, but not in this build: refused by name, with `instead` */
} once_config_type;

typedef struct once_config_word {
    const char *name;
    const char *instead; /* not NULL: known, but not in this build; what to do instead */
} once_config_word;

/* Reads `node` into the struct `out` (that of the section, not the place of the field). False: it reported mistakes. */
typedef bool once_config_reader(once_config *config, const once_config_field *field, const once_node *node, void *out);

struct once_config_field {
    const char *name;
    once_config_type type;
    bool required;
    size_t offset, size, count; /* of the member; `count`: where the length of STRINGS goes */
    int64_t min, max;
    const char *standard;               /* the default, as a user would write it; NULL: the struct is left as it is */
    const char *standard_text;          /* in the reference, where there is no `standard`: "as the pipeline's" */
    const char *example;                /* a good value */
    const once_config_word *words;      /* WORD; ends with a NULL name */
    const once_config_section *section; /* SECTION: its table */
    once_config_reader *read;
    const char *shape;   /* CUSTOM: what it takes, as in "a template" */
    const char *text;    /* what it means: one line, Markdown */
    const char *instead; /* LATER */
    const char *plural;  /* LATER: "effects" makes "'http' effects are not in this build" */
};

/* Fields that drivers add to a section; each driver has a table and a struct of its own. Returns the i-th field; NULL:
 * there are no more. If `out` is not NULL it is the struct of the section, and `*place` becomes that of the driver;
 * NULL: another driver is chosen, and the field is neither read nor required. Of two fields with one name the first
 * counts. */
typedef const once_config_field *once_config_brought(size_t i, void *out, void **place);

struct once_config_section {
    const char *name;    /* "a handler": in messages */
    const char *title;   /* in the reference */
    const char *text;    /* under the title; may be NULL */
    const char *example; /* YAML; may be NULL */
    const once_config_field *fields;
    size_t n;
    once_config_brought *brought;     /* fields of drivers, which come before `fields`; may be NULL */
    const once_config_section *outer; /* where a misplaced field may belong; may be NULL */
};

#define ONCE_CONFIG_AT(type, member) .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)

/* The i-th field of a section; NULL: there are no more. `out` and `place` as above, both NULL or neither. */
const once_config_field *once_config_field_at(const once_config_section *section, size_t i, void *out, void **place);

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef struct once_config_mistake {
    int status; /* ONCE_E_CONFIG or ONCE_E_UNSUPPORTED */
    int line;   /* 0: the file as a whole */
    const char *text;
} once_config_mistake;

struct once_config {
    once_arena *arena;
    const char *file;
    once_config_mistake mistakes[ONCE_CONFIG_MISTAKES];
    size_t n, total; /* mistakes that are kept; all that were found */
    bool nomem;
    const char *const
        *source_names; /* set by the caller: the names for ${source:NAME}, ends with NULL; NULL: unknown */
    bool names_source; /* some template has ${source:NAME} */
    bool no_fields;    /* set by the caller: bodies are bytes, so nothing can name a field of one */
    bool events;       /* set by the caller: a preset says which events messages are, so there is ${event:NAME} */
    const char *const *event_names; /* set by the caller: the names for it, ends with NULL; NULL: any */
    bool inherit;                   /* set by the caller: fields that are not in the file keep their value */
};

/* Gets one line, "file:line: what is wrong; what to do", without a newline. */
typedef void once_config_report(void *user, const char *line);

/* `file` is the name in messages; it must live as long as the config. */
void once_config_init(once_config *config, once_arena *arena, const char *file);

/* Checks size, UTF-8 and the YAML subset. NULL after mistakes. The root is a map. */
const once_node *once_config_yaml(once_config *config, once_bytes text);

/* Reads a map into a struct. Fields that are not in the file get their default; without one they are left as they are.
 * False: there were mistakes. */
bool once_config_read(once_config *config, const once_config_section *section, const once_node *map, void *out);

/* The same for one field, for readers of CUSTOM fields that delegate. */
bool once_config_read_field(once_config *config, const once_config_field *field, const once_node *node, void *out);

/* Reports a mistake. For CUSTOM readers and for rules between fields. */
void once_config_wrong(once_config *config, int status, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The text of a scalar. False: it reported that the node is not a scalar or has no value. */
bool once_config_scalar(once_config *config, const once_config_field *field, const once_node *node, once_bytes *out);

/* ONCE_OK if there was no mistake. Otherwise all mistakes go to `report` (may be NULL), and the first one to `err`. */
int once_config_finish(once_config *config, once_config_report *report, void *user, once_error *err);

/* The known name that was most likely meant by `name`; NULL: none is near. `next` gives the i-th known name, then NULL.
 */
const char *once_config_nearest(once_bytes name, const char *(*next)(void *user, size_t i), void *user);

/* A text in a message: at most 60 bytes of it, on one line. */
typedef struct once_config_shown {
    char text[72];
} once_config_shown;
once_config_shown once_config_show(once_bytes text);

/* --- from the tables ---------------------------------------------------------------------------------------------- */

/* Title, text, table and example of the section in Markdown, and of all sections inside it, each once. */
bool once_config_section_reference(const once_config_section *section, int level, once_buf *out);

/* The same as plain text, for a terminal. */
bool once_config_section_help(const once_config_section *section, once_buf *out);

/* What a field takes, in words: "duration, 1ms to 1d". */
void once__config_shape(const once_config_field *field, once_buf *out);

#endif
