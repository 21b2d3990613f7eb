/* Makes nodes of YAML text, with libyaml's events. Parts of YAML that are not accepted (base/config.h) are refused
 * here, by name. */
#include <assert.h>
#include <string.h>
#include <yaml.h>

#include "base/config.h"

#include "base/banned.h"

typedef struct builder {
    once_config *config;
    once_bytes text;
    yaml_parser_t parser;
    int depth;
} builder;

static bool wrong(builder *b, int line, const char *text)
{
    once_config_wrong(b->config, ONCE_E_CONFIG, line, "%s", text);
    return false;
}

static bool out_of_memory(builder *b)
{
    b->config->nomem = true;
    return false;
}

/* --- checks before libyaml ---------------------------------------------------------------------------------------- */

/* The number of bytes of a well-formed UTF-8 character, 0 if it is not one. */
static size_t utf8_len(const unsigned char *at, size_t left)
{
    unsigned char first = at[0];
    if (first < 0x80) return 1;
    size_t len = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (len == 0 || len > left) return 0;
    for (size_t i = 1; i < len; i++)
        if ((at[i] & 0xc0) != 0x80) return 0;
    if (first == 0xe0 && at[1] < 0xa0) return 0; /* overlong */
    if (first == 0xed && at[1] > 0x9f) return 0; /* a surrogate */
    if (first == 0xf0 && at[1] < 0x90) return 0; /* overlong */
    if (first == 0xf4 && at[1] > 0x8f) return 0; /* past U+10FFFF */
    return len;
}

static bool check_bytes(builder *b)
{
    const unsigned char *data = (const unsigned char *)b->text.data;
    int line = 1;
    for (size_t i = 0; i < b->text.len;) {
        if (data[i] == '\0') return wrong(b, line, "NUL byte in the file; it must be UTF-8 text");
        size_t len = utf8_len(data + i, b->text.len - i);
        if (len == 0) return wrong(b, line, "the file is not UTF-8; save it as UTF-8");
        if (data[i] == '\n') line++;
        i += len;
    }
    return true;
}

/* --- libyaml's errors, with what to do ---------------------------------------------------------------------------- */

static once_bytes line_text(once_bytes text, size_t line)
{
    const char *at = text.data, *end = text.data + text.len;
    for (; line > 0 && at < end; line--) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        at = newline ? newline + 1 : end;
    }
    const char *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
    return (once_bytes){at, (size_t)((newline ? newline : end) - at)};
}

static bool tab_indented(once_bytes line)
{
    for (size_t i = 0; i < line.len && (line.data[i] == ' ' || line.data[i] == '\t'); i++)
        if (line.data[i] == '\t') return true;
    return false;
}

typedef struct complaint {
    const char *part; /* of libyaml's text */
    const char *ours; /* our text instead */
} complaint;

static const complaint complaints[] = {
    {"scanning an alias", "aliases ('*name') are not used here; write \"*\" in quotes when the name is a star"},
    {"scanning an anchor", "anchors ('&name') are not used here; write the value out"},
    {"mapping values are not allowed", "':' inside a value; put the value in quotes, or write it as a block with |"},
    {"could not find expected ':'", "a line without ':'; write 'field: value', and check indentation and quotes"},
    {"found unexpected end of stream", "a quoted text has no end; close the quote"},
    {"did not find expected ',' or '}'", "'{' is not closed; write '}', and put templates inside {} in quotes"},
    {"did not find expected ',' or ']'", "'[' is not closed; write ']', and put templates inside [] in quotes"},
    {"did not find expected key", "a field was expected here; check the indentation, and quotes around values"},
    {"did not find expected '-' indicator", "a list item was expected here; check the indentation"},
    {"control characters are not allowed", "a control character; remove it, or write it as an escape in double quotes"},
    {"found character that cannot start any token", "a character that cannot begin a value; put the value in quotes"},
};

static bool syntax(builder *b)
{
    const yaml_parser_t *p = &b->parser;
    if (p->error == YAML_MEMORY_ERROR) return out_of_memory(b);
    const char *problem = p->problem ? p->problem : "?", *context = p->context ? p->context : "";
    size_t line = p->problem_mark.line;
    if (p->error == YAML_READER_ERROR) { /* has an offset instead of a mark */
        line = 0;
        for (size_t i = 0; i < p->problem_offset && i < b->text.len; i++) line += b->text.data[i] == '\n';
    }
    if (tab_indented(line_text(b->text, line)) && p->error == YAML_SCANNER_ERROR)
        return wrong(b, (int)line + 1, "tab in the indentation; use spaces");
    for (size_t i = 0; i < sizeof complaints / sizeof complaints[0]; i++)
        if (strstr(problem, complaints[i].part) || strstr(context, complaints[i].part))
            return wrong(b, (int)line + 1, complaints[i].ours);
    once_config_wrong(b->config, ONCE_E_CONFIG, (int)line + 1, "not valid YAML: %s; check indentation and quotes",
                      problem);
    return false;
}

