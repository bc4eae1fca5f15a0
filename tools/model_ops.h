/* SPDX-License-Identifier: Apache-2.0 */
/* Row operations of a forward pass, compiled once for each level of the CPU. Each works on one row
 * (or one group of weights) alone, in an order that depends on nothing but its length, without
 * contraction: every level gives the same bits. */
#ifndef HEADRACE_TOOLS_MODEL_OPS_H
#define HEADRACE_TOOLS_MODEL_OPS_H

#include <stdint.h>

/* 64 outputs x 32 inputs of a quantised matrix: value = scale * code + offset. */
enum { OPS_PANEL = 64, OPS_GROUP = 32 };

struct ops_group4 {
    float scale[OPS_PANEL], offset[OPS_PANEL];
    uint8_t codes[OPS_GROUP / 2][OPS_PANEL]; /* input 2r in the low half of row r, 2r + 1 above */
};

struct ops_group8 {
    float scale[OPS_PANEL];
    int8_t codes[OPS_GROUP][OPS_PANEL];
};

struct model_ops {
    const char *name;
    /* n groups -> out[32 n][64]. */
    void (*expand4)(const struct ops_group4 *groups, int64_t n, float *out);
    void (*expand8)(const struct ops_group8 *groups, int64_t n, float *out);
    /* out = x / rms(x) * weight */
    void (*rms_norm)(float *out, const float *x, const float *weight, int64_t n, float eps);
    void (*add)(float *x, const float *y, int64_t n);
    /* out = gate * sigmoid(gate) * up; out may be gate */
    void (*silu_mul)(float *out, const float *gate, const float *up, int64_t n);
    /* ln(sum(exp(x))) */
    double (*log_sum_exp)(const float *x, int64_t n);
};

extern const struct model_ops model_ops_base;
#if defined(__x86_64__)
extern const struct model_ops model_ops_avx2;
extern const struct model_ops model_ops_avx512;
#endif

/* The best level that this CPU has. */
const struct model_ops *model_ops_best(void);

#endif
