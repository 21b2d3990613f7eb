/* Files are kept twice: as programs see them, and as the disk has them; between the two a list of unsynced writes. */
#include "vfs.h"

#include <assert.h>
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES = 8, SHM_LOCKS = 8, SHM_REGIONS = 64, SECTOR = 512 };

typedef struct image {
    unsigned char *data;
    size_t len, capacity;
} image;

typedef struct change {
    size_t at, len;
    unsigned char *data; /* NULL: a truncation to `at` */
} change;

typedef struct file {
    bool used, on_disk; /* on_disk: its name would survive */
    char name[200];
    image now, disk;
    change *changes;
    size_t n, capacity;
    int shared, reserved, exclusive; /* how many handles hold which lock */
    void *regions[SHM_REGIONS];
    int region_size;
    int shm[SHM_LOCKS]; /* > 0: so many readers; -1: a writer */
} file;

typedef struct handle {
    sqlite3_file base;
    file *file;
    char name[200];
    bool temporary;
    int last_errno; /* of a write that failed */
    int lock;
    unsigned shm_shared, shm_exclusive;
} handle;

static struct {
    file files[FILES];
    test_vfs_fault fault;
    long calls, fail_at;
    bool hit, frozen;
} world;

/* ---- faults ---- */

/* What this call meets; `writes` says that it needs space. */
static int meet(bool writes, int code, bool *half)
{
    world.calls++;
    if (world.frozen) return code;
    if (world.fault == TEST_VFS_NONE || world.calls < world.fail_at) return SQLITE_OK;
    switch (world.fault) {
    case TEST_VFS_FULL:
    case TEST_VFS_QUOTA:
        if (!writes) return SQLITE_OK;
        world.hit = true;
        return world.fault == TEST_VFS_FULL ? SQLITE_FULL : code;
    case TEST_VFS_CUT: world.hit = world.frozen = true; return code;
    case TEST_VFS_SHORT:
        if (half) *half = true;
        break;
    default: break;
    }
    if (world.hit) return SQLITE_OK;
    world.hit = true;
    return world.fault == TEST_VFS_NOMEM ? SQLITE_IOERR_NOMEM : code;
}

void test_vfs_fail(test_vfs_fault fault, long n)
{
    world.fault = fault;
    world.fail_at = n;
    world.calls = 0;
    world.hit = false;
}

bool test_vfs_hit(void) { return world.hit; }
long test_vfs_calls(void) { return world.calls; }

/* ---- images ---- */

static void image_write(image *to, size_t at, const unsigned char *data, size_t len)
{
    if (at + len > to->capacity) {
        size_t more = to->capacity ? to->capacity : 4096;
        while (more < at + len) more *= 2;
        to->data = realloc(to->data, more);
        assert(to->data);
        to->capacity = more;
    }
    if (at > to->len) memset(to->data + to->len, 0, at - to->len);
    memcpy(to->data + at, data, len);
    if (at + len > to->len) to->len = at + len;
}

static void image_truncate(image *to, size_t len)
{
    if (len < to->len) to->len = len;
}

static void changes_clear(file *f)
{
    for (size_t i = 0; i < f->n; i++) free(f->changes[i].data);
    f->n = 0;
}

static void changes_add(file *f, change c)
{
    if (f->n == f->capacity) {
        f->capacity = f->capacity ? f->capacity * 2 : 64;
        f->changes = realloc(f->changes, f->capacity * sizeof *f->changes);
        assert(f->changes);
    }
    f->changes[f->n++] = c;
}

static void change_apply(image *to, const change *c, size_t len)
{
    if (!c->data) image_truncate(to, c->at);
    else if (len) image_write(to, c->at, c->data, len);
}

static void shm_drop(file *f)
{
    for (int i = 0; i < SHM_REGIONS; i++) {
        free(f->regions[i]);
        f->regions[i] = NULL;
    }
    memset(f->shm, 0, sizeof f->shm);
}

