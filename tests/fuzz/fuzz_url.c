/* Any bytes as the URL of a store. It is read, or refused with words; and whoever reads the words, or the URL as it is
 * shown, does not learn the password: lines are the scheme, the user, the password, and what comes behind the '@'. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "store/store.h"

#ifdef ONCE_WITH_POSTGRES
#include "db/postgres/postgres.h"
#endif
#ifdef ONCE_WITH_REDIS
#include "store/redis/url.h"
#endif

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) abort();                                                                                     \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define OWN "Zq7#" /* how each password begins, so that none stands in a text of ours by chance */

/* --- reading --- */

static void read_redis(const char *url, const char *password)
{
#ifdef ONCE_WITH_REDIS
    once_redis_url read;
    once_error err = {0};
    const char *colon = strchr(url, ':');
    if (!colon || strstr(url, "file:")) return; /* no files of this machine */
    if (once__redis_url_read(colon + 1, url[5] == 's', &read, &err) == ONCE_OK) {
        CHECK(read.n_nodes > 0 && read.n_nodes <= ONCE_REDIS_HOSTS && read.name[0]);
        for (size_t i = 0; i < read.n_nodes; i++)
            CHECK(read.nodes[i].host[0] && read.nodes[i].port > 0 && read.nodes[i].port < 65536);
    } else {
        CHECK(err.text[0] && (!password || !strstr(err.text, password)));
    }
#else
    (void)url, (void)password;
#endif
}

static void read_postgres(const char *url, const char *password)
{
#ifdef ONCE_WITH_POSTGRES
    once_pg *pg = NULL;
    once_error err = {0};
    const char *colon = strchr(url, ':');
    if (!colon) return;
    if (once__pg_new(colon + 1, once_env_real(), (once_bytes){0}, (once_cancel){0}, &pg, &err) == ONCE_OK)
        once__pg_free(pg);
    else CHECK(err.text[0] && (!password || !strstr(err.text, password)));
#else
    (void)url, (void)password;
#endif
}

static void read_it(const char *url, const char *password)
{
    if (strncmp(url, "redis:", 6) == 0 || strncmp(url, "rediss:", 7) == 0) read_redis(url, password);
    if (strncmp(url, "postgres:", 9) == 0) read_postgres(url, password);
}

/* --- showing --- */

static void show(const char *url, const char *password)
{
    once_buf shown;
    once_buf_init(&shown, 1 << 20);
    CHECK(once__store_show(url, &shown) && shown.data);
    CHECK(!password || !strstr(shown.data, password));
    once_buf_release(&shown);
}

/* Where nothing else of the URL holds it, or a part of it that looks like it. */
static bool is_only_there(const char *url, const char *password)
{
    const char *first = strstr(url, password);
    return !strchr(password, '@') && first && !strstr(first + 1, password);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const schemes[] = {"redis", "rediss", "postgres"};
    char text[512], url[600], password[520], *parts[4] = {text, text, text, text};
    if (size == 0 || size >= sizeof text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    show(text, NULL); /* as it is */
    read_it(text, NULL);
    for (size_t i = 1; i < 4; i++) {
        char *end = strchr(parts[i - 1], '\n');
        if (!end) return 0;
        *end = 0;
        parts[i] = end + 1;
    }
    snprintf(password, sizeof password, OWN "%s", parts[2]);
    snprintf(url, sizeof url, "%s://%s:%s@%s", schemes[(unsigned char)parts[0][0] % 3], parts[1], password, parts[3]);
    if (strpbrk(parts[1], ":/?@") || !is_only_there(url, password)) return 0;
    show(url, password);
    read_it(url, password);
    return 0;
}
