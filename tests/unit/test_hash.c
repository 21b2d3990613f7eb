/* Hash functions, compared with published values. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/env.h"
#include "base/hash.h"
#include "base/hash_block.h"

static uint64_t from_hex(const char *hex, bool least_first)
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        number |= (uint64_t)strtoul(pair, NULL, 16) << 8 * (least_first ? i : 7 - i);
    }
    return number;
}

static void assert_sha256(const void *data, size_t len, const char *hex)
{
    unsigned char out[33];
    out[32] = 0xa5;
    once_sha256(data, len, out);
    for (int i = 0; i < 32; i++) {
        char pair[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        assert_int_equal(out[i], strtoul(pair, NULL, 16));
    }
    assert_int_equal(out[32], 0xa5);
}

/* The authors' vectors: the bytes 00 01 02 ... under the key 00 01 .. 0f, output least significant byte first. */
static void siphash_gives_the_published_vectors(void **state)
{
    (void)state;
    static const struct {
        size_t len;
        const char *hex;
    } vectors[] = {
        {0, "a3817f04ba25a8e66df67214c7550293"},  {1, "da87c1d86b99af44347659119b22fc45"},
        {7, "a1f1ebbed8dbc153c0b84aa61ff08239"},  {8, "3b62a9ba6258f5610f83e264f31497b4"},
        {15, "5493e99933b0a8117e08ec0f97cfc3d9"}, {16, "6ee2a4ca67b054bbfd3315bf85230577"},
        {31, "2939b0183223fafc1723de4f52c43d35"}, {63, "5150d1772f50834a503e069a973fbd7c"},
    };
    unsigned char data[64];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)i;
    once_secret secret = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        once_hash hash = once_siphash128(secret, data, vectors[i].len);
        assert_int_equal(hash.a, from_hex(vectors[i].hex, true));
        assert_int_equal(hash.b, from_hex(vectors[i].hex + 16, true));
    }
}

static void f64_the_secret_and_every_byte_matter(void **state)
{
    (void)state;
    char data[40] = {0};
    once_secret secret = {1, 2}, other = {1, 3};
    once_hash hash = once_siphash128(secret, data, sizeof data);
    assert_false(once_hash_equal(hash, once_siphash128(other, data, sizeof data)));
    assert_false(once_hash_equal(hash, once_siphash128(secret, data, sizeof data - 1))); /* zeros of another length */
    for (size_t bit = 0; bit < sizeof data * 8; bit++) {
        data[bit / 8] = (char)(1 << bit % 8);
        assert_false(once_hash_equal(hash, once_siphash128(secret, data, sizeof data)));
        data[bit / 8] = 0;
    }
}

