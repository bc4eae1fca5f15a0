/* SPDX-License-Identifier: Apache-2.0 */
/* What begin accepts runs to its end: random steps, two open at a time, some of which append all
 * layers before the first attends, in caches of up to 14 layers with small budgets; forks,
 * truncates, parks. Planned only (dry runs), so there are many. */
#include <stdio.h>

#include "tests/engine/setup.h"

enum { LAYERS_MOST = 14, SEQS = 4, STEPS = 2, NEW_MOST = 1400, WIDTH = 4 * 64 };

struct program {
    hr_context *c;
    hr_cache *cache;
    int n_layers;
    hr_seq *seqs[SEQS];
    bool busy[SEQS];
};

struct run {
    hr_step *step;
    bool open, append_first;
    int n, which[2], appended, attended;
    int64_t n_new;
};

static struct program p;
static struct run runs[STEPS];
static float *numbers;
static uint64_t state;
static int64_t begun, refused, committed;

static int64_t below(int64_t n)
{
    state += 0x9e3779b97f4a7c15;
    uint64_t x = (state ^ state >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (int64_t)((x ^ x >> 31) % (uint64_t)n);
}

static void check(hr_status status, const char *what, uint64_t seed)
{
    if (status == HR_OK)
        return;
    printf("FAILED: seed %llu: %s: %s\n", (unsigned long long)seed, what, hr_error_text(p.c));
    exit(1);
}

static void begin(struct run *r, uint64_t seed)
{
    hr_seq *seqs[2];
    int64_t n_new[2], n_query[2] = {1, 1};
    hr_batch batch = {.struct_size = sizeof(batch), .seqs = seqs};
    batch.n_new = n_new, batch.n_query = n_query;
    r->n_new = r->n = 0;
    for (int64_t i = 1 + below(2); i > 0; i--) {
        int which = (int)below(SEQS);
        if (p.busy[which] || (r->n == 1 && r->which[0] == which))
            continue;
        seqs[r->n] = p.seqs[which];
        n_new[r->n] = below(below(2) ? NEW_MOST / 2 : 200);
        r->n_new += n_new[r->n];
        r->which[r->n++] = which;
    }
    batch.n_seqs = r->n;
    hr_status status = r->n ? hr_step_begin(r->step, &batch) : HR_E_BUDGET;
    refused += r->n && status == HR_E_BUDGET;
    if (status == HR_E_BUDGET)
        return;
    check(status, "begin", seed);
    begun++;
    for (int i = 0; i < r->n; i++)
        p.busy[r->which[i]] = true;
    r->open = true;
    r->appended = r->attended = 0;
    r->append_first = below(4) == 0;
}

static void end(struct run *r, bool keep, uint64_t seed)
{
    check(keep ? hr_step_commit(r->step, NULL) : hr_step_abort(r->step), "the end", seed);
    for (int i = 0; i < r->n; i++)
        p.busy[r->which[i]] = false;
    r->open = false;
    committed += keep;
}

static void advance(struct run *r, uint64_t seed)
{
    hr_append_args new = {.struct_size = sizeof(new), .dtype = HR_FP32, .k = numbers, .v = numbers};
    hr_attend_args ask = {.struct_size = sizeof(ask), .q_dtype = HR_FP32, .out_dtype = HR_FP32};
    ask.q = ask.out = numbers;
    if (r->attended == p.n_layers) {
        end(r, true, seed);
    } else if (r->appended < p.n_layers && (r->append_first || r->appended == r->attended)) {
        if (r->n_new > 0)
            check(hr_step_append(r->step, r->appended, &new), "append", seed);
        r->appended++;
    } else {
        check(hr_step_attend(r->step, r->attended++, &ask), "attend", seed);
    }
}

/* Something that happens to a sequence between its steps. */
static void change(uint64_t seed)
{
    int from = (int)below(SEQS), to = (int)below(SEQS);
    if (p.busy[to])
        return;
    int64_t length = hr_seq_length(p.seqs[to]), kind = below(4);
    if (kind == 0)
        check(hr_seq_truncate(p.seqs[to], below(length + 1)), "truncate", seed);
    if (kind == 1)
        check(hr_seq_advise(p.seqs[to], below(2) ? HR_ADVISE_PARK : HR_ADVISE_NORMAL), "advise",
              seed);
    if (kind < 2 || from == to || p.busy[from])
        return;
    int64_t shared = below(hr_seq_length(p.seqs[from]) + 1);
    check(hr_seq_destroy(&p.seqs[to]), "destroy", seed);
    check(hr_seq_fork(p.seqs[from], shared, &p.seqs[to]), "fork", seed);
}

/* False: the budget is too small for the cache. */
static bool open_all(uint64_t seed)
{
    static hr_layer_options layers[LAYERS_MOST];
    hr_disk disk = {.path = setup_folder(), .bytes = 1ull << 33};
    bool two_pools = below(3) == 0;
    p = (struct program){.n_layers = 1 + (int)below(LAYERS_MOST)};
    for (int l = 0; l < p.n_layers; l++) {
        layers[l] = (hr_layer_options){.q_heads = 4, .kv_heads = 4, .dim_k = 64, .dtype = HR_FP32};
        layers[l].kv_heads = two_pools && l % 3 == 2 ? 2 : 4;
    }
    hr_options options = {.struct_size = sizeof(options), .threads = 1, .unbound = true};
    options.dry_run = true;
    options.device_bytes = (uint64_t)(1 + below(8)) << 21;
    options.disks = &disk, options.n_disks = 1;
    hr_cache_options cache = {sizeof(cache), sizeof(layers[0]), layers, p.n_layers};
    hr_step_limits limits = {sizeof(limits), 2, NEW_MOST, 2};
    check(hr_open(&options, &p.c), "open", seed);
    if (hr_cache_create(p.c, &cache, &p.cache) != HR_OK)
        return false;
    for (int i = 0; i < STEPS; i++) {
        runs[i] = (struct run){0};
        check(hr_step_create(p.cache, &limits, &runs[i].step), "a step", seed);
    }
    for (int i = 0; i < SEQS; i++)
        check(hr_seq_create(p.cache, &p.seqs[i]), "a sequence", seed);
    return true;
}

static void close_all(uint64_t seed)
{
    for (int i = 0; i < STEPS && p.cache; i++)
        check(hr_step_destroy(&runs[i].step), "the end of a step", seed);
    for (int i = 0; i < SEQS && p.cache; i++)
        check(hr_seq_destroy(&p.seqs[i]), "the end of a sequence", seed);
    check(hr_cache_destroy(&p.cache), "the end of a cache", seed);
    check(hr_close(&p.c), "close", seed);
}

static void run_seed(uint64_t seed)
{
    state = seed * 0x2545f4914f6cdd1d;
    int turns = open_all(seed) ? 60 * (2 + p.n_layers) : 0;
    for (int i = 0; i < turns; i++) {
        struct run *r = &runs[below(STEPS)];
        if (!r->open)
            begin(r, seed);
        else if (below(30) == 0)
            end(r, false, seed);
        else
            advance(r, seed);
        if (below(10) == 0)
            change(seed);
    }
    close_all(seed);
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 3000;
    numbers = calloc((size_t)NEW_MOST * WIDTH, sizeof(float));
    for (uint64_t seed = first; seed < first + seeds; seed++)
        run_seed(seed);
    printf("%llu seeds: %lld steps begun, %lld committed, none stuck; %lld refused\n",
           (unsigned long long)seeds, (long long)begun, (long long)committed, (long long)refused);
    free(numbers);
    return begun > 0 && refused > 0 ? 0 : 1;
}
