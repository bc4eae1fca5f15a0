/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as quantised blocks, after a first byte that picks the type: in one go and block by
 * block give the same bits, and nothing else is touched. */
#include "tools/quant.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes == 0 || !quant_is_known(bytes[0]))
        return quant_name(n_bytes ? bytes[0] : 0)[0] == 0;
    enum quant_type type = bytes[0];
    uint32_t block_bytes = quant_block_bytes(type), values = quant_block_values(type);
    size_t n_blocks = (n_bytes - 1) / block_bytes, n_values = n_blocks * values;
    if (n_blocks == 0 || quant_bytes(type, n_values) != n_blocks * block_bytes)
        return 0;
    float *whole = malloc(n_values * sizeof *whole);
    float *block = malloc(values * sizeof *block);
    if (!whole || !block)
        abort();
    quant_to_f32(type, bytes + 1, n_values, whole);
    for (size_t i = 0; i < n_blocks; i++) {
        quant_to_f32(type, bytes + 1 + i * block_bytes, values, block);
        if (memcmp(block, whole + i * values, values * sizeof *block) != 0)
            abort();
    }
    free(whole);
    free(block);
    return 0;
}