/* --- events to nodes ---------------------------------------------------------------------------------------------- */

static bool next_event(builder *b, yaml_event_t *event)
{
    return yaml_parser_parse(&b->parser, event) ? true : syntax(b);
}

static int line_of(const yaml_event_t *event) { return (int)event->start_mark.line + 1; }

static bool refuse_decoration(builder *b, const yaml_event_t *event)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT) anchor = event->data.scalar.anchor, tag = event->data.scalar.tag;
    if (event->type == YAML_SEQUENCE_START_EVENT)
        anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag;
    if (event->type == YAML_MAPPING_START_EVENT)
        anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag;
    if (event->type == YAML_ALIAS_EVENT)
        return wrong(b, line_of(event), "aliases ('*name') are not used here; write the value out");
    if (anchor) return wrong(b, line_of(event), "anchors ('&name') are not used here; write the value out");
    if (tag)
        return wrong(b, line_of(event), "tags ('!name') are not used here; remove the tag, or put the value in quotes");
    return true;
}

static once_node *new_node(builder *b, once_node_kind kind, int line)
{
    once_node *node = once_arena_new(b->config->arena, once_node, 1);
    if (!node) {
        (void)out_of_memory(b);
        return NULL;
    }
    node->kind = kind;
    node->line = line;
    return node;
}

static bool is_none(once_bytes text)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (text.len == strlen(words[i]) && memcmp(text.data, words[i], text.len) == 0) return true;
    return false;
}

static once_node *scalar_node(builder *b, const yaml_event_t *event)
{
    once_node *node = new_node(b, ONCE_NODE_SCALAR, line_of(event));
    if (!node) return NULL;
    once_bytes text = {(const char *)event->data.scalar.value, event->data.scalar.length};
    if (text.len > 0 && memchr(text.data, '\0', text.len)) {
        (void)wrong(b, node->line, "NUL in a value; remove the escape");
        return NULL;
    }
    if (!once_arena_copy(b->config->arena, text, &node->text)) {
        (void)out_of_memory(b);
        return NULL;
    }
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    node->none = !node->quoted && is_none(text);
    return node;
}

static once_node *build(builder *b, const yaml_event_t *event);

static void append(once_node *parent, once_node *child, once_node **last)
{
    assert((parent->first == NULL) == (*last == NULL) && !child->next);
    if (*last) (*last)->next = child;
    else parent->first = child;
    *last = child;
    parent->count++;
}

/* Reads one event and builds the node that begins with it. *end: it was `end_type`, and there is no node. */
static once_node *build_next(builder *b, yaml_event_type_t end_type, bool *end)
{
    yaml_event_t event;
    *end = false;
    if (!next_event(b, &event)) return NULL;
    once_node *node = NULL;
    if (event.type == end_type) *end = true;
    else node = build(b, &event);
    yaml_event_delete(&event);
    return node;
}

static bool fill_list(builder *b, once_node *list)
{
    once_node *last = NULL;
    for (;;) {
        bool end;
        once_node *item = build_next(b, YAML_SEQUENCE_END_EVENT, &end);
        if (end) return true;
        if (!item) return false;
        append(list, item, &last);
    }
}

/* Maps are small, except in hostile files. This bounds the search for a double name. */
#define MAX_FIELDS 1000

static bool check_name(builder *b, const once_node *map, const once_node *key, bool *doubled)
{
    *doubled = false;
    once_config *config = b->config;
    if (key->kind != ONCE_NODE_SCALAR) return wrong(b, key->line, "a field name must be plain text; put it in quotes");
    if (key->text.len == 2 && memcmp(key->text.data, "<<", 2) == 0)
        return wrong(b, key->line, "merge keys ('<<') are not used here; write the fields out");
    if (map->count == MAX_FIELDS) return wrong(b, key->line, "more than 1000 fields in one map");
    for (const once_node *other = map->first; other; other = other->next) {
        if (!once_bytes_equal(other->name, key->text)) continue;
        once_config_wrong(config, ONCE_E_CONFIG, key->line,
                          "field '%s' is there twice: it is already on line %d; remove one",
                          once_config_show(key->text).text, other->name_line);
        *doubled = true; /* reading goes on, without the second one */
        return true;
    }
    return true;
}

