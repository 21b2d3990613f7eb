#include "store/redis/tls.h"

#include "base/errno_text.h"
#include "base/no_memory.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/banned.h"

struct once_redis_tls {
    BIO_METHOD *method;
    SSL_CTX *context;
    SSL *ssl;
    int fd;
    once_redis_waiting waiting;
};

static void explain(int status, const char *host, const char *what, once_error *err)
{
    char text[160] = "";
    const unsigned long code = ERR_get_error();
    if (code) ERR_error_string_n(code, text, sizeof text);
    (void)once_fail(err, status, "TLS with redis at '%s' failed: %s%s%s", host, what, code ? ": " : "", text);
    ERR_clear_error();
}

/* --- the socket, as OpenSSL sees it: its own would let a closed connection end the process (SIGPIPE) --- */

static int fd_of(BIO *bio) { return (int)(intptr_t)BIO_get_data(bio); }

static int outcome(BIO *bio, ssize_t n, int retry)
{
    BIO_clear_retry_flags(bio);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
    return (int)n;
}

static int socket_write(BIO *bio, const char *data, int len)
{
    return outcome(bio, send(fd_of(bio), data, (size_t)len, MSG_NOSIGNAL), BIO_FLAGS_WRITE);
}

static int socket_read(BIO *bio, char *out, int len)
{
    return outcome(bio, recv(fd_of(bio), out, (size_t)len, 0), BIO_FLAGS_READ);
}

static long socket_control(BIO *bio, int what, long number, void *pointer)
{
    (void)bio, (void)number, (void)pointer;
    return what == BIO_CTRL_FLUSH;
}

static bool use_socket(once_redis_tls *tls)
{
    tls->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "redis");
    BIO *bio = NULL;
    if (tls->method && BIO_meth_set_write(tls->method, socket_write) == 1 &&
        BIO_meth_set_read(tls->method, socket_read) == 1 && BIO_meth_set_ctrl(tls->method, socket_control) == 1)
        bio = BIO_new(tls->method);
    if (!bio) return false;
    BIO_set_data(bio, (void *)(intptr_t)tls->fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(tls->ssl, bio, bio);
    return true;
}

/* Waits until TLS can go on; false, with errno: it did not become ready in time, or TLS has failed. */
static bool wait_for_ssl(once_redis_tls *tls, int result)
{
    const int wants = SSL_get_error(tls->ssl, result);
    if (wants == SSL_ERROR_SYSCALL && errno == EINTR) return true;
    if (wants != SSL_ERROR_WANT_READ && wants != SSL_ERROR_WANT_WRITE) {
        if (wants != SSL_ERROR_SYSCALL || errno == 0 || errno == EAGAIN) errno = EPROTO;
        return false;
    }
    const int why = once__redis_wait_for(&tls->waiting, tls->fd, wants == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT);
    if (why) errno = why;
    return why == 0;
}

static bool trust(SSL_CTX *context, const once_redis_url *url)
{
    if (url->cacert[0] ? SSL_CTX_load_verify_locations(context, url->cacert, NULL) != 1
                       : SSL_CTX_set_default_verify_paths(context) != 1)
        return false;
    return !url->cert[0] ||
           (SSL_CTX_use_certificate_chain_file(context, url->cert) == 1 &&
            SSL_CTX_use_PrivateKey_file(context, url->key[0] ? url->key : url->cert, SSL_FILETYPE_PEM) == 1);
}

static bool expect_host(SSL *ssl, const char *host)
{
    unsigned char address[16];
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1;
    return SSL_set_tlsext_host_name(ssl, host) == 1 && SSL_set1_host(ssl, host) == 1;
}

once_redis_tls *once__redis_tls_start(int fd, const once_redis_url *url, const char *host,
                                      const once_redis_waiting *waiting, once_error *err)
{
    once_redis_tls *tls = calloc(1, sizeof *tls);
    if (!tls) return (void)once_no_memory(err, "for a connection"), NULL;
    tls->fd = fd;
    tls->waiting = *waiting;
    tls->context = SSL_CTX_new(TLS_client_method());
    bool fine =
        tls->context && SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION) == 1 && trust(tls->context, url);
    if (fine) {
        SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER, NULL);
        SSL_CTX_set_mode(tls->context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        tls->ssl = SSL_new(tls->context);
        fine = tls->ssl && use_socket(tls) && expect_host(tls->ssl, host);
    }
    if (!fine) {
        explain(ONCE_E_DENIED, host, "certificates cannot be read", err);
        once__redis_tls_free(tls);
        return NULL;
    }
    int result;
    errno = 0;
    while ((result = SSL_connect(tls->ssl)) != 1 && wait_for_ssl(tls, result)) errno = 0;
    if (result == 1) return tls;
    const int failed = errno;
    const long verified = SSL_get_verify_result(tls->ssl);
    if (verified != X509_V_OK) explain(ONCE_E_DENIED, host, X509_verify_cert_error_string(verified), err);
    else explain(ONCE_E_UNAVAILABLE, host, failed ? once_errno_text(failed) : "no answer", err);
    once__redis_tls_free(tls);
    errno = failed;
    return NULL;
}

void once__redis_tls_free(once_redis_tls *tls)
{
    if (!tls) return;
    SSL_free(tls->ssl);
    SSL_CTX_free(tls->context);
    BIO_meth_free(tls->method);
    free(tls);
    ERR_clear_error();
}

ssize_t once__redis_tls_send(once_redis_tls *tls, const void *data, size_t len)
{
    for (;;) {
        errno = 0;
        const int n = SSL_write(tls->ssl, data, len < INT_MAX ? (int)len : INT_MAX);
        if (n > 0) return n;
        if (!wait_for_ssl(tls, n)) return ERR_clear_error(), -1;
    }
}

ssize_t once__redis_tls_receive(once_redis_tls *tls, void *out, size_t len)
{
    for (;;) {
        errno = 0;
        const int n = SSL_read(tls->ssl, out, len < INT_MAX ? (int)len : INT_MAX);
        if (n > 0) return n;
        if (SSL_get_error(tls->ssl, n) == SSL_ERROR_ZERO_RETURN) return 0;
        if (!wait_for_ssl(tls, n)) return ERR_clear_error(), -1;
    }
}
