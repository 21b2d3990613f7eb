/* A file system for SQLite in memory, with faults: it loses unsynced writes when the power is cut, tears writes, and
 * makes the n-th call fail.
 *
 * Name it in once_store_options.sqlite_vfs. One process, one thread; several connections may be open.
 *
 * A power cut: test_vfs_fail(TEST_VFS_CUT, n) freezes the world at the n-th call (everything fails from then on); the
 * test closes its handles; test_vfs_power_cut(seed) then decides what is on the disk. */
#ifndef ONCE_TESTS_VFS_H
#define ONCE_TESTS_VFS_H

#include <stdbool.h>
#include <stdint.h>

#define TEST_VFS_NAME "once-test"

typedef enum test_vfs_fault {
    TEST_VFS_NONE,
    TEST_VFS_IOERR, /* one call fails with an I/O error */
    TEST_VFS_SHORT, /* one write writes only half and fails; other calls fail as with IOERR */
    TEST_VFS_NOMEM, /* one call fails for want of memory */
    TEST_VFS_FULL,  /* writes fail with "disk full" from that call on, until test_vfs_fail is called again */
    TEST_VFS_QUOTA, /* the same as an error of the disk, with EDQUOT: what SQLite makes of a quota */
    TEST_VFS_CUT    /* every call fails from that call on, until test_vfs_power_cut */
} test_vfs_fault;

void test_vfs_register(void);
void test_vfs_reset(void); /* no files, no faults; all handles must be closed */

/* The n-th call from now on (1: the next one) meets the fault. Counted: open, read, write, truncate, sync, delete. */
void test_vfs_fail(test_vfs_fault fault, long n);
bool test_vfs_hit(void);   /* the fault has happened */
long test_vfs_calls(void); /* since test_vfs_fail or test_vfs_reset */

/* Seed 0: all that was not synced is lost. 1: nothing is lost. Others: each unsynced write is kept, lost or torn. */
void test_vfs_power_cut(uint64_t seed);

#endif
