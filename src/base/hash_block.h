/* The compression function of SHA-256, for hash.c and its test: on this CPU as fast as it can, and in plain C. */
#ifndef ONCE_BASE_HASH_BLOCK_H
#define ONCE_BASE_HASH_BLOCK_H

#include <stdint.h>

/* `block`: 64 bytes. */
void once__sha256_block(uint32_t state[8], const unsigned char *block);
void once__sha256_block_plain(uint32_t state[8], const unsigned char *block);

#endif
