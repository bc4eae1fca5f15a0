/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of one element type to another, eight elements at a time, rounded to nearest even; what is
 * too large for the type becomes infinite. A NaN stays one; unless the types are equal its payload
 * is lost. */
#ifndef HR_KERNELS_CUDA_CONVERT_CUH
#define HR_KERNELS_CUDA_CONVERT_CUH

#include "kernels/cuda/types.cuh"
#include "src/base/geom.h"

/* 9.7.9.9 ld.global.nc: of what no thread writes meanwhile, kept out of L1 */
HR_DEVICE uint4 load_once(const void *p)
{
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(p));
    return x;
}

/* A type as an argument: `decltype(t)::value` is the constant. */
template <hr_dtype type> struct element_type {
    static constexpr hr_dtype value = type;
    static constexpr int bytes = type == HR_FP32 ? 4 : 2;
};

/* Calls f(element_type): one branch for all that f does. */
template <typename F> HR_DEVICE void with_type(int32_t type, F f)
{
    if (type == HR_BF16)
        f(element_type<HR_BF16>());
    else if (type == HR_FP16)
        f(element_type<HR_FP16>());
    else
        f(element_type<HR_FP32>());
}

/* Eight neighbouring elements. */
template <hr_dtype type> struct octet {
    static constexpr int words = type == HR_FP32 ? 8 : 4;
    uint32_t word[words];
};

/* wide: p is a multiple of 16. */
template <hr_dtype type, bool wide> HR_DEVICE octet<type> load_octet(const unsigned char *p)
{
    octet<type> o;
#pragma unroll
    for (int i = 0; i < octet<type>::words; i += wide ? 4 : 1) {
        if constexpr (wide) {
            uint4 x = load_once(p + 4 * i);
            o.word[i] = x.x;
            o.word[i + 1] = x.y;
            o.word[i + 2] = x.z;
            o.word[i + 3] = x.w;
        } else if constexpr (type == HR_FP32) {
            o.word[i] = __ldg(reinterpret_cast<const uint32_t *>(p) + i);
        } else {
            const uint16_t *h = reinterpret_cast<const uint16_t *>(p);
            o.word[i] = __ldg(h + 2 * i) | (uint32_t)__ldg(h + 2 * i + 1) << 16;
        }
    }
    return o;
}

template <hr_dtype type> HR_DEVICE void store_octet(unsigned char *p, const octet<type> &o)
{
#pragma unroll
    for (int i = 0; i < octet<type>::words; i += 4)
        *reinterpret_cast<uint4 *>(p + 4 * i) =
            make_uint4(o.word[i], o.word[i + 1], o.word[i + 2], o.word[i + 3]);
}

template <hr_dtype type> HR_DEVICE void unpack(const octet<type> &o, float (&x)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if constexpr (type == HR_FP32) {
            x[i] = __uint_as_float(o.word[i]);
        } else {
            uint16_t bits = (uint16_t)(o.word[i / 2] >> 16 * (i % 2));
            x[i] = type == HR_BF16 ? bf16::value(bits) : fp16::value(bits);
        }
    }
}

template <hr_dtype type> HR_DEVICE octet<type> pack(const float (&x)[8])
{
    octet<type> o;
#pragma unroll
    for (int i = 0; i < octet<type>::words; i++) {
        if constexpr (type == HR_FP32)
            o.word[i] = __float_as_uint(x[i]);
        else if constexpr (type == HR_BF16)
            o.word[i] = bf16::pack(x[2 * i], x[2 * i + 1]);
        else
            o.word[i] = fp16::pack(x[2 * i], x[2 * i + 1]);
    }
    return o;
}

template <hr_dtype to, hr_dtype from> HR_DEVICE octet<to> convert(const octet<from> &o)
{
    if constexpr (from == to) {
        return o;
    } else {
        float x[8];
        unpack<from>(o, x);
        return pack<to>(x);
    }
}

/* Whether every row of [rows][heads][dim] is a multiple of 16; strides in elements. */
HR_DEVICE bool rows_are_wide(const void *data, int64_t stride_token, int64_t stride_head,
                             int32_t type)
{
    int64_t bytes = type == HR_FP32 ? 4 : 2;
    return (((int64_t)data | stride_token * bytes | stride_head * bytes) & 15) == 0;
}

#endif
