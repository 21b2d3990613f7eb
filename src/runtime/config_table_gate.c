/* How many messages of a handler may begin: `breaker`, `dead_limit` and `rate` (core/gate.h). */
#include <assert.h>

#include "runtime/config_tables.h"

#include "base/banned.h"

#define HOUR_MS INT64_C(3600000)

/* Reads a whole number from the front of the text. False: there is none, or it is larger than a million. */
static bool read_number(once_bytes *text, uint32_t *out)
{
    enum { MOST = 1000000 };
    uint32_t n = 0;
    size_t i = 0;
    for (; i < text->len && text->data[i] >= '0' && text->data[i] <= '9' && n <= MOST; i++)
        n = n * 10 + (uint32_t)(text->data[i] - '0');
    if (i == 0 || n > MOST) return false;
    *text = (once_bytes){text->data + i, text->len - i};
    *out = n;
    return true;
}

static bool wrong(once_config *config, const once_config_field *field, const once_node *node, const char *write)
{
    if (node->kind == ONCE_NODE_SCALAR)
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' is '%s'; write %s", field->name,
                          once_config_show(node->text).text, write);
    else
        once_config_wrong(config, ONCE_E_CONFIG, node->line, "'%s' is %s; write %s", field->name,
                          once_node_kind_text(node), write);
    return false;
}

/* "50%" */
static bool read_percent(once_config *config, const once_config_field *field, const once_node *node, const char *write,
                         void *out)
{
    once_bytes text;
    uint32_t share = 0;
    if (!once_config_scalar(config, field, node, &text)) return false;
    if (!read_number(&text, &share) || !once__is_text(text, "%") || share < 1 || share > 100)
        return wrong(config, field, node, write);
    once__config_put(field, out, &share, sizeof share);
    return true;
}

static bool read_share(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    return read_percent(config, field, node, "a share from '1%' to '100%'", out);
}

static const once_config_field breaker_fields[] = {
    {.name = "share",
     .type = ONCE_CONFIG_CUSTOM,
     .read = read_share,
     ONCE_CONFIG_AT(once_breaker, share),
     .shape = "1% to 100%",
     .standard = "80%",
     .text = "How many of the last outcomes are failures (retry, unknown), and also of all those of the last half to "
             "whole second: of many calls, those without an answer end together. A handler whose messages all need a "
             "second attempt works, and half of its outcomes are failures: stay well above 50%."},
    {.name = "of",
     .type = ONCE_CONFIG_INTEGER,
     ONCE_CONFIG_AT(once_breaker, of),
     .min = 1,
     .max = ONCE_BREAKER_MOST,
     .standard = "20",
     .text = "How many outcomes that is."},
    {.name = "within",
     .type = ONCE_CONFIG_DURATION,
     ONCE_CONFIG_AT(once_breaker, within_ms),
     .min = 1,
     .max = HOUR_MS,
     .standard = "10s",
     .text = "They all ended within this time. A handler that ends fewer is not held: it does little harm."},
};

const once_config_section once__breaker_section = {
    .name = "'breaker'",
    .title = "breaker",
    .text = "When the other side of an effect is away, its handler is held up: nothing of it begins, except one probe "
            "at a time, after 1 s, 2 s, 4 s\n"
            "and so on up to a minute, each up to a half earlier at random. It goes on when a probe gets an answer. "
            "Its messages wait in the store meanwhile, up\n"
            "to `waiting_max`, and spend no attempts; other handlers go on. A probe that fails counts as a failure of "
            "its message.\n"
            "`on`: as below; `off`: no breaker. Only for effects outside of the store.",
    .example = "breaker: {share: 90%, of: 50, within: 30s}\n",
    .fields = breaker_fields,
    .n = COUNT(breaker_fields),
};

/* Where the field is in the struct. */
static void *place_of(const once_config_field *field, void *out, size_t size)
{
    assert(field->size == size);
    (void)size;
    return (char *)out + field->offset;
}

bool once__read_breaker(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_breaker *breaker = place_of(field, out, sizeof *breaker);
    const bool inherits = config->inherit;
    const once_node nothing = {.kind = ONCE_NODE_MAP, .line = node->line};
    const bool off = node->kind == ONCE_NODE_SCALAR && once__is_text(node->text, "off");
    const bool on = node->kind == ONCE_NODE_SCALAR && once__is_text(node->text, "on");
    if (node->kind != ONCE_NODE_MAP && !on && !off)
        return wrong(config, field, node, "'on', 'off', or a map with 'share', 'of' and 'within'");
    *breaker = (once_breaker){0};
    if (off) return true;
    config->inherit = false; /* parts that are not set have their defaults */
    const bool read = once_config_read(config, &once__breaker_section, on ? &nothing : node, breaker);
    config->inherit = inherits;
    return read;
}

bool once__read_dead_limit(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    uint32_t *share = place_of(field, out, sizeof *share);
    if (node->kind == ONCE_NODE_SCALAR && once__is_text(node->text, "off")) {
        *share = 0;
        return true;
    }
    return read_percent(config, field, node, "a share from '1%' to '100%', or 'off'", out);
}

bool once__read_rate(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_rate *rate = place_of(field, out, sizeof *rate);
    once_bytes text;
    uint32_t n = 0;
    if (!once_config_scalar(config, field, node, &text)) return false;
    const bool number = read_number(&text, &n) && n > 0;
    const int64_t per_ms = once__is_text(text, "/s")   ? 1000
                           : once__is_text(text, "/m") ? 60000
                           : once__is_text(text, "/h") ? HOUR_MS
                                                       : 0;
    if (!number || !per_ms)
        return wrong(config, field, node, "a whole number up to 1000000 and a unit, as in '100/s', '30/m' or '10/h'");
    *rate = (once_rate){n, per_ms};
    return true;
}
