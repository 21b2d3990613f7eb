/* For `once check`: files that other users can change or read, and message text in the arguments of commands. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/runtime.h"

#include "base/banned.h"

typedef struct exposure {
    once_finding *report;
    void *user;
} exposure;

static void warn(const exposure *x, const char *topic, const char *path, mode_t mode, const char *what)
{
    assert(topic[0] && what[0]);
    char text[700];
    (void)snprintf(text, sizeof text, "'%.300s' (mode %04o) %s", path, (unsigned)(mode & 07777), what);
    x->report(x->user, topic, text, true);
}

/* In a folder that others may write to, they can replace every file, unless the sticky bit is set. */
static void look_at_folder(const exposure *x, const char *topic, const char *path)
{
    assert(path[0]);
    const char *slash = strrchr(path, '/');
    char *folder = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    struct stat st;
    if (folder && stat(folder, &st) == 0 && (st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
        warn(x, topic, folder, st.st_mode, "is a folder in which every user may replace files; run chmod o-w on it");
    free(folder);
}

static void look_at_pipeline(const exposure *x, const char *path, bool secret)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return;
    if (st.st_uid != geteuid() && st.st_uid != 0)
        warn(x, "pipeline", path, st.st_mode, "belongs to another user, who can decide what runs here");
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        warn(x, "pipeline", path, st.st_mode,
             "can be changed by other users, who can then decide what runs here; run chmod go-w on it");
    if (secret && (st.st_mode & (S_IRGRP | S_IROTH)))
        warn(x, "pipeline", path, st.st_mode,
             "can be read by other users and contains a password; run chmod go-r on it, or write a reference: env:NAME "
             "or file:PATH");
    look_at_folder(x, "pipeline", path);
}

static void look_at_secret(const exposure *x, once_bytes reference)
{
    struct stat st;
    if (reference.len <= 5 || memcmp(reference.data, "file:", 5) != 0) return;
    char *path = strndup(reference.data + 5, reference.len - 5);
    if (path && stat(path, &st) == 0) {
        if (st.st_mode & (S_IRGRP | S_IROTH))
            warn(x, "secret", path, st.st_mode, "can be read by other users; run chmod go-r on it");
        if (st.st_mode & (S_IWGRP | S_IWOTH))
            warn(x, "secret", path, st.st_mode, "can be changed by other users; run chmod go-w on it");
        look_at_folder(x, "secret", path);
    }
    free(path);
}

/* The file of a store contains bodies and results. We create it for its owner alone; one that existed before may have
 * any mode. */
static void look_at_store(const exposure *x, const char *url)
{
    struct stat st;
    const char *path = strchr(url, ':') + 1;
    if (!(once__store_driver_bits(once_bytes_of(url)) & ONCE_DRIVER_FILE) || stat(path, &st) != 0) return;
    if (st.st_mode & (S_IRGRP | S_IROTH | S_IWGRP | S_IWOTH))
        warn(x, "store", path, st.st_mode,
             "can be read or changed by other users and contains message bodies; run chmod go-rw on it");
}

/* "password=file:PATH" of a URL. */
static void look_at_url(const exposure *x, const char *url)
{
    const char *at = strstr(url, "password=file:");
    if (at) look_at_secret(x, (once_bytes){at + 9, strcspn(at + 9, "&")});
}

static void look_at_text(void *user, once_bytes text, bool url)
{
    (void)url; /* only references lead to files */
    look_at_secret(user, text);
}

typedef struct warning {
    const exposure *x;
    const char *topic;
} warning;

static void warn_of(void *user, const char *text)
{
    const warning *w = user;
    w->x->report(w->x->user, w->topic, text, true);
}

static void look_at_handler(exposure *x, const once_handler_spec *h)
{
    char topic[120];
    const once_bytes name = h->type.len ? h->type : ONCE_BYTES("(all)");
    (void)snprintf(topic, sizeof topic, "handler %.*s", name.len < 80 ? (int)name.len : 80, name.data);
    once_effect_secrets(h, look_at_text, x);
    once_effect_exposed(h, warn_of, &(warning){x, topic});
}

void once__find_exposure(const once_pipeline *pipeline, once_finding *report, void *user)
{
    exposure x = {report, user};
    const once_spec *spec = pipeline->spec;
    char *path = strndup(spec->file.data, spec->file.len);
    if (path) look_at_pipeline(&x, path, once__file_has_password(pipeline));
    free(path);
    look_at_secret(&x, spec->salt);
    look_at_url(&x, pipeline->store_url);
    look_at_store(&x, pipeline->store_url);
    once_source_secrets(&spec->source, look_at_text, &x);
    once_source_exposed(&spec->source, warn_of, &(warning){&x, "source"});
    for (size_t i = 0; i < spec->n_handlers; i++) look_at_handler(&x, &spec->handlers[i]);
}
