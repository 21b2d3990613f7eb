/* Modules (base/module.h), linked in or loaded. A file is checked before dlopen, which trusts what it reads. */
#include "base/module.h"

#include <assert.h>
#include <string.h>

#ifdef ONCE_MODULES
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/errno_text.h"
#include "base/log.h"
#include "module_folders.h"
#endif

#include "base/banned.h"

static bool find_part(const once_module *module, const char *kind, const char *name, const void **out)
{
    assert(module && kind && name && out);
    for (const once_module_part *part = module->parts; part && part->kind; part++)
        if (strcmp(part->kind, kind) == 0 && strcmp(part->name, name) == 0) {
            *out = part->is;
            return true;
        }
    return false;
}

#ifndef ONCE_MODULES

#ifdef ONCE_WITH_POSTGRES
extern const once_module once__module_postgres;
#endif
#ifdef ONCE_WITH_REDIS
extern const once_module once__module_redis;
#endif
#ifdef ONCE_WITH_KAFKA
extern const once_module once__module_kafka;
#endif
#ifdef ONCE_WITH_SQS
extern const once_module once__module_sqs;
#endif
#ifdef ONCE_WITH_HTTP
extern const once_module once__module_http;
#endif
#ifdef ONCE_WITH_RABBITMQ
extern const once_module once__module_rabbitmq;
#endif

static const struct {
    const char *name;
    const once_module *module;
} linked[] = {
#ifdef ONCE_WITH_POSTGRES
    {"postgres", &once__module_postgres},
#endif
#ifdef ONCE_WITH_REDIS
    {"redis", &once__module_redis},
#endif
#ifdef ONCE_WITH_KAFKA
    {"kafka", &once__module_kafka},
#endif
#ifdef ONCE_WITH_SQS
    {"sqs", &once__module_sqs},
#endif
#ifdef ONCE_WITH_HTTP
    {"http", &once__module_http},
#endif
#ifdef ONCE_WITH_RABBITMQ
    {"rabbitmq", &once__module_rabbitmq},
#endif
    {NULL, NULL},
};

int once_module_part_get(const char *module, const char *kind, const char *name, const void **out, once_error *err)
{
    for (size_t i = 0; linked[i].name; i++)
        if (strcmp(linked[i].name, module) == 0 && find_part(linked[i].module, kind, name, out)) return ONCE_OK;
    return once_fail(err, ONCE_E_BUG, "there is no module '%s' with a %s '%s'", module, kind, name);
}

bool once_module_where(const char *module, char path[PATH_MAX], bool *there)
{
    (void)module, (void)path, (void)there;
    return false;
}

#else

#define MODULES_MAX 16

typedef struct loaded {
    char name[32];
    const once_module *module;
} loaded;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static loaded modules[MODULES_MAX]; /* under `lock` */
static size_t n_modules;

/* --- where they are --- */

/* The shared object that this code is in; "": the program itself. */
static const char *own_name(void)
{
    Dl_info info;
    struct link_map *map = NULL;
    static const char here; /* its address, because C does not allow that of a function here */
    return dladdr1(&here, &info, (void **)&map, RTLD_DL_LINKMAP) != 0 && map ? map->l_name : NULL;
}

/* Whether it is in its build folder. argv[0] does not count: the caller chooses it. */
static bool is_in_build(void)
{
    char path[PATH_MAX];
    const char *own = own_name();
    if (!own || getauxval(AT_SECURE)) return false;
    const ssize_t len = *own ? -1 : readlink("/proc/self/exe", path, sizeof path - 1);
    if (len > 0) path[len] = '\0';
    if (*own ? !realpath(own, path) : len <= 0) return false;
    char *slash = strrchr(path, '/');
    if (!slash) return false;
    *slash = '\0';
    return strcmp(path, ONCE_BUILD_FOLDER) == 0;
}

static const char *folder(void)
{
    const char *said = secure_getenv("ONCE_MODULES");
    if (said && *said) return said;
    return is_in_build() ? ONCE_BUILD_MODULES : ONCE_INSTALLED_MODULES;
}

bool once_module_where(const char *module, char path[PATH_MAX], bool *there)
{
    const int len = snprintf(path, PATH_MAX, "%s/%s.so", folder(), module);
    *there = len > 0 && len < PATH_MAX && path[0] == '/' && access(path, F_OK) == 0;
    return true;
}

/* --- loading --- */

/* A module finds our functions in the global scope of the linker. A libonce.so that was itself loaded with RTLD_LOCAL
 * (by another language) is not in it yet. */
static void show_own_functions(void)
{
    const char *own = own_name();
    if (own && *own) (void)dlopen(own, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL); /* until the process ends */
}

static bool lies_inside(uint64_t at, uint64_t n, uint64_t each, uint64_t size)
{
    return at <= size && n * each <= size - at; /* n and each have 16 bits, or n is 1 */
}

