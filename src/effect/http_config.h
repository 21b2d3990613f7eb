/* The section `http` of a pipeline file, between the files that read it. Knows nothing of libcurl.
 *
 *   http_config.c              its fields
 *   http_config_url.c          URLs
 *   http_config_headers.c      headers
 *   http_config_credentials.c  secrets, tokens, the proxy
 *   http_config_body.c         query, form and body
 *   http_config_answer.c       statuses and conditions
 *   http_config_text.c         maps and templates, for all of them
 *   http_effect.c              rules between fields, and the effect itself
 *
 * Values of headers and credentials may be secrets: no message shows one. */
#ifndef ONCE_EFFECT_HTTP_CONFIG_H
#define ONCE_EFFECT_HTTP_CONFIG_H

#include "base/config.h"
#include "effect/http.h"

#define ONCE_HTTP_HEADERS_MAX 64
#define ONCE_HTTP_PATHS_MAX 4000

/* A once_config_field.read: `out` is the struct of the section, a once_http_spec or a once_http_lookup. Both begin with
 * the request. */
typedef bool once__http_reader(once_config *config, const once_config_field *field, const once_node *node, void *out);

extern const once_config_section once__http_section;

/* --- readers of fields --- */

once__http_reader once__http_config_url, once__http_config_query, once__http_config_headers;
once__http_reader once__http_config_statuses, once__http_config_conditions;
/* Of a once_http_spec only. */
once__http_reader once__http_config_key_header, once__http_config_secret, once__http_config_bearer;
once__http_reader once__http_config_proxy, once__http_config_body, once__http_config_form;

/* --- http_config_text.c; false: a mistake was reported --- */

/* Reports that memory is out. Returns false. */
bool once__http_no_memory(once_config *config);
/* Reports what is wrong with a template. Returns false. */
bool once__http_template_wrong(once_config *config, const char *field, int line, int rc, const once_error *why);
/* Whether messages can have what the text names. */
bool once__http_check_places(once_config *config, const char *field, int line, const once_http_text *text);
bool once__http_read_text(once_config *config, const char *field, const once_node *node, once_http_encoding encoding,
                          once_http_text *out);
/* Whether the node is a map of 1 to `max` members. */
bool once__http_read_map(once_config *config, const once_config_field *field, const once_node *node, size_t max);
/* Whether the value of a member of a map is a text, which may be a template. */
bool once__http_is_member_text(once_config *config, const once_config_field *field, const once_node *item);

/* --- texts --- */

bool once__http_starts_with(once_bytes text, const char *prefix);
bool once__http_has_control(once_bytes text);
/* Whether two names of headers are the same. */
bool once__http_same_header(once_bytes x, once_bytes y);

#endif
