/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/model_ops.h"

const struct model_ops *model_ops_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return &model_ops_avx512;
    if (__builtin_cpu_supports("avx2"))
        return &model_ops_avx2;
#endif
    return &model_ops_base;
}
