/* TLS to the broker. The certificate of the server and the name in it are verified in the handshake, before anything is
 * sent. librabbitmq would verify them after it, and does not know addresses in certificates. */
#include <amqp_ssl_socket.h>
#include <arpa/inet.h>
#include <assert.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <string.h>

#include "source/rabbitmq/rabbitmq.h"

#include "base/banned.h"

/* Keeps why a certificate is not accepted, at the application's data of the context. */
static int on_verified(int ok, X509_STORE_CTX *store)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    int *reason = ssl ? SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)) : NULL;
    if (!ok && reason) *reason = X509_STORE_CTX_get_error(store);
    return ok;
}

/* A key with a passphrase is an error; without this, OpenSSL would ask at the terminal. */
static int no_passphrase(char *to, int size, int writes, void *user)
{
    (void)to, (void)size, (void)writes, (void)user;
    return -1;
}

static int refuse_file(once_error *err, const char *what, const char *path)
{
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    return once_fail(err, ONCE_E_CONFIG, "cannot use %s '%s': %s", what, path, why ? why : "it is not readable");
}

static int set_files(const rabbitmq_address *address, SSL_CTX *context, once_error *err)
{
    ERR_clear_error();
    SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    if (address->ca && SSL_CTX_load_verify_locations(context, address->ca, NULL) != 1)
        return refuse_file(err, "the authorities of", address->ca);
    if (!address->ca && SSL_CTX_set_default_verify_paths(context) != 1)
        return refuse_file(err, "the authorities of", "the system");
    if (!address->certificate) return ONCE_OK;
    assert(address->key);
    if (SSL_CTX_use_certificate_chain_file(context, address->certificate) != 1)
        return refuse_file(err, "the certificate in", address->certificate);
    if (SSL_CTX_use_PrivateKey_file(context, address->key, SSL_FILETYPE_PEM) != 1)
        return refuse_file(err, "the key in", address->key);
    return ONCE_OK;
}

/* False: out of memory. */
static bool verify_name(SSL_CTX *context, const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    X509_VERIFY_PARAM *rules = SSL_CTX_get0_param(context);
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(rules, host) == 1;
    X509_VERIFY_PARAM_set_hostflags(rules, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return X509_VERIFY_PARAM_set1_host(rules, host, 0) == 1;
}

int once__rabbitmq_open_tls(const rabbitmq_source *r, amqp_connection_state_t connection, const struct timeval *limit,
                            once_error *err)
{
    const char *host = r->address.url.host.data;
    int reason = X509_V_OK;
    amqp_socket_t *socket = amqp_ssl_socket_new(connection); /* the connection owns it */
    if (!socket) return once_fail(err, ONCE_E_NOMEM, "out of memory for a TLS connection");
    SSL_CTX *context = amqp_ssl_socket_get_context(socket);
    const int rc = set_files(&r->address, context, err);
    if (rc != ONCE_OK) return rc;
    if (!verify_name(context, host)) return once_fail(err, ONCE_E_NOMEM, "out of memory for a TLS connection");
    (void)SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_app_data(context, &reason);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, on_verified);
    amqp_ssl_socket_set_verify_peer(socket, 1);
    amqp_ssl_socket_set_verify_hostname(socket, 0); /* the handshake has verified it */
    const int status = amqp_socket_open_noblock(socket, host, r->address.url.port, limit);
    SSL_CTX_set_app_data(context, NULL);
    if (reason != X509_V_OK)
        return once_fail(err, ONCE_E_DENIED, "the certificate of '%s:%d' is not accepted: %s", host,
                         r->address.url.port, X509_verify_cert_error_string(reason));
    return status == AMQP_STATUS_OK
               ? ONCE_OK
               : once__rabbitmq_broke(err, status, "cannot connect to '%s:%d'", host, r->address.url.port);
}
