/* Configuration files from tables.
 *
 * A scope is a map in the file (the pipeline, a handler, `retry`) and a const table that says everything about it:
 * field, type, place in a struct, range, default, description. Reading, checking, help text and the reference page come
 * from the tables, so they cannot disagree.
 *
 *     once_config config;
 *     once_config_init(&config, arena, "payments.yaml");
 *     const once_node *root = once_config_yaml(&config, text);
 *     if (root) once_config_read(&config, &scope, root, &my_struct);
 *     rc = once_config_finish(&config, report, user, err);
 *
 * Every mistake is a line "file:line: what; what to do". Reading goes on after one, so that a user sees up to
 * ONCE_CONFIG_MISTAKES of them at once, in the order of the file.
 *
 * YAML is taken in a plain subset: maps, lists and scalars. Anchors, aliases, tags, directives, merge keys, several
 * documents and nesting deeper than ONCE_CONFIG_DEPTH are refused by name.
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

/* --- what stands in the file -------------------------------------------------------------------------------------- */

typedef enum once_node_kind { ONCE_NODE_SCALAR, ONCE_NODE_LIST, ONCE_NODE_MAP } once_node_kind;

struct once_node {
    once_node_kind kind;
    int line;        /* 1.. */
    bool none;       /* a scalar without a value: nothing, ~ or null, without quotes */
    once_bytes text; /* of a scalar; no NUL inside, one behind it */
    once_bytes name; /* in a map: the field that this is the value of */
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
    ONCE_CONFIG_SECTION, /* a map of its own; its fields count their offsets from this one's place */
    ONCE_CONFIG_CUSTOM,  /* `read` does it */
    ONCE_CONFIG_LATER    /* known, but not in this build: refused by name, with `instead` */
} once_config_type;

typedef struct once_config_word {
    const char *name;
    const char *instead; /* not NULL: known, but not in this build; what to do instead */
} once_config_word;

/* Reads `node` into the struct `out` (the scope's, not the field's place). On mistakes it reports them and returns
 * false. */
typedef bool once_config_reader(once_config *config, const once_config_field *field, const once_node *node, void *out);

struct once_config_field {
    const char *name;
    once_config_type type;
    bool required;
    size_t offset, size, count; /* of the member; `count`: where the length of STRINGS goes */
    int64_t min, max;
    const char *standard;          /* the default, as a user would write it; NULL: the struct is left as it is */
    const char *standard_text;     /* in the reference, where there is no `standard`: "as the pipeline's" */
    const char *example;           /* a good value */
    const once_config_word *words; /* WORD; ends with a NULL name */
    const once_config_section *scope;
    once_config_reader *read;
    const char *shape;   /* CUSTOM: what it wants, "a template" */
    const char *text;    /* what it means: one line, Markdown */
    const char *instead; /* LATER */
    const char *plural;  /* LATER: "effects" makes "'http' effects are not in this build" */
};

/* Fields that are not in a scope's own table: drivers bring them, each those of its own, which are read into a struct
 * of its own. The i-th one; NULL: there are no more. `out`, where it is not NULL, is the scope's struct, and `*place`
 * becomes that of the driver; NULL: another driver is chosen, and the field is neither read nor missed. The first field
 * of a name counts. */
typedef const once_config_field *once_config_brought(size_t i, void *out, void **place);

struct once_config_section {
    const char *name;    /* "a handler": in messages */
    const char *title;   /* in the reference */
    const char *text;    /* under the title; may be NULL */
    const char *example; /* YAML; may be NULL */
    const once_config_field *fields;
    size_t n;
    once_config_brought *brought;     /* they come before `fields`; may be NULL */
    const once_config_section *outer; /* where a misplaced field may belong; may be NULL */
};

#define ONCE_CONFIG_AT(type, member) .offset = offsetof(type, member), .size = sizeof(((type *)0)->member)

/* The i-th field of a scope; NULL: there are no more. `out` and `place` as above, both NULL or neither. */
const once_config_field *once_config_field_at(const once_config_section *scope, size_t i, void *out, void **place);

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
    size_t n, total; /* kept, and found */
    bool nomem;
    /* Set by the caller: what ${source:NAME} may name, ends with NULL; NULL: unknown. And whether a template does. */
    const char *const *source_names;
    bool names_source;
    bool inherit; /* set by the caller: leave what is not in the file as it is, defaults or not */
};

/* One line, "file:line: what; what to do", without a newline. */
typedef void once_config_report(void *user, const char *line);

/* `file` is the name shown; it must live as long as the config. */
void once_config_init(once_config *config, once_arena *arena, const char *file);

/* Checks size, UTF-8 and the YAML subset. NULL after mistakes. The root is a map. */
const once_node *once_config_yaml(once_config *config, once_bytes text);

/* Reads a map into a struct. Fields that are not in the file get their default, or are left as they are. False when
 * there was a mistake in it. */
bool once_config_read(once_config *config, const once_config_section *scope, const once_node *map, void *out);

/* The same for one field, for readers of CUSTOM fields that delegate. */
bool once_config_read_field(once_config *config, const once_config_field *field, const once_node *node, void *out);

/* For CUSTOM readers and rules between fields. */
void once_config_wrong(once_config *config, int status, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The text of a scalar; a mistake and false when the node is none or has no value. */
bool once_config_scalar(once_config *config, const once_config_field *field, const once_node *node, once_bytes *out);

/* ONCE_OK when there was no mistake. Otherwise all of them go to `report` (may be NULL), the first to `err`. */
int once_config_finish(once_config *config, once_config_report *report, void *user, once_error *err);

/* The known name that `name` most likely was meant to be; NULL when none is near. `next` yields the candidates. */
const char *once_config_nearest(once_bytes name, const char *(*next)(void *user, size_t i), void *user);

/* A text in a message: at most 60 bytes of it, on one line. */
typedef struct once_config_shown {
    char text[72];
} once_config_shown;
once_config_shown once_config_show(once_bytes text);

/* --- from the tables ---------------------------------------------------------------------------------------------- */

/* The scope's title, text, table and example in Markdown; of all scopes inside it too, each once. */
bool once_config_section_reference(const once_config_section *scope, int level, once_buf *out);

/* The same as plain text, for a terminal. */
bool once_config_section_help(const once_config_section *scope, once_buf *out);

/* What a field takes, in words: "duration, 1ms to 1d". */
void once__config_shape(const once_config_field *field, once_buf *out);

#endif
