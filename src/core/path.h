/* Paths: a field of a JSON body, or of JSON that is a text inside of it.
 *
 *   /a/b                        a JSON pointer: the field of the body
 *   json:/Message:/detail/id    the text at /Message is read as JSON, and /detail/id is taken from that
 *   json:/a:/b:/c               and so on, through at most ONCE_PATH_TEXTS_MAX texts
 *
 * A pointer ends before ":/". Where that is part of a name, the ':' is written ~2 (base/json.h). A body or a text that
 * lacks the field, or has null there, gives ABSENT. Anything else that is no text, and a text that is no JSON, is the
 * message's fault.
 *
 * Each text is parsed once per message, however many paths lead into it: once_texts keeps the documents, and their
 * memory from message to message. A text is never longer than what it is in, so message_max bounds it.
 *
 * Thread rule: a compiled path may be shared; once_texts belongs to one thread at a time. */
#ifndef ONCE_CORE_PATH_H
#define ONCE_CORE_PATH_H

#include "base/json.h"

#define ONCE_PATH_TEXTS_MAX 8

typedef struct once_path {
    once_bytes text;              /* as written */
    const once_pointer *pointers; /* the first in the body, each other one in the text that the one before it names */
    size_t n;                     /* 1: a field of the body itself */
} once_path;

/* Copies all it needs into the arena. ONCE_OK, ONCE_E_USAGE with the mistake in `err`, or ONCE_E_NOMEM; on failure
 * `out` is untouched. */
int once_path_parse(once_arena *arena, once_bytes text, once_path *out, once_error *err);

struct once_text;

/* The texts of one message that were parsed. A zeroed struct is empty. */
typedef struct once_texts {
    once_arena *arena;              /* where texts are unescaped; as long-lived as the body */
    uint64_t seed;                  /* of once_json_options */
    struct once_text *used, *spare; /* spare ones are of messages before */
} once_texts;

/* Begins with another message: forgets the texts of the one before. */
void once_texts_begin(once_texts *texts, once_arena *arena, uint64_t seed);
void once_texts_release(once_texts *texts);

/* A value, and the document that it is in: the body or one of the texts. */
typedef struct once_path_value {
    once_json *json;
    once_json_value value;
} once_path_value;

/* ONCE_OK, where the value may be ABSENT; ONCE_E_MESSAGE with the reason in `err`; ONCE_E_NOMEM. `body` may be NULL: it
 * has no fields. `texts` may be NULL if the path is a field of the body. */
int once_path_find(const once_path *path, once_json *body, once_texts *texts, once_path_value *out, once_error *err);

#endif