static bool fill_map(builder *b, once_node *map)
{
    once_node *last = NULL;
    for (;;) {
        bool end, doubled;
        once_node *key = build_next(b, YAML_MAPPING_END_EVENT, &end);
        if (end) return true;
        if (!key || !check_name(b, map, key, &doubled)) return false;
        once_node *value = build_next(b, YAML_NO_EVENT, &end);
        if (!value) return false;
        value->name = key->text;
        value->name_line = key->line;
        if (!doubled) append(map, value, &last);
    }
}

static once_node *build(builder *b, const yaml_event_t *event)
{
    if (!refuse_decoration(b, event)) return NULL;
    if (event->type == YAML_SCALAR_EVENT) return scalar_node(b, event);
    bool map = event->type == YAML_MAPPING_START_EVENT;
    assert(map || event->type == YAML_SEQUENCE_START_EVENT);
    if (b->depth == ONCE_CONFIG_DEPTH) {
        once_config_wrong(b->config, ONCE_E_CONFIG, line_of(event), "nesting deeper than %d levels; make it flatter",
                          ONCE_CONFIG_DEPTH);
        return NULL;
    }
    once_node *node = new_node(b, map ? ONCE_NODE_MAP : ONCE_NODE_LIST, line_of(event));
    if (!node) return NULL;
    b->depth++;
    bool ok = map ? fill_map(b, node) : fill_list(b, node);
    b->depth--;
    return ok ? node : NULL;
}

/* --- documents ---------------------------------------------------------------------------------------------------- */

static const char *const empty_file = "the file is empty; a pipeline begins with 'consumer: NAME'";

static once_node *build_document(builder *b, const yaml_event_t *start)
{
    if (start->data.document_start.version_directive ||
        start->data.document_start.tag_directives.start != start->data.document_start.tag_directives.end) {
        (void)wrong(b, line_of(start), "directives ('%...') are not used here; remove the line");
        return NULL;
    }
    bool end;
    once_node *root = build_next(b, YAML_NO_EVENT, &end);
    if (!root) return NULL;
    if (root->kind == ONCE_NODE_SCALAR && root->none) {
        (void)wrong(b, 1, empty_file);
        return NULL;
    }
    if (root->kind != ONCE_NODE_MAP) {
        (void)wrong(b, root->line, "the file must be a map of fields; write 'field: value' lines");
        return NULL;
    }
    return root;
}

static once_node *build_stream(builder *b)
{
    once_node *root = NULL;
    for (bool more = true; more;) {
        yaml_event_t event;
        if (!next_event(b, &event)) return NULL;
        bool ok = true;
        if (event.type == YAML_STREAM_END_EVENT) {
            more = false;
            if (!root) ok = wrong(b, 1, empty_file);
        } else if (event.type == YAML_DOCUMENT_START_EVENT) {
            if (root) ok = wrong(b, line_of(&event), "a second document begins here; write one pipeline per file");
            else ok = (root = build_document(b, &event)) != NULL;
        }
        yaml_event_delete(&event);
        if (!ok) return NULL;
    }
    return root;
}

const once_node *once_config_yaml(once_config *config, once_bytes text)
{
    assert(config);
    assert(text.data || text.len == 0);
    if (text.len >= 3 && memcmp(text.data, "\xef\xbb\xbf", 3) == 0) /* a byte order mark; we expect UTF-8 anyway */
        text = (once_bytes){text.data + 3, text.len - 3};
    builder b = {.config = config, .text = text};
    if (text.len == 0) return wrong(&b, 1, empty_file), NULL;
    if (text.len > ONCE_CONFIG_MAX) return wrong(&b, 0, "the file is larger than 1 MiB; is it a pipeline?"), NULL;
    if (!check_bytes(&b)) return NULL;
    if (!yaml_parser_initialize(&b.parser)) return out_of_memory(&b), NULL;
    yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&b.parser, (const unsigned char *)text.data, text.len);
    once_node *root = build_stream(&b);
    yaml_parser_delete(&b.parser);
    return root;
}

const once_node *once_node_member(const once_node *map, const char *name)
{
    if (map->kind != ONCE_NODE_MAP) return NULL;
    size_t len = strlen(name);
    for (const once_node *node = map->first; node; node = node->next)
        if (node->name.len == len && memcmp(node->name.data, name, len) == 0) return node;
    return NULL;
}

const char *once_node_kind_text(const once_node *node)
{
    switch (node->kind) {
    case ONCE_NODE_LIST: return "a list";
    case ONCE_NODE_MAP: return "a map";
    case ONCE_NODE_SCALAR: return node->none ? "nothing" : "a value";
    }
    return "?";
}
