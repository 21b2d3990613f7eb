#include "runtime/config_preset.h"

#include <assert.h>
#include <string.h>

#include "base/buf.h"
#include "core/event.h"

#include "base/banned.h"

#define PRESET(name, fields, events, text) {#name, fields, events, text},
static const once_preset presets[] = {ONCE_PRESET_MAP(PRESET)};
#define WORD(name, fields, events, text) {#name, NULL},
const once_config_word once__preset_words[] = {ONCE_PRESET_MAP(WORD){NULL, NULL}};

const once_preset *once__preset_list(size_t *n)
{
    *n = sizeof presets / sizeof *presets;
    return presets;
}

static const once_preset *named_by(const once_node *node)
{
    for (size_t i = 0; node && node->kind == ONCE_NODE_SCALAR && i < sizeof presets / sizeof *presets; i++)
        if (once_bytes_equal(node->text, once_bytes_of(presets[i].name))) return &presets[i];
    return NULL;
}

bool once__preset_line(const once_preset *preset, size_t i, once_bytes *line, once_bytes *name)
{
    const char *at = preset->fields;
    for (; *at && i > 0; i--) at += strcspn(at, "\n") + 1;
    *line = (once_bytes){at, strcspn(at, "\n")};
    *name = (once_bytes){at, strcspn(at, ":\n")};
    assert(!*at || at[line->len] == '\n'); /* each line has its end */
    return *at != '\0';
}

/* Notes which lines of the preset the file overrides. */
static unsigned find_own(const once_preset *preset, const once_node *root)
{
    unsigned own = 0;
    once_bytes line, name;
    for (size_t i = 0; once__preset_line(preset, i, &line, &name); i++)
        for (const once_node *node = root->first; node; node = node->next)
            if (once_bytes_equal(node->name, name)) own |= 1u << i;
    return own;
}

/* A copy of the node and of everything in it, as if it stood on this line, before `next`. NULL: out of memory. */
static once_node *copy(once_config *config, const once_node *from, int line, const once_node *next)
{
    once_node *made = once_arena_new(config->arena, once_node, 1);
    if (!made) return NULL;
    *made = *from;
    made->line = made->name_line = line;
    made->next = next;
    const once_node **last = &made->first;
    for (const once_node *child = from->first; child; child = child->next) {
        once_node *mine = copy(config, child, line, NULL);
        if (!mine) return NULL;
        *last = mine;
        last = &mine->next;
    }
    return made;
}

const once_node *once__preset_apply(once_config *config, const once_node *root, once_spec *spec)
{
    const once_node *said = once_node_member(root, "preset");
    const once_preset *preset = named_by(said);
    if (!preset) return root;
    spec->preset = preset;
    spec->preset_own = find_own(preset, root);
    spec->events = preset->events;
    config->events = true;
    config->event_names = once_event_names(preset->events);
    const once_node *fields = once_config_yaml(config, once_bytes_of(preset->fields));
    once_node *made = once_arena_new(config->arena, once_node, 1);
    if (made) *made = *root;
    for (const once_node *field = fields ? fields->first : NULL; field && made; field = field->next) {
        if (once_node_member(root, field->name.data)) continue;
        const once_node *mine = copy(config, field, said->line, made->first);
        made->first = mine;
        made->count++;
        if (!mine) made = NULL;
    }
    config->nomem |= !made;
    return made;
}