static void file_drop(file *f)
{
    changes_clear(f);
    shm_drop(f);
    free(f->changes);
    free(f->now.data);
    free(f->disk.data);
    *f = (file){0};
}

static file *file_find(const char *name)
{
    for (int i = 0; i < FILES; i++)
        if (world.files[i].used && strcmp(world.files[i].name, name) == 0) return &world.files[i];
    return NULL;
}

void test_vfs_reset(void)
{
    for (int i = 0; i < FILES; i++) file_drop(&world.files[i]);
    memset(&world, 0, sizeof world);
}

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

void test_vfs_power_cut(uint64_t seed)
{
    uint64_t state = seed;
    for (int i = 0; i < FILES; i++) {
        file *f = &world.files[i];
        if (!f->used) continue;
        for (size_t c = 0; c < f->n; c++) {
            const uint64_t dice = seed < 2 ? seed : next(&state) % 3;
            size_t len = dice == 0 ? 0 : f->changes[c].len;
            if (dice == 2 && len > SECTOR) len = (size_t)(next(&state) % (len / SECTOR)) * SECTOR;
            if (dice || f->changes[c].data) change_apply(&f->disk, &f->changes[c], len);
        }
        changes_clear(f);
        shm_drop(f);
        f->shared = f->reserved = f->exclusive = 0;
        if (!f->on_disk) {
            file_drop(f);
            continue;
        }
        f->now.len = 0;
        if (f->disk.len) image_write(&f->now, 0, f->disk.data, f->disk.len);
    }
    world.fault = TEST_VFS_NONE;
    world.frozen = false;
}

/* ---- SQLite's file methods ---- */

static int vfs_close(sqlite3_file *base)
{
    handle *h = (handle *)base;
    if (h->temporary && h->file) file_drop(h->file);
    h->file = NULL;
    return SQLITE_OK;
}

static int vfs_read(sqlite3_file *base, void *out, int amount, sqlite3_int64 at)
{
    const image *now = &((handle *)base)->file->now;
    const int rc = meet(false, SQLITE_IOERR_READ, NULL);
    if (rc != SQLITE_OK) return rc;
    const size_t len = (size_t)amount, from = (size_t)at;
    const size_t there = from < now->len ? (now->len - from < len ? now->len - from : len) : 0;
    if (there) memcpy(out, now->data + from, there);
    memset((char *)out + there, 0, len - there);
    return there == len ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

static int vfs_write(sqlite3_file *base, const void *data, int amount, sqlite3_int64 at)
{
    file *f = ((handle *)base)->file;
    bool half = false;
    const int rc = meet(true, SQLITE_IOERR_WRITE, &half);
    size_t len = (size_t)amount;
    if (rc != SQLITE_OK) {
        errno = ((handle *)base)->last_errno = rc == SQLITE_FULL ? 0 : world.fault == TEST_VFS_QUOTA ? EDQUOT : EIO;
        if (!half) return rc;
        len /= 2;
    }
    if (len) {
        change c = {.at = (size_t)at, .len = len, .data = malloc(len)};
        assert(c.data);
        memcpy(c.data, data, len);
        changes_add(f, c);
        image_write(&f->now, c.at, c.data, len);
    }
    return rc;
}

static int vfs_truncate(sqlite3_file *base, sqlite3_int64 len)
{
    file *f = ((handle *)base)->file;
    const int rc = meet(false, SQLITE_IOERR_TRUNCATE, NULL);
    if (rc != SQLITE_OK) return rc;
    image_truncate(&f->now, (size_t)len);
    changes_add(f, (change){.at = (size_t)len});
    return SQLITE_OK;
}

static int vfs_sync(sqlite3_file *base, int flags)
{
    (void)flags;
    file *f = ((handle *)base)->file;
    const int rc = meet(false, SQLITE_IOERR_FSYNC, NULL);
    if (rc != SQLITE_OK) return rc;
    for (size_t i = 0; i < f->n; i++) change_apply(&f->disk, &f->changes[i], f->changes[i].len);
    changes_clear(f);
    f->on_disk = true;
    return SQLITE_OK;
}

static int vfs_size(sqlite3_file *base, sqlite3_int64 *out)
{
    *out = (sqlite3_int64)((handle *)base)->file->now.len;
    return SQLITE_OK;
}

static int vfs_lock(sqlite3_file *base, int level)
{
    handle *h = (handle *)base;
    file *f = h->file;
    if (h->lock >= level) return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        if (f->exclusive) return SQLITE_BUSY;
        f->shared++;
    } else if (level == SQLITE_LOCK_RESERVED) {
        if (f->reserved) return SQLITE_BUSY;
        f->reserved++;
    } else {
        if (h->lock < SQLITE_LOCK_RESERVED) {
            if (f->reserved) return SQLITE_BUSY;
            f->reserved++;
            h->lock = SQLITE_LOCK_RESERVED;
        }
        if (f->shared > 1) return SQLITE_BUSY;
        f->exclusive++;
        level = SQLITE_LOCK_EXCLUSIVE;
    }
    h->lock = level;
    return SQLITE_OK;
}

