/* SPDX-License-Identifier: Apache-2.0 */
/* A small context, cache and step for the tests of the API. */
#ifndef HR_TESTS_FIXTURE_H
#define HR_TESTS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <headrace/headrace.h>

#include "src/context.h"

enum { HQ = 6, HKV = 2, D = 16, TOKENS = 200 };

static inline hr_layer_options layer_options(void)
{
    return (hr_layer_options){.q_heads = HQ, .kv_heads = HKV, .dim_k = D, .dtype = HR_FP32};
}

static inline hr_context *open_small(uint64_t extents)
{
    hr_options options = {.struct_size = sizeof(options),
                          .threads = 2,
                          .unbound = true,
                          .device_bytes = extents << 21};
    hr_context *c;
    assert_int_equal(hr_open(&options, &c), HR_OK);
    return c;
}

static inline hr_cache *make_cache(hr_context *c, int32_t n_layers)
{
    hr_layer_options layers[4] = {layer_options(), layer_options(), layer_options(),
                                  layer_options()};
    hr_cache_options options = {.struct_size = sizeof(options),
                                .layer_size = sizeof(layers[0]),
                                .layers = layers,
                                .n_layers = n_layers};
    hr_cache *cache;
    assert_int_equal(hr_cache_create(c, &options, &cache), HR_OK);
    return cache;
}

static inline hr_step *make_step(hr_cache *cache)
{
    hr_step_limits limits = {
        .struct_size = sizeof(limits), .seqs = 2, .new_tokens = 2000, .query_tokens = 2000};
    hr_step *step;
    assert_int_equal(hr_step_create(cache, &limits, &step), HR_OK);
    return step;
}

static inline hr_status begin_one(hr_step *step, hr_seq *seq, int64_t n_new)
{
    hr_batch batch = {.struct_size = sizeof(batch), .n_seqs = 1, .seqs = &seq, .n_new = &n_new};
    return hr_step_begin(step, &batch);
}

static float data[2][TOKENS * HQ * D], out[TOKENS * HQ * D];

static inline void fill_data(void)
{
    for (int i = 0; i < TOKENS * HQ * D; i++) {
        data[0][i] = (float)(i * 2654435761u >> 20) / 2048.0f - 1.0f;
        data[1][i] = (float)(i * 40503u >> 4 & 0xfff) / 2048.0f - 1.0f;
    }
}

static inline hr_status append(hr_step *step, int32_t layer)
{
    hr_append_args args = {
        .struct_size = sizeof(args), .dtype = HR_FP32, .k = data[0], .v = data[1]};
    return hr_step_append(step, layer, &args);
}

static inline hr_attend_args attend_args(void)
{
    return (hr_attend_args){.struct_size = sizeof(hr_attend_args),
                            .q_dtype = HR_FP32,
                            .out_dtype = HR_FP32,
                            .q = data[0],
                            .out = out};
}

static inline hr_status attend(hr_step *step, int32_t layer)
{
    hr_attend_args args = attend_args();
    return hr_step_attend(step, layer, &args);
}

static inline void expect_error(hr_context *c, hr_status got, hr_status want, const char *part)
{
    assert_int_equal(got, want);
    if (!strstr(hr_error_text(c), part))
        fail_msg("\"%s\" does not contain \"%s\"", hr_error_text(c), part);
}

#endif