static void hashes_read_only_their_bytes_at_any_address(void **state)
{
    (void)state;
    once_secret secret = {3, 4};
    char text[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    for (size_t len = 0; len < sizeof text; len++) {
        char *exact = malloc(len + 1); /* a byte more would be seen by the sanitizer */
        memcpy(exact + 1, text, len);
        assert_true(once_hash_equal(once_siphash128(secret, exact + 1, len), once_siphash128(secret, text, len)));
        assert_true(once_hash_equal(once_xxh128(7, exact + 1, len), once_xxh128(7, text, len)));
        free(exact);
    }
    assert_true(once_hash_equal(once_siphash128(secret, NULL, 0), once_siphash128(secret, "", 0)));
    assert_true(once_hash_equal(once_xxh128(7, NULL, 0), once_xxh128(7, "", 0)));
}

static void xxh128_gives_the_published_values(void **state)
{
    (void)state;
    once_hash empty = once_xxh128(0, "", 0), abc = once_xxh128(0, "abc", 3);
    assert_int_equal(empty.a, from_hex("99aa06d3014798d8", false));
    assert_int_equal(empty.b, from_hex("6001c324468d497f", false));
    assert_int_equal(abc.a, from_hex("06b05ab6733a6185", false));
    assert_int_equal(abc.b, from_hex("78af5f94892f3950", false));
    assert_false(once_hash_equal(abc, once_xxh128(1, "abc", 3)));
}

static void sha256_gives_the_published_vectors(void **state)
{
    (void)state;
    assert_sha256("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_sha256(NULL, 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_sha256("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    assert_sha256(two_blocks, strlen(two_blocks), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    size_t million = 1000000;
    char *many = malloc(million);
    memset(many, 'a', million);
    assert_sha256(many, million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(many);
}

static void sha256_of_a_block_is_the_same_on_every_cpu(void **state)
{
    (void)state;
    uint32_t fast[8] = {1, 2, 3, 4, 5, 6, 7, 8}, plain[8];
    unsigned char block[65] = {0};
    memcpy(plain, fast, sizeof plain);
    for (unsigned i = 0; i < 1000; i++) { /* each one goes on from the last, at addresses that are not aligned */
        for (unsigned j = 0; j < sizeof block; j++) block[j] = (unsigned char)(block[j] * 5 + i * j + plain[j % 8]);
        once__sha256_block(fast, block + i % 2);
        once__sha256_block_plain(plain, block + i % 2);
        assert_memory_equal(fast, plain, sizeof plain);
    }
}

static void sha256_of_a_short_text_is_the_same(void **state)
{
    (void)state;
    for (size_t len = 0; len <= ONCE_SHA256_SHORT; len++) {
        unsigned char text[128], whole[32];
        uint32_t words[8];
        memset(text, 0xee, sizeof text); /* what is behind the text does not matter */
        for (size_t i = 0; i < len; i++) text[i] = (unsigned char)(i * 37 + len);
        once_sha256(text, len, whole);
        once_sha256_short(text, len, words);
        for (size_t i = 0; i < 32; i++) assert_int_equal(words[i / 4] >> (24 - i % 4 * 8) & 0xff, whole[i]);
    }
}

static void sha256_in_pieces_is_the_same(void **state)
{
    (void)state;
    unsigned char data[300], whole[32], pieces[32];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7);
    once_sha256(data, sizeof data, whole);
    for (size_t step = 1; step <= sizeof data; step++) {
        once_sha256_state s;
        once_sha256_begin(&s);
        for (size_t at = 0; at < sizeof data; at += step)
            once_sha256_add(&s, data + at, step < sizeof data - at ? step : sizeof data - at);
        once_sha256_add(&s, NULL, 0);
        once_sha256_end(&s, pieces);
        assert_memory_equal(whole, pieces, 32);
    }
}

static void assert_hmac(const void *key, size_t key_len, const char *text, const char *hex)
{
    unsigned char out[32];
    once_hmac_state s;
    once_hmac_begin(&s, key, key_len);
    once_hmac_add(&s, text, strlen(text));
    once_hmac_end(&s, out);
    for (int i = 0; i < 32; i++) {
        const char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
        assert_int_equal(out[i], strtoul(pair, NULL, 16));
    }
}

static void hmac_gives_the_published_vectors(void **state) /* RFC 4231 */
{
    (void)state;
    unsigned char key[131];
    memset(key, 0x0b, 20);
    assert_hmac(key, 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    assert_hmac("Jefe", 4, "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, 131);
    assert_hmac(key, 131, "Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void sha256_pads_right_at_every_edge_of_a_block(void **state)
{
    (void)state;
    unsigned char data[120];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7);
    assert_sha256(data, 55, "576a1bf8d4478657e6dc4af9398544765c2a92cde28478b019235cfed315fc09");
    assert_sha256(data, 56, "9b20501dfd1d99161c257950f3444f3e49230c351c5c8e0943ef369f85f5205d");
    assert_sha256(data, 63, "30b345906b493f06f69444b6521113511c242f30e29840462950035043682f1e");
    assert_sha256(data, 64, "d8bc63b4fc1156e5e7d95a418b9bf54cd3174bedbc2db40f74895349b229b3c0");
    assert_sha256(data, 65, "1ee23b0fbcaecc1aff4a9e8f1645f35ab2c8e13609cd73b68df8b5e3f63ce073");
    assert_sha256(data, 119, "7a6589821178918ca8d9edaba5abfc1e9b2669564f4469b66885379c1530b2c8");
    assert_sha256(data, 120, "655250427d56b1b0eeb8497d21428704273458a01772d6881b65c0abac0f8a98");
}

static void order_is_by_a_then_b(void **state)
{
    (void)state;
    once_hash low = {1, 9}, high = {2, 0}, higher = {2, UINT64_MAX};
    assert_int_equal(once_hash_compare(low, high), -1);
    assert_int_equal(once_hash_compare(higher, high), 1);
    assert_int_equal(once_hash_compare(high, high), 0);
    assert_true(once_hash_is_zero((once_hash){0, 0}));
    assert_false(once_hash_is_zero((once_hash){0, 1}));
}

static void the_real_environment_is_plausible(void **state)
{
    (void)state;
    const once_env *env = once_env_real();
    assert_true(once_env_wall_ms(env) > INT64_C(1600000000000));
    int64_t boot_ms = once_env_boot_ms(env), mono_ns = once_env_mono_ns(env);
    once_env_sleep_ms(env, 20);
    once_env_sleep_ms(env, -5);
    assert_in_range(once_env_boot_ms(env) - boot_ms, 19, 5000);
    assert_true(once_env_mono_ns(env) - mono_ns >= 20000000);
    assert_int_equal(once_env_boot_id(env), once_env_boot_id(env));
    assert_int_not_equal(once_env_boot_id(env), 0);
}

static void files_have_the_semantics_of_the_system_calls(void **state)
{
    (void)state;
    const once_env *env = once_env_real();
    char path[] = "/tmp/once-env-XXXXXX", text[8] = "";
    int made = mkstemp(path);
    assert_true(made >= 0);
    close(made);
    int fd = env->open(env->self, path, O_RDWR, 0600);
    assert_true(fd >= 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(env->write(env->self, fd, "abc", 3), 3);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    assert_int_equal(env->read(env->self, fd, text, sizeof text), 3);
    assert_string_equal(text, "abc");
    assert_int_equal(env->close(env->self, fd), 0);
    assert_int_equal(unlink(path), 0);
    errno = 0;
    assert_int_equal(env->open(env->self, path, O_RDONLY, 0), -1);
    assert_int_equal(errno, ENOENT);
    assert_int_equal(env->read(env->self, -1, text, 1), -1);
}

static int compare_u64(const void *x, const void *y)
{
    uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return a < b ? -1 : a > b;
}

static void random_never_repeats_and_fills_every_byte(void **state)
{
    (void)state;
    enum { N = 10000 };
    static uint64_t drawn[N];
    for (int i = 0; i < N; i++) drawn[i] = once_env_random_u64(once_env_real());
    qsort(drawn, N, sizeof drawn[0], compare_u64);
    for (int i = 1; i < N; i++) assert_int_not_equal(drawn[i - 1], drawn[i]);

    for (size_t len = 0; len <= 300; len += 20) { /* below and above what the pool serves */
        unsigned char seen[301] = {0}, bytes[301];
        for (int round = 0; round < 20; round++) {
            memset(bytes, 0, sizeof bytes);
            once_env_random(once_env_real(), bytes, len);
            for (size_t i = 0; i < sizeof bytes; i++) seen[i] |= bytes[i];
        }
        for (size_t i = 0; i < sizeof seen; i++) assert_int_equal(seen[i] != 0, i < len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siphash_gives_the_published_vectors),
        cmocka_unit_test(f64_the_secret_and_every_byte_matter),
        cmocka_unit_test(hashes_read_only_their_bytes_at_any_address),
        cmocka_unit_test(xxh128_gives_the_published_values),
        cmocka_unit_test(sha256_gives_the_published_vectors),
        cmocka_unit_test(sha256_pads_right_at_every_edge_of_a_block),
        cmocka_unit_test(sha256_of_a_block_is_the_same_on_every_cpu),
        cmocka_unit_test(sha256_of_a_short_text_is_the_same),
        cmocka_unit_test(sha256_in_pieces_is_the_same),
        cmocka_unit_test(hmac_gives_the_published_vectors),
        cmocka_unit_test(order_is_by_a_then_b),
        cmocka_unit_test(the_real_environment_is_plausible),
        cmocka_unit_test(files_have_the_semantics_of_the_system_calls),
        cmocka_unit_test(random_never_repeats_and_fills_every_byte),
    };
    return cmocka_run_group_tests_name("hash", tests, NULL, NULL);
}