static int vfs_unlock(sqlite3_file *base, int level)
{
    handle *h = (handle *)base;
    file *f = h->file;
    if (h->lock == SQLITE_LOCK_EXCLUSIVE && level < SQLITE_LOCK_EXCLUSIVE && f->exclusive) f->exclusive--;
    if (h->lock >= SQLITE_LOCK_RESERVED && level < SQLITE_LOCK_RESERVED && f->reserved) f->reserved--;
    if (h->lock >= SQLITE_LOCK_SHARED && level < SQLITE_LOCK_SHARED && f->shared) f->shared--;
    if (level < h->lock) h->lock = level;
    return SQLITE_OK;
}

static int vfs_reserved(sqlite3_file *base, int *out)
{
    *out = ((handle *)base)->file->reserved > 0;
    return SQLITE_OK;
}

static int vfs_control(sqlite3_file *base, int op, void *arg)
{
    if (op != SQLITE_FCNTL_LAST_ERRNO) return SQLITE_NOTFOUND;
    *(int *)arg = ((handle *)base)->last_errno;
    return SQLITE_OK;
}

static int vfs_sector(sqlite3_file *base)
{
    (void)base;
    return SECTOR;
}

static int vfs_traits(sqlite3_file *base)
{
    (void)base;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE; /* a torn write harms nothing outside of itself */
}

static int vfs_shm_map(sqlite3_file *base, int region, int size, int extend, void volatile **out)
{
    file *f = ((handle *)base)->file;
    if (region >= SHM_REGIONS) return SQLITE_IOERR_SHMSIZE;
    if (!f->regions[region] && extend) f->regions[region] = calloc(1, (size_t)size);
    *out = f->regions[region];
    return SQLITE_OK;
}

static int vfs_shm_lock(sqlite3_file *base, int first, int n, int flags)
{
    handle *h = (handle *)base;
    int *locks = h->file->shm;
    const bool lock = flags & SQLITE_SHM_LOCK, shared = flags & SQLITE_SHM_SHARED;
    for (int i = first; lock && i < first + n; i++) {
        const bool mine = h->shm_shared >> i & 1;
        if (shared ? locks[i] < 0 && !mine : locks[i] != 0) return SQLITE_BUSY;
    }
    for (int i = first; i < first + n; i++) {
        unsigned *mask = shared ? &h->shm_shared : &h->shm_exclusive;
        const bool held = *mask >> i & 1;
        if (lock == held) continue;
        *mask ^= 1u << i;
        if (shared) locks[i] += lock ? 1 : -1;
        else locks[i] = lock ? -1 : 0;
    }
    return SQLITE_OK;
}

static void vfs_shm_barrier(sqlite3_file *base) { (void)base; }

static int vfs_shm_unmap(sqlite3_file *base, int drop)
{
    if (drop && ((handle *)base)->file) shm_drop(((handle *)base)->file);
    return SQLITE_OK;
}

