/* Makes text of the tables: the reference page, and help on a terminal. */
#include <assert.h>
#include <string.h>

#include "base/config.h"

#include "base/banned.h"

#define MAX_SECTIONS 40

/* Sections in the order of their first mention, each once. */
typedef struct seen {
    const once_config_section *sections[MAX_SECTIONS];
    size_t n;
} seen;

static void collect(seen *list, const once_config_section *section)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->sections[i] == section) return;
    assert(list->n < MAX_SECTIONS);
    list->sections[list->n++] = section;
    const once_config_field *field;
    for (size_t i = 0; (field = once_config_field_at(section, i, NULL, NULL)); i++)
        if (field->section) collect(list, field->section);
}

static void anchor(once_buf *out, const char *title)
{
    for (const char *c = title; *c; c++) {
        if (*c == ' ') once_buf_append(out, "-", 1);
        if ((*c >= 'a' && *c <= 'z') || *c == '_') once_buf_append(out, c, 1);
        if (*c >= 'A' && *c <= 'Z') once_buf_append(out, &(char){(char)(*c + 32)}, 1);
    }
}

static void reference_row(const once_config_field *field, once_buf *out)
{
    once_buf_printf(out, "| `%s` | ", field->name);
    once__config_shape(field, out);
    if (field->section) {
        once_buf_printf(out, ": [%s](#", field->section->title);
        anchor(out, field->section->title);
        once_buf_puts(out, ")");
    }
    if (field->standard) once_buf_printf(out, " | `%s` | ", field->standard);
    else
        once_buf_printf(out, " | %s | ",
                        field->required        ? "required"
                        : field->standard_text ? field->standard_text
                                               : "");
    once_buf_printf(out, "%s |\n", field->text);
}

static void later_words(const once_config_section *section, once_buf *out)
{
    bool first = true;
    const once_config_field *field;
    for (size_t i = 0; (field = once_config_field_at(section, i, NULL, NULL)); i++) {
        if (field->type == ONCE_CONFIG_LATER) {
            once_buf_printf(out, "%s`%s`", first ? "\nKnown, but not in this build: " : ", ", field->name);
            first = false;
        }
        for (const once_config_word *word = field->words; word && word->name; word++) {
            if (!word->instead) continue;
            once_buf_printf(out, "%s`%s: %s`", first ? "\nKnown, but not in this build: " : ", ", field->name,
                            word->name);
            first = false;
        }
    }
    if (!first) once_buf_puts(out, ".\n");
}

static void reference(const once_config_section *section, int level, once_buf *out)
{
    once_buf_printf(out, "\n%.*s %s\n\n", level, "######", section->title);
    if (section->text) once_buf_printf(out, "%s\n\n", section->text);
    once_buf_puts(out, "| field | value | default | meaning |\n|---|---|---|---|\n");
    const once_config_field *field;
    for (size_t i = 0; (field = once_config_field_at(section, i, NULL, NULL)); i++)
        if (field->type != ONCE_CONFIG_LATER) reference_row(field, out);
    later_words(section, out);
    if (section->example) once_buf_printf(out, "\n```yaml\n%s```\n", section->example);
}

bool once_config_section_reference(const once_config_section *section, int level, once_buf *out)
{
    assert(level >= 1 && level <= 6);
    seen list = {.n = 0};
    collect(&list, section);
    for (size_t i = 0; i < list.n; i++) reference(list.sections[i], level, out);
    return !out->failed;
}

/* Markdown without its marks. */
static void plain(once_buf *out, const char *text)
{
    for (const char *c = text; *c; c++)
        if (*c != '`') once_buf_append(out, c, 1);
}

static void help_row(const once_config_field *field, once_buf *out)
{
    assert(field->text); /* a field without a description has no place in help */
    once_buf shape;
    once_buf_init(&shape, 4096);
    once__config_shape(field, &shape);
    once_buf_printf(out, "  %-14s ", field->name);
    plain(out, field->text);
    once_buf_puts(out, "\n                 ");
    plain(out, shape.data ? shape.data : "");
    if (field->standard) once_buf_printf(out, "; default %s", field->standard);
    else if (field->required) once_buf_puts(out, "; required");
    else if (field->standard_text) {
        once_buf_puts(out, "; default: ");
        plain(out, field->standard_text);
    }
    once_buf_puts(out, "\n");
    if (shape.failed) out->failed = true;
    once_buf_release(&shape);
}

bool once_config_section_help(const once_config_section *section, once_buf *out)
{
    seen list = {.n = 0};
    collect(&list, section);
    for (size_t i = 0; i < list.n; i++) {
        once_buf_printf(out, "%s%s\n", i > 0 ? "\n" : "", list.sections[i]->title);
        const once_config_field *field;
        for (size_t k = 0; (field = once_config_field_at(list.sections[i], k, NULL, NULL)); k++)
            if (field->type != ONCE_CONFIG_LATER) help_row(field, out);
    }
    return !out->failed;
}
