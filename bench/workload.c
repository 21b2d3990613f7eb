#include "workload.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process.h"

#include "base/banned.h"

#define DUPLICATES_PERCENT 20
#define REPEATED_AT_ONCE_PERCENT 5       /* part of those */
#define FIRST_MS UINT64_C(1735689600000) /* 2025-01-01, for ids that carry a time */
#define KEYS_PER_MS 10

/* splitmix64: small, seeded, good enough for ids that need to be spread evenly. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void write_uuid(uint64_t high, uint64_t low, unsigned version, char out[36])
{
    static const char digits[] = "0123456789abcdef";
    high = (high & ~UINT64_C(0xf000)) | (uint64_t)version << 12;
    low = (low & ~(UINT64_C(3) << 62)) | UINT64_C(2) << 62;
    for (int i = 0, at = 0; i < 32; i++) {
        const uint64_t half = i < 16 ? high : low;
        if (i == 8 || i == 12 || i == 16 || i == 20) out[at++] = '-';
        out[at++] = digits[half >> (60 - 4 * (i % 16)) & 15];
    }
}

static void make_payment(const workload *w, uint64_t number, uint64_t *random, payment *out)
{
    const uint64_t a = next_random(random), b = next_random(random), c = next_random(random);
    const uint64_t ms = FIRST_MS + number / KEYS_PER_MS;
    write_uuid(w->uuid7 ? ms << 16 | (a & 0xffff) : a, b, w->uuid7 ? 7 : 4, out->id);
    out->order_id = 1 + (uint32_t)(c % WORKLOAD_ORDERS);
    out->amount = 1 + (int32_t)(c >> 32 & 0xffff);
    if ((c >> 48) % 1000 < w->failing_permille) out->amount = -out->amount;
    out->duplicate = 0;
}

/* Everything in it follows from the payment, so a duplicate is the same text. */
static void write_message(const payment *p, FILE *to)
{
    char text[WORKLOAD_BYTES + 1];
    const int len = snprintf(
        text, sizeof text,
        "{\"payment_id\":\"%.36s\",\"type\":\"payment.received\",\"order_id\":%u,\"amount\":%d,\"currency\":\"EUR\","
        "\"customer\":\"c-%05u\",\"method\":\"card\",\"captured\":true,\"sent_at\":\"2025-01-01T12:%02u:%02u.000Z\","
        "\"reference\":\"invoice 2025/%u\",\"note\":\"",
        p->id, p->order_id, p->amount, p->order_id * 7 % 100000, p->order_id % 60, p->order_id / 60 % 60,
        p->order_id * 31);
    if (len < 0 || len > WORKLOAD_BYTES - 2) bench_die("a message is too long");
    memset(text + len, 'x', (size_t)(WORKLOAD_BYTES - 2 - len));
    memcpy(text + WORKLOAD_BYTES - 2, "\"}\n", 3); /* over the NUL too */
    if (fwrite(text, WORKLOAD_BYTES + 1, 1, to) != 1) bench_die_errno("cannot write the messages");
}

static payment *map(const char *path, int flags, uint64_t *n)
{
    struct stat st;
    const int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0) bench_die_errno("cannot open the payments");
    if ((flags & O_CREAT) && ftruncate(fd, (off_t)(*n * sizeof(payment))) != 0)
        bench_die_errno("cannot make the payments");
    if (fstat(fd, &st) != 0) bench_die_errno("cannot stat the payments");
    *n = (uint64_t)st.st_size / sizeof(payment);
    const bool writes = (flags & O_RDWR) != 0;
    void *at =
        mmap(NULL, (size_t)st.st_size, writes ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (at == MAP_FAILED) bench_die_errno("cannot map the payments");
    close(fd);
    return at;
}

void workload_write(const workload *w, const char *messages_path, const char *payments_path, workload_sums *sums)
{
    uint64_t random = w->seed, n = w->messages;
    payment *all = map(payments_path, O_RDWR | O_CREAT | O_TRUNC, &n);
    FILE *to = fopen(messages_path, "we");
    if (!to) bench_die_errno("cannot make the messages");
    setvbuf(to, NULL, _IOFBF, 1 << 20);
    *sums = (workload_sums){0};
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t dice = next_random(&random) % 100;
        if (i > 0 && dice < DUPLICATES_PERCENT) {
            all[i] = all[dice < REPEATED_AT_ONCE_PERCENT ? i - 1 : next_random(&random) % i];
            all[i].duplicate = 1;
        } else {
            make_payment(w, i, &random, &all[i]);
            sums->keys++;
            if (all[i].amount < 0) sums->failing++;
            else sums->amount += all[i].amount;
        }
        write_message(&all[i], to);
    }
    if (fclose(to) != 0) bench_die_errno("cannot write the messages");
    munmap(all, n * sizeof *all);
}

const payment *workload_map(const char *payments_path, uint64_t *n) { return map(payments_path, O_RDONLY, n); }
