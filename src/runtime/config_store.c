/* Readers of what a pipeline file says about its store. */
#include <string.h>

#include "runtime/config_internal.h"
#include "store/store.h"

#include "base/banned.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* All that are documented; which of them are here, the list of stores knows. */
static const char *const schemes[] = {"memory",     "sqlite", "ledger", "postgres",
                                      "postgresql", "redis",  "rediss", "dynamodb"};

static const char *scheme_name(void *user, size_t i)
{
    (void)user;
    return i < COUNT(schemes) ? schemes[i] : NULL;
}

static bool check_store(once_config *config, int line, once_bytes url, size_t colon)
{
    once_bytes name = {url.data, colon}, rest = {url.data + colon + 1, url.len - colon - 1};
    size_t i = 0;
    while (i < COUNT(schemes) && !once__is_text(name, schemes[i])) i++;
    if (i == COUNT(schemes)) {
        const char *near = once_config_nearest(name, scheme_name, NULL);
        if (near)
            once_config_wrong(config, ONCE_E_CONFIG, line, "unknown store '%s:'; did you mean '%s:'?",
                              once_config_show(name).text, near);
        else
            once_config_wrong(config, ONCE_E_CONFIG, line, "unknown store '%s:'; write %s", once_config_show(name).text,
                              once__store_kinds());
        return false;
    }
    if (!once__store_find(name.data, name.len)) {
        once_config_wrong(config, ONCE_E_UNSUPPORTED, line, "'%s:' stores are not in this build; write %s", schemes[i],
                          once__store_kinds());
        return false;
    }
    if (once__is_text(name, "memory") && rest.len > 0) {
        once_config_wrong(config, ONCE_E_CONFIG, line,
                          "'memory:' takes nothing behind the colon; write 'store: memory'");
        return false;
    }
    if (once__is_text(name, "sqlite") && (rest.len == 0 || rest.data[0] == ':')) {
        once_config_wrong(config, ONCE_E_CONFIG, line,
                          "'%s' names no file; write 'store: sqlite:payments.db', or memory",
                          once_config_show(url).text);
        return false;
    }
    return true;
}

bool once__read_store(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes url;
    if (!once_config_scalar(config, field, node, &url)) return false;
    if (once__is_text(url, "memory")) url = ONCE_BYTES("memory:"); /* whose colon YAML takes only in quotes */
    const char *colon = url.len > 0 ? memchr(url.data, ':', url.len) : NULL;
    if (!colon && (memchr(url.data, '@', url.len) || memchr(url.data, '=', url.len))) { /* a password may be in it */
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'store' must be a URL; write 'store: postgres://USER@HOST:PORT/DATABASE'");
        return false;
    }
    if (!colon) {
        once_config_shown shown = once_config_show(url);
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'store' must be a URL, not '%s'; write 'store: sqlite:%s'", shown.text,
                          url.len > 0 && !once__is_text(url, "sqlite") ? shown.text : "payments.db");
        return false;
    }
    if (!check_store(config, node->line, url, (size_t)(colon - url.data))) return false;
    once__config_put(field, out, &url, sizeof url);
    return true;
}

/* Where the salt is to be read from. What stands there instead may be a salt, so that no mistake shows it. */
bool once__read_salt(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once__pipeline *pipeline = out;
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    pipeline->spec.salt = text;
    pipeline->spec.salt_line = node->line;
    if (once_is_reference(text)) return once__config_reference(config, "'idempotency_salt'", node);
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'idempotency_salt' must not stand in the file itself; write env:NAME or file:PATH, and keep it "
                      "where secrets are kept");
    return false;
}

/* As `once check` prints it. */
bool once__read_store_id(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once__pipeline *pipeline = out;
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    size_t digits = 0;
    while (digits < text.len && memchr("0123456789abcdef", text.data[digits], 16)) digits++;
    pipeline->spec.store_id = text;
    if (text.len == ONCE_STORE_ID - 1 && digits == text.len) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line, "'store_id' is %d hex digits, as 'once check' prints them",
                      ONCE_STORE_ID - 1);
    return false;
}