static bool has_its_segments(int fd, const ElfW(Ehdr) * head, uint64_t size)
{
    for (uint64_t i = 0; i < head->e_phnum; i++) {
        ElfW(Phdr) part;
        const uint64_t at = head->e_phoff + i * sizeof part;
        if (pread(fd, &part, sizeof part, (off_t)at) != (ssize_t)sizeof part) return false;
        if (part.p_type == PT_LOAD && !lies_inside(part.p_offset, 1, part.p_filesz, size)) return false;
    }
    return true;
}

static bool is_whole(int fd)
{
    ElfW(Ehdr) head;
    struct stat is;
    if (fstat(fd, &is) != 0 || !S_ISREG(is.st_mode)) return false;
    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
        return false;
    if (head.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) || head.e_type != ET_DYN)
        return false;
    const uint64_t size = (uint64_t)is.st_size;
    return head.e_phnum && head.e_phentsize == sizeof(ElfW(Phdr)) &&
           lies_inside(head.e_phoff, head.e_phnum, head.e_phentsize, size) &&
           lies_inside(head.e_shoff, head.e_shnum, head.e_shentsize, size) && has_its_segments(fd, &head, size);
}

/* dlopen maps as much as the file claims to have; reading behind the end of a truncated one is a SIGBUS. */
static int check_whole(const char *path, once_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return once_fail(err, ONCE_E_CONFIG, "the module '%s' cannot be loaded: %s", path, once_errno_text(errno));
    const bool whole = is_whole(fd);
    close(fd);
    if (whole) return ONCE_OK;
    return once_fail(err, ONCE_E_CONFIG,
                     "the module '%s' cannot be loaded: it is truncated or not a shared object; install it again",
                     path);
}

static int check_fit(const char *path, const once_module *module, once_error *err)
{
    if (module->interface != ONCE_MODULE_INTERFACE)
        return once_fail(err, ONCE_E_CONFIG,
                         "module '%s' has interface %u, and this program has interface %u; install both from one build",
                         path, (unsigned)module->interface, (unsigned)ONCE_MODULE_INTERFACE);
    if (strcmp(module->version, ONCE_BUILD_VERSION) != 0)
        return once_fail(err, ONCE_E_CONFIG,
                         "module '%s' is of version %.40s, and this program of version %s; install both from one build",
                         path, module->version, ONCE_BUILD_VERSION);
    return ONCE_OK;
}

static int load(const char *name, const once_module **out, once_error *err)
{
    char path[PATH_MAX];
    bool there;
    (void)once_module_where(name, path, &there);
    if (path[0] != '/')
        return once_fail(err, ONCE_E_CONFIG, "ONCE_MODULES must be an absolute path, not '%.200s'", folder());
    if (!there)
        return once_fail(
            err, ONCE_E_CONFIG,
            "'%s' needs the module '%s', which does not exist; install the package that has it, or run 'make install' "
            "where once was built",
            name, path);
    const int whole = check_whole(path, err);
    if (whole != ONCE_OK) return whole;
    show_own_functions();
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed: libraries like OpenSSL cannot be unloaded */
    if (!object) {
        const char *why = dlerror();
        return once_fail(err, ONCE_E_CONFIG,
                         "the module '%s' cannot be loaded: %.300s; install what it needs, and both from one build",
                         path, why ? why : "no reason is known");
    }
    const once_module *module = dlsym(object, ONCE_MODULE_SYMBOL);
    if (!module) return once_fail(err, ONCE_E_CONFIG, "'%s' is not a module of once; install it again", path);
    const int rc = check_fit(path, module, err);
    if (rc != ONCE_OK) return rc;
    once_log(ONCE_LOG_DEBUG, "module_loaded", "module '%s' is loaded", path);
    *out = module;
    return ONCE_OK;
}

static int get(const char *name, const once_module **out, once_error *err)
{
    for (size_t i = 0; i < n_modules; i++)
        if (strcmp(modules[i].name, name) == 0) {
            *out = modules[i].module;
            return ONCE_OK;
        }
    const int rc = load(name, out, err);
    if (rc != ONCE_OK) return rc;
    assert(n_modules < MODULES_MAX && strlen(name) < sizeof modules[0].name);
    loaded *made = &modules[n_modules++];
    (void)snprintf(made->name, sizeof made->name, "%s", name);
    made->module = *out;
    return rc;
}

int once_module_part_get(const char *module, const char *kind, const char *name, const void **out, once_error *err)
{
    const once_module *found = NULL;
    pthread_mutex_lock(&lock);
    const int rc = get(module, &found, err);
    pthread_mutex_unlock(&lock);
    if (rc != ONCE_OK || find_part(found, kind, name, out)) return rc;
    char path[PATH_MAX];
    bool there;
    (void)once_module_where(module, path, &there);
    return once_fail(err, ONCE_E_CONFIG,
                     "'%s' is not the module '%s': it has no %s '%s'; it may be another module under this name; "
                     "install it again",
                     path, module, kind, name);
}

#endif
