/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled once for each level: MODEL_OPS names the table, the compiler's flags the vectors. */
#include "tools/model_ops.h"

#include <math.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));

/* Sums run in 32 lanes at any vector width. */
enum { SUM_LANES = 32, SUM_VECTORS = SUM_LANES / LANES };

static inline vf load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static inline void store(float *p, vf v)
{
    memcpy(p, &v, sizeof(v));
}

static inline vf all(float x)
{
    return x - (vf){0};
}

static inline vf choose(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* a * b + c where a * b is exact: fused or not gives the same bits. */
static inline vf scaled(vf a, vf b, vf c)
{
#if defined(__AVX512F__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* e^x, error about 1 ulp; 0 below -87.3, e^88 above 88. */
static inline vf exp_v(vf x)
{
    vi tiny = (vi)(x < all(-87.3f));
    x = choose((vi)(x > all(88.0f)), all(88.0f), x);
    x = choose(tiny, all(0.0f), x);
    vf n = (x * all(0x1.715476p+0f) + all(0x1.8p23f)) - all(0x1.8p23f);
    vf r = (x - n * all(0x1.62e4p-1f)) - n * all(0x1.7f7d1cp-20f);
    vf p = all(0x1.6a23cep-10f);
    p = p * r + all(0x1.123a2p-7f);
    p = p * r + all(0x1.5558f2p-5f);
    p = p * r + all(0x1.555492p-3f);
    p = p * r + all(0x1.fffffcp-2f);
    p = (p * r) * r + r + all(1.0f);
    vi power = (__builtin_convertvector(n, vi) + 127) << 23;
    return choose(tiny, all(0.0f), p * (vf)power);
}

static inline float exp_1(float x)
{
    return exp_v(all(x))[0];
}

static inline vf silu_v(vf gate, vf up)
{
    return gate / (all(1.0f) + exp_v(-gate)) * up;
}

static double sum_lanes(const vf *sums)
{
    float lanes[SUM_LANES];
    memcpy(lanes, sums, sizeof(lanes));
    double sum = 0;
    for (int i = 0; i < SUM_LANES; i++)
        sum += (double)lanes[i];
    return sum;
}

static void rms_norm(float *out, const float *x, const float *weight, int64_t n, float eps)
{
    vf sums[SUM_VECTORS] = {{0}};
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int j = 0; j < SUM_VECTORS; j++)
            sums[j] += load(x + i + j * LANES) * load(x + i + j * LANES);
    double sum = sum_lanes(sums);
    for (; i < n; i++)
        sum += (double)(x[i] * x[i]);
    float factor = (float)(1.0 / sqrt(sum / (double)n + (double)eps));
    for (i = 0; i + LANES <= n; i += LANES)
        store(out + i, load(x + i) * all(factor) * load(weight + i));
    for (; i < n; i++)
        out[i] = x[i] * factor * weight[i];
}

static void add(float *x, const float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store(x + i, load(x + i) + load(y + i));
    for (; i < n; i++)
        x[i] += y[i];
}

static void silu_mul(float *out, const float *gate, const float *up, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store(out + i, silu_v(load(gate + i), load(up + i)));
    for (; i < n; i++)
        out[i] = silu_v(all(gate[i]), all(up[i]))[0];
}

static float maximum(const float *x, int64_t n)
{
    vf best[4] = {all(-INFINITY), all(-INFINITY), all(-INFINITY), all(-INFINITY)};
    float m = -INFINITY;
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            vf v = load(x + i + j * LANES);
            best[j] = choose((vi)(v > best[j]), v, best[j]);
        }
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < LANES; k++)
            m = best[j][k] > m ? best[j][k] : m;
    return m;
}

static double log_sum_exp(const float *x, int64_t n)
{
    float m = maximum(x, n);
    vf sums[SUM_VECTORS] = {{0}};
    int64_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (int j = 0; j < SUM_VECTORS; j++)
            sums[j] += exp_v(load(x + i + j * LANES) - all(m));
    double sum = sum_lanes(sums);
    for (; i < n; i++)
        sum += (double)exp_1(x[i] - m);
    return (double)m + log(sum);
}

/* LANES bytes as integers: compilers make poor code of the generic conversion. */
static inline vi widen_unsigned(const uint8_t *p)
{
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
#else
    return (vi){p[0], p[1], p[2], p[3]};
#endif
}

static inline vi widen_signed(const int8_t *p)
{
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p));
#else
    return (vi){p[0], p[1], p[2], p[3]};
#endif
}

/* Vectors of outputs that are expanded together. */
enum { SIDE = 4 };

static inline void expand4_side(const struct ops_group4 *group, int first, float *out)
{
    vf scale[SIDE], offset[SIDE];
    for (int j = 0; j < SIDE; j++) {
        scale[j] = load(group->scale + first + j * LANES);
        offset[j] = load(group->offset + first + j * LANES);
    }
    for (int r = 0; r < OPS_GROUP / 2; r++, out += 2 * OPS_PANEL)
        for (int j = 0; j < SIDE; j++) {
            vi codes = widen_unsigned(group->codes[r] + first + j * LANES);
            vf low = __builtin_convertvector(codes & 15, vf);
            vf high = __builtin_convertvector(codes >> 4, vf);
            store(out + first + j * LANES, scaled(low, scale[j], offset[j]));
            store(out + OPS_PANEL + first + j * LANES, scaled(high, scale[j], offset[j]));
        }
}

static void expand4(const struct ops_group4 *groups, int64_t n, float *out)
{
    for (int64_t g = 0; g < n; g++)
        for (int first = 0; first < OPS_PANEL; first += SIDE * LANES)
            expand4_side(&groups[g], first, out + g * OPS_GROUP * OPS_PANEL);
}

static inline void expand8_side(const struct ops_group8 *group, int first, float *out)
{
    vf scale[SIDE];
    for (int j = 0; j < SIDE; j++)
        scale[j] = load(group->scale + first + j * LANES);
    for (int r = 0; r < OPS_GROUP; r++, out += OPS_PANEL)
        for (int j = 0; j < SIDE; j++) {
            vi codes = widen_signed(group->codes[r] + first + j * LANES);
            store(out + first + j * LANES, __builtin_convertvector(codes, vf) * scale[j]);
        }
}

static void expand8(const struct ops_group8 *groups, int64_t n, float *out)
{
    for (int64_t g = 0; g < n; g++)
        for (int first = 0; first < OPS_PANEL; first += SIDE * LANES)
            expand8_side(&groups[g], first, out + g * OPS_GROUP * OPS_PANEL);
}

const struct model_ops MODEL_OPS = {
    .name = MODEL_OPS_NAME,
    .expand4 = expand4,
    .expand8 = expand8,
    .rms_norm = rms_norm,
    .add = add,
    .silu_mul = silu_mul,
    .log_sum_exp = log_sum_exp,
};