static const sqlite3_io_methods methods = {
    .iVersion = 2,
    .xClose = vfs_close,
    .xRead = vfs_read,
    .xWrite = vfs_write,
    .xTruncate = vfs_truncate,
    .xSync = vfs_sync,
    .xFileSize = vfs_size,
    .xLock = vfs_lock,
    .xUnlock = vfs_unlock,
    .xCheckReservedLock = vfs_reserved,
    .xFileControl = vfs_control,
    .xSectorSize = vfs_sector,
    .xDeviceCharacteristics = vfs_traits,
    .xShmMap = vfs_shm_map,
    .xShmLock = vfs_shm_lock,
    .xShmBarrier = vfs_shm_barrier,
    .xShmUnmap = vfs_shm_unmap,
};

/* ---- SQLite's file system methods ---- */

static int vfs_open(sqlite3_vfs *vfs, sqlite3_filename name, sqlite3_file *base, int flags, int *out_flags)
{
    (void)vfs;
    static unsigned temporaries;
    handle *h = (handle *)base;
    *h = (handle){0};
    const int rc = meet(false, SQLITE_CANTOPEN, NULL);
    if (rc != SQLITE_OK) return rc == SQLITE_IOERR_NOMEM ? SQLITE_NOMEM : rc;
    if (name) snprintf(h->name, sizeof h->name, "%s", name);
    else snprintf(h->name, sizeof h->name, "temporary-%u", ++temporaries);
    h->temporary = name == NULL;
    h->file = file_find(h->name);
    if (!h->file) {
        if (!(flags & SQLITE_OPEN_CREATE)) return SQLITE_CANTOPEN;
        for (int i = 0; i < FILES && !h->file; i++)
            if (!world.files[i].used) h->file = &world.files[i];
        assert(h->file);
        h->file->used = true;
        snprintf(h->file->name, sizeof h->file->name, "%s", h->name);
    }
    h->base.pMethods = &methods;
    if (out_flags) *out_flags = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int sync)
{
    (void)vfs, (void)sync;
    const int rc = meet(false, SQLITE_IOERR_DELETE, NULL);
    if (rc != SQLITE_OK) return rc;
    file *f = file_find(name);
    if (!f) return SQLITE_IOERR_DELETE_NOENT;
    file_drop(f);
    return SQLITE_OK;
}

static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *out)
{
    (void)vfs, (void)flags;
    const file *f = file_find(name);
    *out = f && (f->now.len || flags != SQLITE_ACCESS_EXISTS);
    return SQLITE_OK;
}

static int vfs_full_path(sqlite3_vfs *vfs, const char *name, int len, char *out)
{
    (void)vfs;
    snprintf(out, (size_t)len, "%s", name);
    return SQLITE_OK;
}

static int vfs_randomness(sqlite3_vfs *vfs, int len, char *out)
{
    (void)vfs;
    uint64_t state = 1;
    for (int i = 0; i < len; i++) out[i] = (char)next(&state);
    return len;
}

static int vfs_sleep(sqlite3_vfs *vfs, int us)
{
    (void)vfs;
    return us;
}

static int vfs_last_error(sqlite3_vfs *vfs, int len, char *out)
{
    (void)vfs, (void)len, (void)out;
    return errno;
}

static int vfs_time(sqlite3_vfs *vfs, double *out)
{
    (void)vfs;
    *out = 2460000.5;
    return SQLITE_OK;
}

void test_vfs_register(void)
{
    static sqlite3_vfs vfs = {
        .iVersion = 1,
        .szOsFile = sizeof(handle),
        .mxPathname = 190,
        .zName = TEST_VFS_NAME,
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_full_path,
        .xRandomness = vfs_randomness,
        .xSleep = vfs_sleep,
        .xCurrentTime = vfs_time,
        .xGetLastError = vfs_last_error,
    };
    sqlite3_vfs_register(&vfs, 0);
    test_vfs_reset();
}
