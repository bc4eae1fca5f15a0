/* SPDX-License-Identifier: Apache-2.0 */
/* Words shared by all headers: element types, masks, handles. */
#ifndef HEADRACE_TYPES_H
#define HEADRACE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Element type of K, V, q and out. All arithmetic accumulates in fp32; P (the softmax weights) is
 * rounded to the K/V type before P*V. 0 is no type: a field left unset is refused. */
typedef enum hr_dtype {
    HR_BF16 = 1, /* bfloat16: the upper half of a binary32 */
    HR_FP16 = 2, /* IEEE binary16 */
    HR_FP32 = 3, /* IEEE binary32 */
} hr_dtype;

/* Which keys a query row may see, before window and sinks. Row i of n_q, in a sequence of n_kv
 * tokens, sees keys j <= n_kv - n_q + i with HR_MASK_CAUSAL (bottom-right aligned, as in
 * FlashAttention; PyTorch's is_causal is top-left), all keys with HR_MASK_FULL. */
typedef enum hr_mask {
    HR_MASK_CAUSAL = 0,
    HR_MASK_FULL = 1,
} hr_mask;

typedef struct hr_context hr_context; /* a device, its budget and its threads */
typedef struct hr_cache hr_cache;     /* K/V geometry of one model */
typedef struct hr_seq hr_seq;         /* the K/V of one sequence, all layers */
typedef struct hr_step hr_step;       /* one forward step over a batch; reusable */

#endif
