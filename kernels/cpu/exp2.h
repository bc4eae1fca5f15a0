/* SPDX-License-Identifier: Apache-2.0 */
/* 2^x, tanh and the rounding of P, on a level's vectors. */
#ifndef HR_KERNELS_CPU_EXP2_H
#define HR_KERNELS_CPU_EXP2_H

#ifndef HR_HAVE_EXP2
/* 2^x, relative error under 2e-7, for x <= 1; 0 below 2^-126, -inf included; 2^0 is 1. */
HR_INLINE vf vf_exp2(vf x)
{
    const vf magic = vf_set1(0x1.8p23f + 127.0f); /* leaves round(x) + 127 in the low bits */
    x = vf_max(x, vf_set1(-127.0f));
    vf z = x + magic;
    vf f = x - (z - magic);
    vf p = vf_fma(f, vf_set1(0.001326472731307149f), vf_set1(0.009671512991189957f));
    p = vf_fma(p, f, vf_set1(0.05550733581185341f));
    p = vf_fma(p, f, vf_set1(0.24022242426872253f));
    p = vf_fma(p, f, vf_set1(0.6931470036506653f));
    p = vf_fma(p, f, vf_set1(1.0f));
    return p * (vf)((vu)z << 23);
}
#endif

/* tanh, relative error under 4e-7. */
HR_INLINE vf vf_tanh(vf y)
{
    vf a = vf_abs(y), u = y * y;
    vf near = vf_fma(u, vf_set1(-0.005895085167139769f), vf_set1(0.02079591527581215f));
    near = vf_fma(near, u, vf_set1(-0.05378381535410881f));
    near = vf_fma(near, u, vf_set1(0.13331924378871918f));
    near = vf_fma(near, u, vf_set1(-0.33333298563957214f));
    near = vf_fma(near * u, a, a);
    vf e = vf_exp2(a * vf_set1(-2.885390081777927f)); /* e^(-2a) */
    vf far = (vf_set1(1.0f) - e) / (vf_set1(1.0f) + e);
    vf r = vf_pick(far, near, a < vf_set1(0.6f));
    return (vf)((vu)r | ((vu)y & 0x80000000u));
}

/* To the nearest value of the type's precision: a split by multiplication. `split` is 2^(24-p) + 1
 * for p bits. For 0 <= x <= 1. */
HR_INLINE vf vf_round_p(vf x, vf split)
{
    vf g = x * split;
    return g - (g - x);
}

HR_INLINE float split_of(hr_dtype dtype)
{
    return dtype == HR_BF16 ? 65537.0f : 8193.0f;
}

#endif
