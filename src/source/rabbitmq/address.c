/* Where the broker is: reads what the pipeline file says, and the values of its references. */
#include <stdio.h>
#include <string.h>

#include "base/no_memory.h"
#include "core/config_values.h"
#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

/* The text of a field, or of its reference, with a NUL behind it. */
static int read_text(rabbitmq_source *r, const once_written *written, once_bytes *out, once_error *err)
{
    once_bytes value;
    const int rc = once_value_read(r->base.spec->file, r->base.env, written, &r->arena, &value, err);
    if (rc != ONCE_OK) return rc;
    return once_arena_copy(&r->arena, value, out) ? ONCE_OK : once_no_memory(err, "for the address of the broker");
}

static int read_url(rabbitmq_source *r, const once_written *written, const char *scheme, once_rabbitmq_url *out,
                    once_error *err)
{
    const once_bytes file = r->base.spec->file;
    once_bytes text;
    const char *why;
    const int rc = read_text(r, written, &text, err);
    if (rc != ONCE_OK) return rc;
    if (!once__rabbitmq_url(text, &r->arena, out, &why)) {
        if (!why) return once_no_memory(err, "for the address of the broker");
    } else {
        why = once__rabbitmq_url_fault(out, scheme);
    }
    if (!why) return ONCE_OK;
    return once_fail(err, ONCE_E_CONFIG, "%.*s:%d: '%.*s' leads to a text that is not a URL: %s", (int)file.len,
                     file.data, written->line, (int)written->name.len, written->name.data, why);
}

static int read_broker(rabbitmq_source *r, once_error *err)
{
    once_rabbitmq_url *url = &r->address.url;
    int rc = read_url(r, &r->rabbitmq->url, "amqp", url, err);
    if (rc == ONCE_OK && r->rabbitmq->password.value.len)
        rc = read_text(r, &r->rabbitmq->password, &url->password, err);
    if (rc != ONCE_OK) return rc;
    r->address.tls = once__is_text(url->scheme, "amqps");
    if (!url->user.data) url->user = ONCE_BYTES("guest");
    if (!url->password.data) url->password = ONCE_BYTES("guest");
    if (url->path.len == 0) url->path = ONCE_BYTES("/");
    if (url->port == 0) url->port = r->address.tls ? 5671 : 5672;
    if (r->rabbitmq->login == ONCE_RABBITMQ_BY_CERTIFICATE && !r->address.tls) /* a reference can lead to any */
        return once_fail(err, ONCE_E_CONFIG, "'login: certificate' is for amqps://; 'url' leads to an amqp:// URL");
    return ONCE_OK;
}

static int read_management(rabbitmq_source *r, once_error *err)
{
    rabbitmq_address *address = &r->address;
    once_rabbitmq_url url;
    if (r->rabbitmq->management.value.len == 0) return ONCE_OK;
    const int rc = read_url(r, &r->rabbitmq->management, "http", &url, err);
    if (rc != ONCE_OK) return rc;
    if (r->rabbitmq->login == ONCE_RABBITMQ_BY_CERTIFICATE && (!url.user.data || !url.password.data))
        return once_fail(
            err, ONCE_E_CONFIG,
            "'management' leads to a URL without a user and a password, which 'login: certificate' has not");
    const bool secure = once__is_text(url.scheme, "https"), brackets = memchr(url.host.data, ':', url.host.len);
    once_buf base;
    once_bytes text;
    once_buf_init(&base, (size_t)1 << 16);
    once_buf_printf(&base, "%s://%s%s%s:%d", secure ? "https" : "http", brackets ? "[" : "", url.host.data,
                    brackets ? "]" : "",
                    url.port ? url.port
                    : secure ? 15671
                             : 15672);
    if (url.path.len) once_buf_printf(&base, "/%s", url.path.data);
    while (base.len && base.data[base.len - 1] == '/') base.len--;
    const bool ok = !base.failed && once_arena_copy(&r->arena, once_buf_bytes(&base), &text);
    once_buf_release(&base);
    if (!ok) return once_no_memory(err, "for the address of the broker");
    address->management = text.data;
    address->management_user = url.user.data ? url.user.data : address->url.user.data;
    address->management_password = url.password.data ? url.password.data : address->url.password.data;
    return ONCE_OK;
}

static bool copy(rabbitmq_source *r, once_bytes from, const char **out)
{
    once_bytes text;
    if (from.len == 0) return true;
    if (!once_arena_copy(&r->arena, from, &text)) return false;
    *out = text.data;
    return true;
}

int once__rabbitmq_address(rabbitmq_source *r, once_error *err)
{
    const once_rabbitmq_tls *tls = &r->rabbitmq->tls;
    if (!copy(r, r->rabbitmq->queue, &r->queue) || !copy(r, tls->ca, &r->address.ca) ||
        !copy(r, tls->certificate, &r->address.certificate) || !copy(r, tls->key, &r->address.key))
        return once_no_memory(err, "for the address of the broker");
    const int rc = read_broker(r, err);
    return rc == ONCE_OK ? read_management(r, err) : rc;
}
