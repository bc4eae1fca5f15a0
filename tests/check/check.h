/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a kernel table, one seed at a time. */
#ifndef HR_CHECK_CHECK_H
#define HR_CHECK_CHECK_H

#include "tests/check/case.h"

enum { HC_TEXT = 512 };

/* What a test of one seed says: rows looked at and, if it failed, why. */
struct hc_verdict {
    int64_t rows;
    double worst;           /* the largest error beside its limit */
    char text[2 * HC_TEXT]; /* "" : passed */
};

/* Which tables a test is of: all, those of a GPU, sm90. */
enum hc_tables { HC_ALL, HC_GPU, HC_SM90 };

struct hc_test {
    const char *name, *what;
    void (*run)(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
    int32_t seeds; /* by default */
    bool single;   /* needs the memory of all threads */
    enum hc_tables tables;
};

/* Ends with a test without a name. */
extern const struct hc_test hc_tests[];

/* Against the reference (accuracy.c). */
void hc_test_shapes(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_edges(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_million(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_reference(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);

/* Bit equality (rowrule.c). */
void hc_test_neighbours(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_cuts(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_chunked(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_others(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_hidden(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_zeros(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_recycled(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_lists(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_listed(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_offsets(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);
void hc_test_delays(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);

/* The append slot (append.c). */
void hc_test_append(const struct hr_kernels *k, uint64_t seed, struct hc_verdict *v);

/* --bench (bench.c). */
struct hc_result {
    char name[64];
    double value, peer_value;
    const char *unit, *peer; /* peer NULL: none */
};

enum { HC_RESULTS = 32 };

/* Fills results[HC_RESULTS], prints as it goes; the number of them. */
int hc_bench(const struct hr_kernels *k, int32_t threads, const char *glob,
             struct hc_result *results);

#endif
