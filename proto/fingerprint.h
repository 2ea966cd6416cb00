/* One number for the layout of all that two processes share: sizes and offsets of every shared
 * struct, enum numbers, versions. In `hello` and in every segment header; processes with different
 * numbers do not attach. */
#ifndef TANDEM_PROTO_FINGERPRINT_H
#define TANDEM_PROTO_FINGERPRINT_H

#include <stdint.h>

uint64_t layout_fingerprint(void);

#endif
