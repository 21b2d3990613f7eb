/* Reads `store`, `store_id` and `idempotency_salt`. */
#include <assert.h>
#include <string.h>

#include "runtime/config_internal.h"
#include "store/store.h"

#include "base/banned.h"

static const char *scheme_name(void *user, size_t i)
{
    (void)user;
    return once__store_scheme(i);
}

static bool is_documented(once_bytes name)
{
    for (size_t i = 0; once__store_scheme(i); i++)
        if (once__is_text(name, once__store_scheme(i))) return true;
    return false;
}

static bool check_store(once_config *config, int line, once_bytes url, size_t colon)
{
    assert(colon < url.len && url.data[colon] == ':');
    once_bytes name = {url.data, colon}, rest = {url.data + colon + 1, url.len - colon - 1};
    char kinds[ONCE_STORE_KINDS];
    if (!is_documented(name)) {
        const char *near = once_config_nearest(name, scheme_name, NULL);
        if (near)
            once_config_wrong(config, ONCE_E_CONFIG, line, "unknown store '%s:'; did you mean '%s:'?",
                              once_config_show(name).text, near);
        else
            once_config_wrong(config, ONCE_E_CONFIG, line, "unknown store '%s:'; write %s", once_config_show(name).text,
                              once__store_kinds(kinds));
        return false;
    }
    const once_store_driver *driver = once__store_find(name.data, name.len);
    if (!driver) {
        once_config_wrong(config, ONCE_E_UNSUPPORTED, line, "'%s:' stores are not in this build; write %s",
                          once_config_show(name).text, once__store_kinds(kinds));
        return false;
    }
    if (driver->url && rest.len > 0) {
        once_config_wrong(config, ONCE_E_CONFIG, line, "'%s:' takes nothing after the colon; write 'store: %s'",
                          driver->scheme, driver->scheme);
        return false;
    }
    if (driver->bits & ONCE_DRIVER_FILE && (rest.len == 0 || rest.data[0] == ':')) {
        once_config_wrong(config, ONCE_E_CONFIG, line, "'%s' names no file; write 'store: %s:payments.db', or memory",
                          once_config_show(url).text, driver->scheme);
        return false;
    }
    return true;
}

bool once__read_store(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_bytes url;
    if (!once_config_scalar(config, field, node, &url)) return false;
    const once_store_driver *named = url.len > 0 ? once__store_find(url.data, url.len) : NULL;
    if (named && named->url) url = (once_bytes){named->url, strlen(named->url)}; /* "memory" without a colon */
    const char *colon = url.len > 0 ? memchr(url.data, ':', url.len) : NULL;
    if (!colon && (memchr(url.data, '@', url.len) || memchr(url.data, '=', url.len))) { /* may contain a password */
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'store' must be a URL; write 'store: postgres://USER@HOST:PORT/DATABASE'");
        return false;
    }
    if (!colon) {
        once_config_shown shown = once_config_show(url);
        once_config_wrong(config, ONCE_E_CONFIG, node->line,
                          "'store' must be a URL, not '%s'; write 'store: sqlite:%s'", shown.text,
                          url.len > 0 && !named ? shown.text : "payments.db");
        return false;
    }
    if (!check_store(config, node->line, url, (size_t)(colon - url.data))) return false;
    once__config_put(field, out, &url, sizeof url);
    return true;
}

/* Only a reference is accepted. Anything else may be the salt itself, so the error does not show it. */
bool once__read_salt(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_config_pipeline *pipeline = out;
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    pipeline->spec.salt = text;
    pipeline->spec.salt_line = node->line;
    if (once_is_reference(text)) return once__config_reference(config, "'idempotency_salt'", node);
    once_config_wrong(
        config, ONCE_E_CONFIG, node->line,
        "'idempotency_salt' must not be in the file itself; write env:NAME or file:PATH, and store it like any secret");
    return false;
}

bool once__read_store_id(once_config *config, const once_config_field *field, const once_node *node, void *out)
{
    once_config_pipeline *pipeline = out;
    once_bytes text;
    if (!once_config_scalar(config, field, node, &text)) return false;
    size_t digits = 0;
    while (digits < text.len && memchr("0123456789abcdef", text.data[digits], 16)) digits++;
    pipeline->spec.store_id = text;
    if (text.len == ONCE_STORE_ID - 1 && digits == text.len) return true;
    once_config_wrong(config, ONCE_E_CONFIG, node->line,
                      "'store_id' must be %d hex digits, as 'once check' prints them", ONCE_STORE_ID - 1);
    return false;
}
