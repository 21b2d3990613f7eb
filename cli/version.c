/* once version: the version, what is built in, and which modules there are. */
#include <string.h>

#include "cli.h"

typedef struct listing {
    bool json, first;
    const char *kind;
    const char *name; /* of the feature whose module is looked for */
    bool in_module;
} listing;

static void show_module(void *user, const char *kind, const char *name, const char *path, bool there)
{
    listing *l = user;
    if (strcmp(kind, l->kind) != 0 || strcmp(name, l->name) != 0) return;
    l->in_module = true;
    once_error why;
    const bool works = once_module_check(kind, name, &why) == ONCE_OK;
    if (l->json) {
        printf(",\"module\":");
        cli_json_cstring(stdout, path);
        printf(",\"there\":%s,\"error\":", there ? "true" : "false");
        if (works) printf("null");
        else cli_json_cstring(stdout, why.text);
    } else if (works) {
        printf("  %-10s module %s\n", "", path);
    } else if (!there && path[0] == '/') {
        printf("  %-10s module %s, not installed\n", "", path);
    } else {
        printf("  %-10s module %s cannot be used: %s\n", "", path, why.text);
    }
}

static void on_feature(void *user, const char *kind, const char *name, const char *summary)
{
    listing *l = user;
    if (strcmp(kind, l->kind) != 0) return;
    if (l->json) {
        printf("%s{\"name\":", l->first ? "" : ",");
        cli_json_cstring(stdout, name);
        printf(",\"summary\":");
        cli_json_cstring(stdout, summary);
    } else {
        printf("  %-10s %s\n", name, summary);
    }
    l->name = name;
    l->in_module = false;
    once_modules(show_module, l);
    if (l->json) printf(l->in_module ? "}" : ",\"module\":null}");
    l->first = false;
}

int cli_version(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{"--json", NULL, "print one JSON object, including the failpoints", &json, NULL},
                                  {0}};
    int status;
    if (cli_parse(argc, argv, options, 0, 0, NULL, &status) < 0) return status;
    static const char *const kinds[] = {"store", "source", "effect", "failpoint"};
    if (json) printf("{\"version\":\"%s\"", once_version());
    else printf("once %s\n", once_version());
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        listing l = {.json = json, .first = true, .kind = kinds[i]};
        if (json) printf(",\"%ss\":[", kinds[i]);
        else if (strcmp(kinds[i], "failpoint") == 0) continue;
        else printf("%ss\n", kinds[i]);
        once_features(on_feature, &l);
        if (json) printf("]");
    }
    if (json) printf("}\n");
    return CLI_OK;
}
